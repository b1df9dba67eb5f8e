package proxy

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/index"
	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/internal/testkit"
	"github.com/warmroute/warmroute/prefix"
)

// told is what a shadow has told, by arm.
type told struct {
	requests, prompt, cached map[string]int
	ttft                     map[string]time.Duration
	skipped                  int
	windows                  []route.Window
}

// shadowed gives the rig's pool a shadow of the named policies.
func shadowed(t testing.TB, got *told, sample float64, policies ...route.Policy) func(*setup) {
	t.Helper()
	got.requests, got.prompt, got.cached, got.ttft = map[string]int{}, map[string]int{}, map[string]int{}, map[string]time.Duration{}
	return func(s *setup) {
		s.deps = func(d *Deps) {
			cfg := ShadowConfig{
				Index: d.Index, Memory: 4 << 20, Sample: sample, Log: d.Log,
				Predicted: func(arm string, ttft time.Duration, prompt, cached int) {
					got.requests[arm]++
					got.ttft[arm] += ttft
					got.prompt[arm] += prompt
					got.cached[arm] += cached
				},
				Skipped: func() { got.skipped++ },
				Window:  func(w route.Window) { got.windows = append(got.windows, w) },
			}
			for _, p := range policies {
				cfg.Arms = append(cfg.Arms, ShadowArm{p.Name(), p})
			}
			shadow, live := NewShadow(cfg), policyOf(t, s.policy)
			d.Rule = func(*fleet.Pool) Rule { return Rule{Policy: live, Shadow: shadow} }
		}
	}
}

func policyOf(t testing.TB, name string) route.Policy {
	t.Helper()
	p, err := route.New(name, route.Default())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A conversation's prompt of which each request repeats all but the last words.
func repeated(i int) string { return strings.Repeat("all work and no play ", 400) + fmt.Sprint(i) }

func TestShadow_Predicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got told
		silent := always(testkit.Act{Usage: `{"prompt_tokens":2100,"completion_tokens":3,"total_tokens":2103}`})
		r := newRig(t, 3, silent, shadowed(t, &got, 1, policyOf(t, route.Cost), policyOf(t, route.RoundRobin)))
		for i := range 9 {
			if a := r.post(chatPath, chat(repeated(i), true)); a.status != 200 {
				t.Fatalf("status %d: %s", a.status, a.body)
			}
			time.Sleep(10 * time.Second)
		}
		r.idle()
		for _, arm := range []string{route.Cost, route.RoundRobin} {
			if got.requests[arm] != 9 || got.prompt[arm] < 9*1500 {
				t.Errorf("%s: told of %d requests with %d tokens; want 9", arm, got.requests[arm], got.prompt[arm])
			}
		}
		// Cost computes the prompt once, round robin on each of the three instances.
		f := func(arm string, misses float64) {
			t.Helper()
			if hit, want := float64(got.cached[arm])/float64(got.prompt[arm]), (9-misses)/9; hit < want-.05 || hit > want {
				t.Errorf("%s: predicted hit rate %.2f; want about %.2f", arm, hit, want)
			}
		}
		f(route.Cost, 1)
		f(route.RoundRobin, 3)
		if got.ttft[route.Cost] >= got.ttft[route.RoundRobin] {
			t.Errorf("predicted times to first token: cost %s, round robin %s", got.ttft[route.Cost], got.ttft[route.RoundRobin])
		}
	})
}

// What engines report about their caches is true of imagined ones too: here they
// are emptied all the time.
func TestShadow_FollowsFlushes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got told
		r := newRig(t, 1, shadowed(t, &got, 1, policyOf(t, route.Cost)))
		for i := range 9 {
			r.post(chatPath, chat(repeated(i), true)) // "nothing was cached"
			time.Sleep(shadowRefresh)
		}
		if hit := float64(got.cached[route.Cost]) / float64(got.prompt[route.Cost]); hit > .3 {
			t.Errorf("predicted hit rate %.2f on an engine that forgets everything", hit)
		}
	})
}

// Minutes are told with what was predicted and what happened.
func TestShadow_Windows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got told
		r := newRig(t, 2, shadowed(t, &got, 1, policyOf(t, route.Cost), policyOf(t, route.Random)))
		for i := range 13 {
			r.post(chatPath, chat(repeated(i), i != 5)) // one does not stream
			time.Sleep(10 * time.Second)
		}
		r.idle()
		if len(got.windows) != 2 {
			t.Fatalf("%d windows in 130 s; want 2", len(got.windows))
		}
		w := got.windows[0]
		if len(w.Arms) != 2 || w.Arms[0].Name != route.Cost || w.Arms[1].Name != route.Random {
			t.Fatalf("arms %+v", w.Arms)
		}
		for _, a := range w.Arms {
			if a.Requests != 6 || a.TTFT <= 0 {
				t.Errorf("first window of %s: %+v; want 6 requests", a.Name, a.Evidence)
			}
		}
		if w.Actual.Requests != 5 {
			t.Errorf("actual: %+v; want 5 requests with a first token", w.Actual)
		}
		if n := got.windows[1].Actual.Requests; n != 6 {
			t.Errorf("second window: %d requests; want 6", n)
		}
	})
}

// What shadows think changes nothing about where requests go.
func TestShadow_TouchesNothing(t *testing.T) {
	places := func(edit ...func(*setup)) (names []string) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 4, append(edit, func(s *setup) { s.policy = route.RoundRobin })...)
			for i := range 12 {
				r.post(chatPath, chat(repeated(i%3), true))
				names = append(names, r.last().Instance)
			}
			r.idle()
		})
		return names
	}
	var got told
	with, without := places(shadowed(t, &got, 1, policyOf(t, route.Cost), policyOf(t, route.PrefixHash))), places()
	if fmt.Sprint(with) != fmt.Sprint(without) || got.requests[route.Cost] != 12 {
		t.Errorf("with shadows %v, without %v; shadows saw %v", with, without, got.requests)
	}
}

// mistaken is a policy with a mistake.
type mistaken struct{}

func (mistaken) Name() string                                                { return "mistaken" }
func (mistaken) Choose(*route.Request, []route.Candidate) (d route.Decision) { panic("oops") }

func TestShadow_PanicHurtsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got told
		r := newRig(t, 2, shadowed(t, &got, 1, policyOf(t, route.Cost), mistaken{}))
		for i := range 3 {
			if a := r.post(chatPath, chat(repeated(i), true)); a.status != 200 {
				t.Errorf("status %d: %s", a.status, a.body)
			}
		}
		r.idle()
		if n := strings.Count(r.log.String(), "BUG: panic in a shadow policy"); n != 1 {
			t.Errorf("%d lines about the panic; want 1:\n%s", n, r.log)
		}
		if got.requests[route.Cost] != 1 {
			t.Errorf("told %d times; want once, before it was turned off", got.requests[route.Cost])
		}
	})
}

// What never had an answer leaves nothing in the imagined caches.
func TestShadow_FailedRequestsLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got told
		fails := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
		r := newRig(t, 1, shadowed(t, &got, 1, policyOf(t, route.Cost)), func(s *setup) { s.handlers = map[int]http.Handler{0: fails} })
		for range 3 {
			r.post(chatPath, chat(repeated(0), true))
		}
		if got.requests[route.Cost] == 0 || got.cached[route.Cost] != 0 {
			t.Errorf("told of %d requests with %d cached tokens; want some requests, and nothing cached", got.requests[route.Cost], got.cached[route.Cost])
		}
	})
}

func TestShadow_Samples(t *testing.T) {
	s := NewShadow(ShadowConfig{Index: index.New(index.Config{}), Sample: .25})
	kept, split := 0, 0
	for i := range uint64(4000) {
		draw := route.Hash(fmt.Sprint("draw", i))
		if s.samples(&route.Request{Draw: draw}) {
			kept++
		}
		session := route.Hash(fmt.Sprint("session", i))
		if s.samples(&route.Request{Session: session, Draw: draw}) != s.samples(&route.Request{Session: session, Draw: draw ^ 1<<63}) {
			split++
		}
	}
	if kept < 900 || kept > 1100 || split > 0 {
		t.Errorf("%d of 4000 requests kept, %d sessions split; want about 1000, and none", kept, split)
	}
}

// BenchmarkShadow is what one request costs under two arms: the prompt has 8,000
// tokens, and there are 64 instances.
func BenchmarkShadow(b *testing.B) {
	r := newRig(b, 64)
	pool, _ := r.fleet.Pool("m")
	s := NewShadow(ShadowConfig{
		Arms:  []ShadowArm{{route.Cost, policyOf(b, route.Cost)}, {route.FewestRequests, policyOf(b, route.FewestRequests)}},
		Index: r.index, Memory: 16 << 20, Sample: 1, Log: slog.New(slog.DiscardHandler),
	})
	var orders [64]order
	for i := range orders {
		chain := make(prefix.Chain, 125)
		for j := range chain {
			chain[j] = prefix.Block(route.Hash(fmt.Sprint(i/2, j)))
		}
		orders[i] = order{req: route.Request{Tokens: 8000, Output: 200, Home: uint64(chain[0])}, chain: chain, perTok: 4, indexed: true}
	}
	record := Record{First: time.Now()}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		o := &orders[i%len(orders)]
		s.watch(pool, o, 256).end(&record, o.chain)
	}
}
