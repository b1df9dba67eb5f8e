package bench

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/internal/sim"
)

// ragRun is a fleet whose caches hold the documents together, and none alone.
func ragRun(t *testing.T, policy string, requests int) Settings {
	t.Helper()
	profiles, err := Fleet("llama-3.1-70b-8xh100", 7)
	if err != nil {
		t.Fatal(err)
	}
	return Settings{
		Policy: policy, Route: route.Default(), Seed: 1, Profiles: profiles, KVTokens: 100_000, Assumed: 1,
		Workload: RAG{
			Requests: requests, Rate: 20, Prefixes: 60, PrefixTokens: 8000, Zipf: 0.8, SystemTokens: 40,
			Tail: Between(50, 250), Output: Between(20, 60),
		},
		Engine: sim.Options{BlockTokens: 64}, // a quarter of the work for the test
	}
}

func run(t *testing.T, s Settings) *Result {
	t.Helper()
	r, err := Run(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRunRepeats(t *testing.T) {
	for _, policy := range []string{route.Cost, route.PowerOfTwo} {
		s := ragRun(t, policy, 1500)
		s.CurveStep = 10 * time.Second
		first, second := run(t, s), run(t, s)
		if diff := cmp.Diff(first, second); diff != "" {
			t.Errorf("%s: two runs of one seed differ:\n%s", policy, diff)
		}
		s.Seed = 2
		if cmp.Equal(first, run(t, s)) {
			t.Errorf("%s: two seeds give the same numbers", policy)
		}
	}
}

// What goes in comes out: every request ends once, and the instances' counts add up to the whole.
func TestRunConserves(t *testing.T) {
	chat := Chat{
		Sessions: 300, Rate: 3, Groups: 4, SystemTokens: 1500, Turns: Between(1, 6), User: Between(20, 300), Output: Between(20, 200),
		Think: 5 * time.Second,
	}
	requests := len(drain(t, chat.Source(1), time.Second))
	for _, policy := range route.Policies() {
		s := ragRun(t, policy, 0)
		s.Workload = chat
		r := run(t, s)
		if r.Requests != requests || r.SuccessRate != 1 {
			t.Errorf("%s: %d requests, success %g; want %d and 1", policy, r.Requests, r.SuccessRate, requests)
		}
		var sum InstanceResult
		for _, in := range r.Instances {
			sum.Requests += in.Requests
			sum.PromptTokens += in.PromptTokens
			sum.CachedTokens += in.CachedTokens
		}
		if hit := ratio(float64(sum.CachedTokens), float64(sum.PromptTokens)); sum.Requests != requests || math.Abs(hit-r.HitRate.Actual) > 1e-3 {
			t.Errorf("%s: instances add up to %+v, hit rate %g; want %d requests and %g", policy, sum, hit, requests, r.HitRate.Actual)
		}
		// An answer may join the cache after the next turn was sent, never before.
		if r.HitRate.Actual > r.HitRate.Ceiling {
			t.Errorf("%s: hit rate %g is above the ceiling %g", policy, r.HitRate.Actual, r.HitRate.Ceiling)
		}
		if r.TTFT.P50 <= 0 || r.TTFT.P99 < r.TTFT.P90 || r.E2E.P50 < r.TTFT.P50 {
			t.Errorf("%s: latencies %+v, %+v", policy, r.TTFT, r.E2E)
		}
	}
}

// One instance without a limit is the infinite cache.
func TestRunReachesTheCeiling(t *testing.T) {
	s := ragRun(t, route.RoundRobin, 1500)
	s.Profiles, s.Engine.BlockTokens = s.Profiles[:1], 0
	s.KVTokens = 4_000_000
	w := s.Workload.(RAG)
	w.Rate = 0.5 // no request arrives while another is being prefilled, but for a few
	s.Workload = w
	r := run(t, s)
	if gap := r.HitRate.Ceiling - r.HitRate.Actual; gap < 0 || gap > 0.002 {
		t.Errorf("hit rate %g, ceiling %g", r.HitRate.Actual, r.HitRate.Ceiling)
	}
	if r.Imbalance != 1 {
		t.Errorf("imbalance of one instance is %g", r.Imbalance)
	}
}

func TestCostBeatsThoseWhoDoNotLook(t *testing.T) {
	cost := run(t, ragRun(t, route.Cost, 2500))
	for _, policy := range []string{route.RoundRobin, route.FewestRequests} {
		r := run(t, ragRun(t, policy, 2500))
		t.Logf("%s: TTFT %+v, hit rate %+v, imbalance %g", policy, r.TTFT, r.HitRate, r.Imbalance)
		if cost.TTFT.P50 > r.TTFT.P50/5 || cost.TTFT.Mean > r.TTFT.Mean/4 || cost.TTFT.P90 > r.TTFT.P90 || cost.TTFT.P99 > r.TTFT.P99 {
			t.Errorf("TTFT of cost %+v is not far below that of %s %+v", cost.TTFT, policy, r.TTFT)
		}
		if cost.HitRate.Actual < r.HitRate.Actual+0.3 || cost.Imbalance > r.Imbalance {
			t.Errorf("cost: hit rate %g, imbalance %g; %s: %g, %g", cost.HitRate.Actual, cost.Imbalance, policy, r.HitRate.Actual, r.Imbalance)
		}
	}
	t.Logf("cost: TTFT %+v, hit rate %+v, imbalance %g", cost.TTFT, cost.HitRate, cost.Imbalance)
	if cost.HitRate.Actual < 0.97*cost.HitRate.Ceiling {
		t.Errorf("hit rate %g of a ceiling of %g", cost.HitRate.Actual, cost.HitRate.Ceiling)
	}
	if gap := math.Abs(cost.HitRate.Predicted - cost.HitRate.Actual); gap > 0.01 {
		t.Errorf("predicted %g, actual %g", cost.HitRate.Predicted, cost.HitRate.Actual)
	}
}

// window averages the points of a curve from low to high.
func window(r *Result, low, high int) (hit float64, ttft time.Duration) {
	n := 0
	for _, p := range r.Curve[low:high] {
		hit += p.HitRate * float64(p.Requests)
		ttft += p.TTFT * time.Duration(p.Requests)
		n += p.Requests
	}
	return hit / float64(n), ttft / time.Duration(n)
}

func curve(r *Result) string {
	var b strings.Builder
	for _, p := range r.Curve {
		fmt.Fprintf(&b, " %.0fs:%.1f%%/%dms", p.At.Seconds(), 100*p.HitRate, p.TTFT.Milliseconds())
	}
	return b.String()
}

// What the gateway believes of the caches corrects itself: after a while nobody can tell that it was wrong.
func TestBeliefsCorrectThemselves(t *testing.T) {
	if testing.Short() {
		t.Skip("an hour of virtual time")
	}
	const (
		short  = 10_000 // requests
		long   = 20_000
		points = 4 // of a curve's end are compared
		fault  = 250 * time.Second
	)
	// play returns a run that is made when it is asked for, once.
	play := func(requests int, edit func(*Settings)) func() *Result {
		return sync.OnceValue(func() *Result {
			s := ragRun(t, route.Cost, requests)
			s.CurveStep = 50 * time.Second
			edit(&s)
			r, err := Run(s)
			if err != nil {
				t.Error(err)
				return nil
			}
			r.Curve = r.Curve[:len(r.Curve)-1] // the last point may be a fragment
			return r
		})
	}
	f := func(name string, requests int, edit func(*Settings), knowing func() *Result) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, want := play(requests, edit)(), knowing()
			if got == nil || want == nil {
				t.FailNow()
			}
			end := len(got.Curve)
			hit, ttft := window(got, end-points, end)
			wantHit, wantTTFT := window(want, end-points, end)
			t.Logf("wrong:%s", curve(got))
			t.Logf("as if it knew:%s", curve(want))
			t.Logf("at the end hit rate %.4f, mean TTFT %v; want about %.4f and %v", hit, ttft, wantHit, wantTTFT)
			if hit < 0.9*wantHit || hit > 1.1*wantHit {
				t.Errorf("hit rate %g does not return to %g", hit, wantHit)
			}
			if ttft > wantTTFT*11/10 {
				t.Errorf("mean TTFT %v does not return to %v", ttft, wantTTFT)
			}
			if got.SuccessRate < 0.999 {
				t.Errorf("success rate %g", got.SuccessRate)
			}
		})
	}
	roomy := func(s *Settings) { s.KVTokens = 120_000 }
	knowing := play(short, func(*Settings) {})
	// Whoever believes too little tries too little, so this takes the longest.
	f("told a quarter", long, func(s *Settings) { roomy(s); s.Assumed = 0.25 }, play(long, roomy))
	f("told four times", short, func(s *Settings) { s.Assumed = 4 }, knowing)
	f("told nothing", short, func(s *Settings) { s.Assumed = 0 }, knowing)
	f("one engine restarts", short, func(s *Settings) {
		s.Events = []Event{{At: fault, Instance: 2, Restart: true, Down: 2 * time.Second}}
	}, knowing)
	f("all caches halved", short, func(s *Settings) {
		for i := range s.Profiles {
			s.Events = append(s.Events, Event{At: fault, Instance: i, KVTokens: s.KVTokens / 2})
		}
	}, play(short, func(s *Settings) { s.KVTokens /= 2 }))
}

// A restart kills what runs; requests without a first token go elsewhere and nobody notices.
func TestRestartIsRetried(t *testing.T) {
	s := ragRun(t, route.RoundRobin, 1200)
	for i := range 5 {
		s.Events = append(s.Events, Event{At: time.Duration(5+10*i) * time.Second, Instance: i, Restart: true, Down: time.Second})
	}
	r := run(t, s)
	if r.SuccessRate == 1 || r.SuccessRate < 0.93 {
		t.Errorf("success rate %g; want most to succeed, and those to fail that lost a stream", r.SuccessRate)
	}
	calm := run(t, ragRun(t, route.RoundRobin, 1200))
	if r.HitRate.Actual >= calm.HitRate.Actual {
		t.Errorf("hit rate %g with restarts, %g without", r.HitRate.Actual, calm.HitRate.Actual)
	}
}

func TestRunRefusesBadSettings(t *testing.T) {
	f := func(want string, edit func(*Settings)) {
		t.Helper()
		s := ragRun(t, route.Cost, 10)
		edit(&s)
		if _, err := Run(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v; want one about %q", err, want)
		}
	}
	f("no workload", func(s *Settings) { s.Workload = nil })
	f("no instances", func(s *Settings) { s.Profiles = nil })
	f("assumed capacity", func(s *Settings) { s.Assumed = -1 })
	f("instance 7 of 7", func(s *Settings) { s.Events = []Event{{Instance: 7}} })
	f("find policy", func(s *Settings) { s.Policy = "best" })
	if _, err := Fleet("abacus", 1); err == nil {
		t.Error("an unknown engine is no error")
	}
}

func BenchmarkRun(b *testing.B) {
	profiles, err := Fleet("llama-3.1-70b-8xh100", 100)
	if err != nil {
		b.Fatal(err)
	}
	s := Settings{
		Policy: route.Cost, Route: route.Default(), Seed: 1, Profiles: profiles, KVTokens: 250_000, Assumed: 1,
		Workload: RAG{Requests: 20_000, Rate: 300, Prefixes: 2000, PrefixTokens: 8000, Zipf: 0.8, Tail: Between(50, 250), Output: Between(50, 150)},
	}
	for b.Loop() {
		if _, err := Run(s); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/20_000, "us/request")
}
