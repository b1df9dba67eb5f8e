package fleet

import (
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/testkit"
)

// noScrapes leaves only the probes.
func noScrapes(c *Config, _ *Deps) { c.Scrape.Interval = 0 }

func TestProbesDecideReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, noScrapes)
		e := testkit.NewEngine()
		e.SetHealth(http.StatusServiceUnavailable, 0)
		r.net.Serve(t, "a:1", e)
		r.apply(t, pool("m", "a:1"))
		r.run(t)
		wait(0)
		same(t, "loading", r.states(t, "m"), "a:1 unready")
		if r.fleet.Ready() {
			t.Error("ready while the only instance loads")
		}
		if got := r.pool(t, "m").Outage(time.Now()); got.Kind != Starting {
			t.Errorf("outage = %+v", got)
		}
		e.SetHealth(http.StatusOK, 0)
		wait(1200 * time.Millisecond)
		// New ones are probed each second and join with the first good probe.
		same(t, "loaded", r.states(t, "m"), "a:1")
		if !r.fleet.Ready() || r.fleet.Models()[0].Ready != 1 {
			t.Error("not ready with a ready instance")
		}
		same(t, "events", r.took(), "joined a:1", "up a:1")

		e.SetHealth(http.StatusInternalServerError, 0)
		wait(11 * time.Second)
		same(t, "two bad probes are not three", r.states(t, "m"), "a:1")
		wait(6 * time.Second)
		if got := r.view(t, "a:1"); got.State != "unready" || got.Reason != "/health answers 500" {
			t.Errorf("state = %s, %s", got.State, got.Reason)
		}
		// The only instance is down: it is the least bad.
		same(t, "fail open", r.states(t, "m"), "a:1")
		if l := r.take(t, "m", "a:1"); !l.FailOpen() {
			t.Error("the lease does not say that it is forced")
		} else {
			l.Release(time.Now(), Outcome{Result: ClientGone})
		}
		e.SetHealth(http.StatusOK, 0)
		probed := r.view(t, "a:1").Probed
		for r.view(t, "a:1").Probed.Equal(probed) {
			wait(10 * time.Millisecond)
		}
		if got := r.view(t, "a:1").State; got != "unready" {
			t.Errorf("one good probe is not two: %s", got)
		}
		wait(1200 * time.Millisecond)
		if got := r.view(t, "a:1").State; got != "ready" {
			t.Errorf("state = %s after two good probes", got)
		}
		same(t, "events", r.took(), "down a:1 /health answers 500", "up a:1")
	})
}

func TestHysteresisIgnoresASingleBadProbe(t *testing.T) {
	var h health
	script := func(s string) {
		for _, c := range s {
			if c == '+' {
				h.rise(2)
			} else {
				h.fall(3, "bad")
			}
		}
	}
	f := func(probes string, want bool) {
		t.Helper()
		h = health{}
		script(probes)
		if h.ready != want {
			t.Errorf("%s: ready = %t", probes, h.ready)
		}
	}
	f("", false)
	f("---", false)
	f("---+", true)
	f("+--+--+--", true)
	f("+---", false)
	f("+---+", false)
	f("+---+-+", false)
	f("+---++", true)
}

// An engine that answers probes late while it streams stays; one that is silent
// on both sides goes.
func TestSlowProbesWhileStreaming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, noScrapes)
		busy, dead := testkit.NewEngine(), testkit.NewEngine()
		r.net.Serve(t, "busy:1", busy)
		r.net.Serve(t, "dead:1", dead)
		r.apply(t, pool("m", "busy:1", "dead:1"))
		r.run(t)
		wait(time.Second)
		busy.SetHealth(0, time.Minute)
		dead.SetHealth(0, time.Minute)
		stream, stuck := r.take(t, "m", "busy:1"), r.take(t, "m", "dead:1")
		stuck.FirstToken(time.Now())
		for range 60 {
			wait(time.Second)
			stream.Token(time.Now(), 1)
		}
		same(t, "after a minute", r.states(t, "m"), "busy:1", "dead:1 unready")
		if got := r.view(t, "busy:1").Reason; got == "" {
			t.Error("the slow probes are not even shown")
		}
		stream.Release(time.Now(), Outcome{Result: Served})
		stuck.Release(time.Now(), Outcome{Result: TransientFault})
		// Once the streaming is over, slow probes count.
		wait(30 * time.Second)
		if got := r.view(t, "busy:1").State; got != "unready" {
			t.Errorf("busy:1 is %s", got)
		}
	})
}

// Probes never touch the load, and neither does a probe that fails.
func TestProbesKeepTheLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, noScrapes)
		e := testkit.NewEngine()
		r.net.Serve(t, "a:1", e)
		r.apply(t, pool("m", "a:1"))
		r.run(t)
		wait(time.Second)
		l := r.take(t, "m", "a:1")
		before := r.view(t, "a:1").Load.Queued
		for _, status := range []int{200, 500, 200} {
			e.SetHealth(status, 0)
			wait(30 * time.Second)
			if v := r.view(t, "a:1"); v.Load.Queued != before || v.InFlight != 1 {
				t.Errorf("queued %v, in flight %d after probes with %d", v.Load.Queued, v.InFlight, status)
			}
		}
		l.Release(time.Now(), Outcome{Result: Served})
	})
}

// pathServer answers the paths it knows.
type pathServer struct {
	mu   sync.Mutex
	know map[string]int
	seen []string
}

func (s *pathServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, r.Method+" "+r.URL.Path)
	status := s.know[r.URL.Path]
	if status == 0 {
		status = http.StatusNotFound
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, "{}")
}

func TestProbePaths(t *testing.T) {
	f := func(c InstanceConfig, know map[string]int, wantState, wantLast string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, func(c *Config, d *Deps) { noScrapes(c, d); c.Health.ModelsInterval = time.Hour })
			s := &pathServer{know: know}
			r.net.Serve(t, "a:1", s)
			c.URL = "http://a:1/base/v1"
			r.apply(t, PoolConfig{Model: "m", Instances: []InstanceConfig{c}})
			r.run(t)
			wait(2 * time.Second)
			s.mu.Lock()
			s.seen = nil
			s.mu.Unlock()
			wait(40 * time.Second)
			if got := r.view(t, "a:1/base").State; got != wantState {
				t.Errorf("state = %s; want %s", got, wantState)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.seen) == 0 || s.seen[0] != wantLast {
				t.Errorf("probes settle on %q; want %s", s.seen, wantLast)
			}
			if slices.ContainsFunc(s.seen, func(p string) bool { return p[:4] != "GET " }) {
				t.Errorf("a probe that is not free: %q", s.seen)
			}
		})
	}
	f(InstanceConfig{}, map[string]int{"/base/health": 200}, "ready", "GET /base/health")
	f(InstanceConfig{}, map[string]int{"/base/ping": 200}, "ready", "GET /base/ping")
	f(InstanceConfig{}, map[string]int{"/base/v1/models": 200}, "ready", "GET /base/v1/models")
	f(InstanceConfig{Engine: OpenAI}, map[string]int{"/base/v1/models": 200, "/base/health": 200}, "ready", "GET /base/v1/models")
	// Nothing that was guessed is there, but somebody speaks HTTP.
	f(InstanceConfig{}, nil, "ready", "GET /base/v1/models")
	// A path that was configured must be there.
	f(InstanceConfig{HealthPath: "/live"}, map[string]int{"/base/health": 200}, "starting", "GET /base/live")
	f(InstanceConfig{HealthPath: "/live"}, map[string]int{"/base/live": 204}, "ready", "GET /base/live")
	// Somebody in front wants a key for /health: alive.
	f(InstanceConfig{}, map[string]int{"/base/health": 401}, "ready", "GET /base/health")
}

// Hosted vendors count requests, so they are probed at a sixth of the rate.
func TestVendorsAreProbedLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *Config, d *Deps) { noScrapes(c, d); c.Health.ModelsInterval = time.Hour })
		s := &pathServer{know: map[string]int{modelsPath: 200}}
		r.net.Serve(t, "a:1", s)
		p := pool("m", "a:1")
		p.Instances[0].Engine = OpenAI
		r.apply(t, p)
		r.run(t)
		wait(5 * time.Minute)
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := len(s.seen); n < 9 || n > 14 {
			t.Errorf("%d requests in 5 minutes; want about 11", n)
		}
	})
}

// keyServer serves to the holder of the key only.
type keyServer struct {
	mu  sync.Mutex
	key string
}

func (s *keyServer) set(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.key = key
}

func (s *keyServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.URL.Path != "/health" && r.Header.Get("Authorization") != "Bearer "+s.key {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	_, _ = io.WriteString(w, `{"data":[]}`)
}

func TestCredentialIsDeadUntilAProbePasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, noScrapes)
		s := &keyServer{key: "right"}
		r.net.Serve(t, "a:1", s)
		p := pool("m", "a:1")
		p.Instances[0].APIKey = "wrong"
		r.apply(t, p)
		r.run(t)
		wait(time.Second)
		r.end(t, "a:1", CredentialFault)
		wait(10 * time.Minute)
		if got := r.view(t, "a:1").State; got != "credential" {
			t.Errorf("state = %s; /health says nothing about keys", got)
		}
		s.set("wrong")
		wait(20 * time.Second)
		if got := r.view(t, "a:1").State; got != "ready" {
			t.Errorf("state = %s after a probe passed", got)
		}
		// It lists models but refuses requests: the next pause is longer.
		r.end(t, "a:1", CredentialFault)
		wait(45 * time.Second)
		if got := r.view(t, "a:1").State; got != "credential" {
			t.Errorf("state = %s; want a pause of a minute", got)
		}
		wait(30 * time.Second)
		if got := r.view(t, "a:1").State; got != "ready" {
			t.Errorf("state = %s", got)
		}
	})
}

// Without a start time to compare, somebody who listens where nobody did is
// another process: everything about the old one is void.
func TestRestartWithoutMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, noScrapes)
		stop := r.net.Serve(t, "a:1", testkit.NewEngine())
		r.apply(t, pool("m", "a:1", "b:1"))
		r.net.Serve(t, "b:1", testkit.NewEngine())
		r.run(t)
		wait(time.Second)
		l := r.take(t, "m", "a:1")
		var dying []*Lease
		for range 8 {
			dying = append(dying, r.take(t, "m", "a:1"))
		}
		stop()
		wait(6 * time.Second)
		r.net.Serve(t, "a:1", testkit.NewEngine())
		r.took()
		wait(6 * time.Second)
		same(t, "events", r.took(), "restarted a:1 refused")
		v := r.view(t, "a:1")
		if v.State != "ready" || v.InFlight != 0 || v.Load.Queued != 0 || v.Restarts != 1 || v.Leases != 9 {
			t.Errorf("%s: %d in flight, queued %v, %d restarts, %d leases; want a fresh instance", v.State, v.InFlight, v.Load.Queued, v.Restarts, v.Leases)
		}
		l.Release(time.Now(), Outcome{Result: TransientFault})
		for _, l := range dying {
			l.Release(time.Now(), Outcome{Result: TransientFault})
		}
		if v := r.view(t, "a:1"); v.State != "ready" {
			t.Errorf("%s: failures of the dead process count against the new one", v.State)
		}
		if v := r.view(t, "a:1"); v.InFlight != 0 || v.Load.InFlight != 0 || v.Leases != 0 {
			t.Errorf("a lease of the dead process moved the counters: %+v", v)
		}
	})
}

// A restart ends the pause of a breaker: the new process gets its trial at once.
func TestRestartGivesATrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, noScrapes)
		stop := r.net.Serve(t, "a:1", testkit.NewEngine())
		r.net.Serve(t, "b:1", testkit.NewEngine())
		r.apply(t, pool("m", "a:1", "b:1"))
		r.run(t)
		wait(time.Second)
		r.end(t, "a:1", repeat(TransientFault, 5)...)
		for range 3 { // failed trials: the pause is long now
			for r.view(t, "a:1").Breaker != "half_open" {
				wait(100 * time.Millisecond)
			}
			r.end(t, "a:1", TransientFault)
		}
		if got := r.view(t, "a:1"); time.Until(got.OpenUntil) < 30*time.Second {
			t.Fatalf("open until %v", got.OpenUntil)
		}
		stop()
		wait(6 * time.Second)
		r.net.Serve(t, "a:1", testkit.NewEngine())
		wait(6 * time.Second)
		if v := r.view(t, "a:1"); v.State != "ready" || v.Breaker != "half_open" || v.Restarts != 1 {
			t.Errorf("%s, %s, %d restarts", v.State, v.Breaker, v.Restarts)
		}
	})
}

// A reload keeps the probes of what stays going.
func TestReloadKeepsProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, noScrapes)
		e := testkit.NewEngine()
		r.net.Serve(t, "a:1", e)
		r.apply(t, pool("m", "a:1"))
		r.run(t)
		wait(time.Second)
		for range 5 {
			r.apply(t, pool("m", "a:1", "b:1"))
			r.apply(t, pool("m", "a:1"))
			wait(time.Second)
		}
		e.SetHealth(http.StatusInternalServerError, 0)
		wait(20 * time.Second)
		if got := r.view(t, "a:1").State; got != "unready" {
			t.Errorf("state = %s; nobody probes any more", got)
		}
	})
}

// Thousands of requests at once, of which some fail, do not open a breaker; and
// when one opens, those that fail open pass.
func TestManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := still(t, nil, pool("m", "a:1"))
		var leases []*Lease
		for range 2048 {
			leases = append(leases, r.take(t, "m", "a:1"))
		}
		for i, l := range leases {
			o := Outcome{Result: Served}
			if i%3 == 0 {
				o.Result = TransientFault
			}
			l.Release(time.Now(), o)
		}
		same(t, "a third failed", r.states(t, "m"), "a:1")
		r.end(t, "a:1", repeat(TransientFault, 2048)...)
		l := r.take(t, "m", "a:1")
		if !l.FailOpen() {
			t.Error("not flagged")
		}
		l.Release(time.Now(), Outcome{Result: Served})
	})
}

func TestProbesOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *Config, d *Deps) { noProbes(c, d) })
		r.apply(t, pool("m", "a:1"))
		r.run(t)
		wait(time.Minute)
		same(t, "states", r.states(t, "m"), "a:1")
	})
}

func TestRunTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.run(t)
		wait(0)
		if err := r.fleet.Run(t.Context()); err == nil {
			t.Error("a second Run")
		}
	})
}
