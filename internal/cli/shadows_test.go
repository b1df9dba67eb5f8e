package cli

import (
	"bytes"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmroute/warmroute/internal/config"
	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/index"
	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/internal/telemetry"
	"github.com/warmroute/warmroute/internal/testkit"
)

func TestArmsOf(t *testing.T) {
	f := func(name string, edit func(*config.Routing), want ...string) {
		t.Helper()
		r := config.Default().Routing
		edit(&r)
		var got []string
		for _, a := range armsOf(name, &r) {
			got = append(got, a.name)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("arms of %s (-want +got):\n%s", name, d)
		}
	}
	f("cost", func(*config.Routing) {}, "cost")
	f("cost", func(r *config.Routing) { r.Shadow = []string{"sticky", "cost", "sticky", "random"} }, "cost", "sticky", "random")
	f("cost", func(r *config.Routing) { r.Adaptive = "on" }, "cost", "cost_congestion_2.5", "cost_congestion_40")
	f("cost", func(r *config.Routing) { r.Adaptive, r.Congestion = "on", 0 }, "cost")
	f("sticky", func(r *config.Routing) { r.Adaptive, r.Shadow = "on", []string{"cost"} }, "sticky", "cost")
}

// contestRig is a pool whose rules adapt.
type contestRig struct {
	*rules
	pool     *fleet.Pool
	log      bytes.Buffer
	registry *prometheus.Registry
	now      time.Time
}

func newContestRig(t *testing.T, edit func(*config.Routing)) *contestRig {
	t.Helper()
	r := &contestRig{registry: prometheus.NewRegistry(), now: time.Now()}
	metrics := telemetry.New(r.registry)
	metrics.Know("m")
	settings := config.Default().Routing
	edit(&settings)
	r.rules = newRules(slog.New(slog.NewTextHandler(&r.log, nil)), settings, shadows{index: index.New(index.Config{}), metrics: metrics})
	r.pool, _ = newFleet(t, fleet.PoolConfig{Model: "m"}).Pool("m")
	return r
}

// minutes shows the adapter some windows in which an arm is predicted to be twice
// as fast as all others.
func (r *contestRig) minutes(n int, best string) {
	c := r.byPool[r.pool].contest
	for range n {
		r.now = r.now.Add(time.Minute)
		w := route.Window{End: r.now, Actual: route.Evidence{Requests: 1000, TTFT: 100 * time.Second}}
		for _, a := range c.arms {
			e := route.Evidence{Requests: 1000, TTFT: 100 * time.Second, Prompt: 1000, Cached: 500}
			if a.name == best {
				e.TTFT /= 2
			}
			w.Arms = append(w.Arms, route.Arm{Name: a.name, Evidence: e})
		}
		r.adapt(r.pool, c, w)
	}
}

func (r *contestRig) liveName() string { return r.liveByPool()["m"] }

func TestAdaptive(t *testing.T) {
	r := newContestRig(t, func(s *config.Routing) { s.Shadow, s.Adaptive = []string{route.Sticky}, "on" })
	first := r.of(r.pool)
	if first.Policy.Name() != route.Cost || first.Shadow == nil {
		t.Fatalf("rule at the start: %s, shadow %v", first.Policy.Name(), first.Shadow)
	}
	r.minutes(2, route.Sticky)
	if got := r.of(r.pool).Policy; got != first.Policy {
		t.Errorf("policy after two minutes: %s; want the same as before", got.Name())
	}
	r.minutes(1, route.Sticky)
	if got := r.of(r.pool); got.Policy.Name() != route.Sticky || got.Shadow != first.Shadow || r.liveName() != route.Sticky {
		t.Errorf("after three minutes: %s, live %s; want sticky, and the same shadow", got.Policy.Name(), r.liveName())
	}
	for _, want := range []string{"routing adapted", "pool=m", "kind=switched", "from=cost", "to=sticky", "reason=\"predicted mean"} {
		if !strings.Contains(r.log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, r.log.String())
		}
	}
	families, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := false
	for _, f := range families {
		counted = counted || f.GetName() == "warmroute_policy_changes_total" && f.GetMetric()[0].GetCounter().GetValue() == 1
	}
	if !counted {
		t.Error("the change is not counted")
	}

	settings := r.routing
	settings.Adaptive = "off"
	r.set(settings)
	if got := r.of(r.pool); got.Policy.Name() != route.Cost || r.liveName() != route.Cost || got.Shadow == nil {
		t.Errorf("turned off: %s; want the configured policy, still with its shadow", got.Policy.Name())
	}
	settings.Shadow = nil
	r.set(settings)
	if got := r.of(r.pool); got.Shadow != nil {
		t.Error("a shadow is left after the last one was taken off the list")
	}
}

func TestAdaptive_TunesCongestion(t *testing.T) {
	r := newContestRig(t, func(s *config.Routing) { s.Adaptive = "on" })
	first := r.of(r.pool).Policy
	r.minutes(3, "cost_congestion_40")
	if got := r.of(r.pool).Policy; got == first || got.Name() != route.Cost || r.liveName() != "cost_congestion_40" {
		t.Errorf("live: %s, %s; want cost with another price", got.Name(), r.liveName())
	}
}

// From the file to the metrics, and off again.
func TestShadowsInService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := testkit.NewNetwork()
		n.Serve(t, "a:80", testkit.NewEngine())
		n.Serve(t, "b:80", testkit.NewEngine())
		const pool = "\npools:\n  - model: m\n    instances: [{url: \"http://a:80\"}, {url: \"http://b:80\"}]\n"
		r := newRig(t, n, pool+"routing: {shadow: [least_requests]}\n")
		ask := func(times int) {
			t.Helper()
			for range times {
				if status, body := r.chat("m"); status != http.StatusOK {
					t.Fatalf("chat: status %d %s", status, body)
				}
			}
			synctest.Wait()
		}
		expect := func(series, want string) {
			t.Helper()
			if got := r.metrics()[series]; got != want {
				t.Errorf("%s = %q; want %q", series, got, want)
			}
		}
		ask(3)
		expect(`warmroute_live_policy{model="m",policy="cost"}`, "1")
		expect(`warmroute_shadow_ttft_seconds_count{model="m",policy="cost"}`, "3")
		expect(`warmroute_shadow_ttft_seconds_count{model="m",policy="least_requests"}`, "3")
		r.write(rigHead + pool)
		if status, result := r.reload(); status != http.StatusOK || len(result.NeedsRestart) > 0 {
			t.Errorf("reload: status %d, %+v", status, result)
		}
		ask(2)
		expect(`warmroute_shadow_ttft_seconds_count{model="m",policy="least_requests"}`, "3")
	})
}

// Without adaptive, shadows watch and nothing else.
func TestShadowsOnlyWatch(t *testing.T) {
	r := newContestRig(t, func(s *config.Routing) { s.Shadow = []string{route.Sticky} })
	if r.of(r.pool); r.byPool[r.pool].adapter != nil {
		t.Error("there is an adapter though adaptive is off")
	}
}

// Turning shadows on keeps the state of the live policy, and windows of old
// settings change nothing.
func TestShadowsComeAndGo(t *testing.T) {
	r := newContestRig(t, func(s *config.Routing) { s.Policy = route.Session })
	first := r.of(r.pool)
	if first.Shadow != nil {
		t.Error("there is a shadow that nobody asked for")
	}
	settings := r.routing
	settings.Shadow, settings.Adaptive = []string{route.Sticky, route.PrefixHash}, "on"
	r.set(settings)
	second := r.of(r.pool)
	if second.Policy != first.Policy || second.Shadow == nil || second.HeadChars != settings.HashChars {
		t.Errorf("shadows turned on: same policy %t, shadow %v, key of %d characters", second.Policy == first.Policy, second.Shadow, second.HeadChars)
	}
	old := r.byPool[r.pool].contest
	settings.ShadowSample = .5
	r.set(settings)
	r.of(r.pool)
	for range 5 {
		r.now = r.now.Add(time.Minute)
		e := route.Evidence{Requests: 1000, TTFT: 100 * time.Second}
		r.adapt(r.pool, old, route.Window{End: r.now, Actual: e, Arms: []route.Arm{{Name: route.Session, Evidence: e}, {Name: route.Sticky, Evidence: route.Evidence{Requests: 1000}}}})
	}
	if r.liveName() != route.Session {
		t.Errorf("live: %s after evidence for old settings", r.liveName())
	}
}
