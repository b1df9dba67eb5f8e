package fleet

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmroute/warmroute/internal/route"
)

// noProbes takes every instance for ready, for tests that are about leases.
func noProbes(c *Config, _ *Deps) { c.Health.Interval, c.Scrape.Interval = 0, 0 }

// still returns a rig that needs no Run.
func still(t *testing.T, change func(*Config), pools ...PoolConfig) *rig {
	t.Helper()
	r := newRig(t, func(c *Config, d *Deps) {
		noProbes(c, d)
		if change != nil {
			change(c)
		}
	})
	r.apply(t, pools...)
	return r
}

// A thousand leases that end in every order and every way leave nothing behind.
func TestLeasesLeaveNothing(t *testing.T) {
	r := still(t, func(c *Config) { c.Breaker.Consecutive, c.Breaker.FailureRatio, c.AdaptiveLimit = 0, 0, false }, pool("m", "a:1", "b:1", "c:1"))
	rng := rand.New(rand.NewPCG(3, 4))
	var leases []*Lease
	for i := range 1000 {
		name := []string{"a:1", "b:1", "c:1"}[i%3]
		leases = append(leases, r.take(t, "m", name))
	}
	if v := r.view(t, "a:1"); v.InFlight != 334 || v.Leases != 334 || v.Load.Queued == 0 {
		t.Fatalf("in flight %d, leases %d, queued %v", v.InFlight, v.Leases, v.Load.Queued)
	}
	rng.Shuffle(len(leases), func(i, j int) { leases[i], leases[j] = leases[j], leases[i] })
	var wg sync.WaitGroup
	for chunk := range slices.Chunk(leases, 100) {
		seed := rng.Uint64()
		wg.Go(func() { abandon(chunk, seed) })
	}
	wg.Wait()
	total := uint64(0)
	for v := range r.fleet.All() {
		l := v.Load
		if v.InFlight != 0 || v.Leases != 0 || l.Queued != 0 || l.Decoding != 0 || l.Context != 0 || l.InFlight != 0 || l.Used != 0 {
			t.Errorf("%s: %d in flight, %d leases, load %+v; want zeros", v.Name, v.InFlight, v.Leases, l)
		}
		for _, n := range v.Results {
			total += n
		}
	}
	if total != 1000 {
		t.Errorf("%d results; want 1000", total)
	}
	for _, in := range r.fleet.instances {
		if in.leases != nil {
			t.Errorf("%s still lists leases", in.name)
		}
	}
}

// abandon ends leases: before and after the first token, twice, and with calls
// that come too late.
func abandon(leases []*Lease, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	now := time.Now()
	for _, l := range leases {
		for range rng.IntN(4) {
			switch rng.IntN(2) {
			case 0:
				l.FirstToken(now)
			case 1:
				l.Token(now, 1+rng.IntN(5))
			}
		}
		o := Outcome{Result: Result(rng.IntN(int(ClientGone) + 2)), RetryAfter: time.Duration(rng.IntN(3)) * time.Second}
		for range 1 + rng.IntN(3) {
			l.Release(now, o)
		}
		l.FirstToken(now)
		l.Token(now, 3)
	}
}

func TestLoadCountsFromDispatch(t *testing.T) {
	r := still(t, nil, pool("m", "a:1"))
	now := time.Now()
	l, ok := r.pool(t, "m").Acquire(r.id(t, "a:1"), Charge{Uncached: 32_000, Prompt: 32_000, Output: 1}, now)
	if !ok {
		t.Fatal("refused")
	}
	if q := r.pool(t, "m").Candidates(nil, now)[0].Load.Queued; q != 32_000 {
		t.Errorf("queued = %v right after dispatch", q)
	}
	l.FirstToken(now)
	c := r.pool(t, "m").Candidates(nil, now)[0]
	if c.Load.Queued != 0 || c.Load.Decoding != 1 {
		t.Errorf("after the first token: %+v", c.Load)
	}
	l.Release(now, Outcome{Result: Served})
	l.Release(now, Outcome{Result: TransientFault})
	if v := r.view(t, "a:1"); v.Results["served"] != 1 || v.Results["transient"] != 0 {
		t.Errorf("results = %v; want the first only", v.Results)
	}
}

func TestMaxInflight(t *testing.T) {
	p := pool("m", "a:1", "b:1")
	p.Instances[0].MaxInflight = 2
	r := still(t, nil, p)
	one, two := r.take(t, "m", "a:1"), r.take(t, "m", "a:1")
	same(t, "states", r.states(t, "m"), "a:1 full", "b:1")
	if _, ok := r.try(t, "m", "a:1"); ok {
		t.Error("a third lease of two")
	}
	one.Release(time.Now(), Outcome{Result: ClientGone})
	three := r.take(t, "m", "a:1")
	for _, l := range []*Lease{two, three} {
		l.Release(time.Now(), Outcome{Result: Served})
	}
	if _, ok := r.pool(t, "m").Acquire(99, Charge{}, time.Now()); ok {
		t.Error("a lease on an unknown instance")
	}
}

// Of two requests that chose the same last place on a snapshot, one gets it.
func TestAcquireJudgesAnew(t *testing.T) {
	p := pool("m", "a:1")
	p.Instances[0].MaxInflight = 1
	r := still(t, nil, p)
	id, got := r.id(t, "a:1"), make(chan bool, 64)
	var wg sync.WaitGroup
	for range cap(got) {
		wg.Go(func() {
			_, ok := r.pool(t, "m").Acquire(id, Charge{Uncached: 1, Prompt: 1}, time.Now())
			got <- ok
		})
	}
	wg.Wait()
	close(got)
	n := 0
	for ok := range got {
		if ok {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d leases on one place", n)
	}
}

// end acquires and releases with each of the results in turn.
func (r *rig) end(t *testing.T, name string, how ...Result) {
	t.Helper()
	for _, o := range how {
		r.take(t, "m", name).Release(time.Now(), Outcome{Result: o})
	}
}

func repeat(o Result, n int) []Result { return slices.Repeat([]Result{o}, n) }

func TestFaultClassesAndBreaker(t *testing.T) {
	f := func(want string, how ...Result) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			r := still(t, func(c *Config) { c.CoolDown = 0 }, pool("m", "a:1", "b:1"))
			r.end(t, "a:1", how...)
			if got := r.view(t, "a:1").State; got != want {
				t.Errorf("%v: %s; want %s", how, got, want)
			}
		})
	}
	f("open", repeat(TransientFault, 5)...)
	f("open", repeat(Truncated, 5)...)
	f("ready", TransientFault)
	f("ready", repeat(TransientFault, 4)...)
	f("ready", repeat(ClientFault, 100)...)
	f("ready", repeat(ClientGone, 100)...)
	f("ready", repeat(CapacityFault, 100)...)
	f("credential", CredentialFault)
	// Client errors neither trip nor heal: the row of failures stands.
	f("open", slices.Concat(repeat(TransientFault, 4), repeat(ClientFault, 50), repeat(ClientGone, 50), repeat(TransientFault, 1))...)
	f("ready", slices.Concat(repeat(TransientFault, 4), repeat(Served, 9), repeat(TransientFault, 4))...)
}

// An answer that is cut after its first token counts as both: streams that all
// break open the breaker.
func TestTruncatedStreamsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := still(t, nil, pool("m", "a:1", "b:1"))
		for range 5 {
			l := r.take(t, "m", "a:1")
			l.FirstToken(time.Now())
			l.Release(time.Now(), Outcome{Result: Truncated})
			if r.view(t, "a:1").State == "open" {
				return
			}
		}
		t.Error("five broken streams left the breaker closed")
	})
}

func TestHalfOpenLetsOneRealRequestThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := still(t, nil, pool("m", "a:1", "b:1"))
		r.end(t, "a:1", repeat(TransientFault, 5)...)
		same(t, "open", r.states(t, "m"), "a:1 open", "b:1")
		if _, ok := r.try(t, "m", "a:1"); ok {
			t.Error("a lease through an open breaker while b:1 is well")
		}
		wait(5 * time.Second)
		same(t, "half open", r.states(t, "m"), "a:1", "b:1")
		first := r.take(t, "m", "a:1")
		same(t, "trial runs", r.states(t, "m"), "a:1 open", "b:1")
		// A trial that says nothing makes place for another one.
		first.Release(time.Now(), Outcome{Result: ClientGone})
		for _, o := range []Result{ClientFault, CapacityFault, ClientGone} {
			r.end(t, "a:1", o)
			wait(Default().CoolDown)
		}
		second := r.take(t, "m", "a:1")
		second.FirstToken(time.Now())
		// The first token proves it: nobody waits for the end of a long stream.
		same(t, "closed", r.states(t, "m"), "a:1", "b:1")
		second.Release(time.Now(), Outcome{Result: Served})
		if v := r.view(t, "a:1"); v.Breaker != "closed" || v.Opened != 1 {
			t.Errorf("breaker %s, opened %d", v.Breaker, v.Opened)
		}
	})
}

func TestCoolDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := still(t, func(c *Config) { c.MaxCoolDown = time.Minute }, pool("m", "a:1"))
		busy := func(after time.Duration) {
			r.take(t, "m", "a:1").Release(time.Now(), Outcome{Result: CapacityFault, RetryAfter: after})
		}
		one, two := r.take(t, "m", "a:1"), r.take(t, "m", "a:1")
		busy(20 * time.Second)
		// Nobody else is there, and still it is not forced: it asked for a pause.
		same(t, "cooling", r.states(t, "m"), "a:1 cooling")
		if got := r.pool(t, "m").Outage(time.Now()); got != (Outage{Resting, 20 * time.Second}) {
			t.Errorf("outage = %+v", got)
		}
		one.Release(time.Now(), Outcome{Result: CapacityFault, RetryAfter: 2 * time.Second})
		wait(19 * time.Second)
		same(t, "a shorter pause does not end a longer one", r.states(t, "m"), "a:1 cooling")
		wait(time.Second)
		same(t, "over", r.states(t, "m"), "a:1")
		busy(0)
		wait(Default().CoolDown - 1)
		same(t, "without Retry-After", r.states(t, "m"), "a:1 cooling")
		wait(1)
		same(t, "over", r.states(t, "m"), "a:1")
		busy(24 * time.Hour)
		wait(time.Minute)
		same(t, "bounded", r.states(t, "m"), "a:1")
		two.Release(time.Now(), Outcome{Result: Served})
		if v := r.view(t, "a:1"); v.Breaker != "closed" || v.Opened != 0 {
			t.Errorf("capacity faults moved the breaker: %s", v.Breaker)
		}
	})
}

// An instance that says it is full gets fewer requests at once.
func TestAdaptiveLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := still(t, nil, pool("m", "a:1"))
		var leases []*Lease
		for range 20 {
			leases = append(leases, r.take(t, "m", "a:1"))
		}
		leases[0].Release(time.Now(), Outcome{Result: CapacityFault})
		wait(time.Second)
		same(t, "20 were too many", r.states(t, "m"), "a:1 full")
		if v := r.view(t, "a:1"); v.Limit != 16 {
			t.Errorf("limit = %d; want 16", v.Limit)
		}
		for _, l := range leases[1:] {
			l.Release(time.Now(), Outcome{Result: Served})
		}
		same(t, "room again", r.states(t, "m"), "a:1")
	})
}

func TestFailOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := still(t, nil, pool("m", "a:1", "b:1", "c:1"))
		for _, name := range []string{"a:1", "b:1"} {
			r.end(t, name, repeat(TransientFault, 5)...)
		}
		same(t, "c is well", r.states(t, "m"), "a:1 open", "b:1 open", "c:1")
		r.take(t, "m", "c:1").Release(time.Now(), Outcome{Result: CapacityFault, RetryAfter: time.Second})
		same(t, "c will be", r.states(t, "m"), "a:1 open", "b:1 open", "c:1 cooling")
		wait(time.Second)
		r.end(t, "c:1", repeat(TransientFault, 5)...)
		same(t, "all open", r.states(t, "m"), "a:1", "b:1", "c:1")
		if got := r.pool(t, "m").Outage(time.Now()); got.Kind != Broken {
			t.Errorf("outage = %+v", got)
		}
		l := r.take(t, "m", "b:1")
		if !l.FailOpen() {
			t.Error("the lease does not say that it is forced")
		}
		l.FirstToken(time.Now())
		same(t, "b has proved itself", r.states(t, "m"), "a:1 open", "b:1", "c:1 open")
		l.Release(time.Now(), Outcome{Result: Served})
		if l := r.take(t, "m", "b:1"); l.FailOpen() {
			t.Error("an ordinary lease says that it is forced")
		}
	})
}

// Who drains, never was ready, or refuses our key, is nobody to fall back to.
func TestFailOpenHasLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := still(t, nil, pool("m", "a:1", "b:1"))
		r.end(t, "a:1", CredentialFault)
		r.end(t, "b:1", repeat(TransientFault, 5)...)
		same(t, "b is forced, a is not", r.states(t, "m"), "a:1 open", "b:1")
		wait(5 * time.Second)
		r.end(t, "b:1", CredentialFault)
		same(t, "nobody", r.states(t, "m"), "a:1 open", "b:1 open")
		if got := r.pool(t, "m").Outage(time.Now()); got.Kind != Credentials || got.RetryAfter < time.Second {
			t.Errorf("outage = %+v", got)
		}
		r.apply(t, pool("m", "a:1", "b:1"))
		same(t, "a reload may bring keys", r.states(t, "m"), "a:1", "b:1")
	})
}

func TestCandidatesDescribe(t *testing.T) {
	p := pool("m", "a:1", "b:1")
	p.Instances[0].Name, p.Instances[0].Profile, p.Instances[0].Weight = "gpu", "llama-3.1-8b-1xh100", 3
	p.Instances[1].KVTokens = 5000
	r := still(t, nil, p)
	cs := r.pool(t, "m").Candidates(make([]route.Candidate, 1, 8), time.Now())[1:]
	prior, _ := route.Prior("llama-3.1-8b-1xh100")
	want := route.Candidate{
		ID: 0, Name: "gpu", NameHash: route.Hash("gpu"), Weight: 3, Speed: prior, Load: cs[0].Load,
	}
	if diff := cmp.Diff(want, cs[0]); diff != "" {
		t.Errorf("candidate (-want +got):\n%s", diff)
	}
	// Of the second nothing is known but its capacity: it is taken to be like the
	// first.
	if s := cs[1].Speed; s.PrefillToken != prior.PrefillToken || s.KVTokens != 5000 {
		t.Errorf("speed = %+v", s)
	}
	dst := make([]route.Candidate, 0, 8)
	pool, now := r.pool(t, "m"), time.Now()
	if n := testing.AllocsPerRun(100, func() { dst = pool.Candidates(dst[:0], now) }); n != 0 {
		t.Errorf("Candidates allocates %v times; want 0", n)
	}
	if n := testing.AllocsPerRun(100, func() {
		l, _ := pool.Acquire(0, Charge{Uncached: 1, Prompt: 1}, now)
		l.FirstToken(now)
		l.Token(now, 1)
		l.Release(now, Outcome{Result: Served})
	}); n > 1 {
		t.Errorf("a lease allocates %v times; want 1", n)
	}
}

// ready64 is a pool of 64 ready instances with a lease on each.
func ready64(b *testing.B) *Pool {
	b.Helper()
	cfg := Default()
	cfg.Health.Interval = 0
	f, err := New(cfg, Deps{Transport: inert})
	if err != nil {
		b.Fatal(err)
	}
	if err := f.Apply([]PoolConfig{manyInstances(64)}); err != nil {
		b.Fatal(err)
	}
	p, _ := f.Pool("m")
	for _, c := range p.Candidates(nil, time.Now()) {
		if _, ok := p.Acquire(c.ID, Charge{Uncached: 500, Prompt: 8000}, time.Now()); !ok {
			b.Fatal("refused")
		}
	}
	return p
}

func BenchmarkCandidates64(b *testing.B) {
	p := ready64(b)
	dst, now := make([]route.Candidate, 0, 64), time.Now()
	b.ReportAllocs()
	for b.Loop() {
		dst = p.Candidates(dst[:0], now)
	}
}

func BenchmarkLease(b *testing.B) {
	p := ready64(b)
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		l, ok := p.Acquire(17, Charge{Uncached: 1, Prompt: 1}, now)
		if !ok {
			b.Fatal("refused")
		}
		l.FirstToken(now)
		l.Token(now, 1)
		l.Release(now, Outcome{Result: Served})
	}
}
