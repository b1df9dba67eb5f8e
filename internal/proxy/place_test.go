package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/internal/testkit"
)

// long is a text of about n tokens that begins with its name.
func long(name string, n int) string { return name + strings.Repeat(" abc", n) }

// burst sends all bodies at once and returns how many each engine got.
func (r *rig) burst(bodies ...string) []int {
	r.t.Helper()
	before := make([]int, len(r.engines))
	for i := range r.engines {
		before[i] = r.calls(i)
	}
	var wg sync.WaitGroup
	for _, body := range bodies {
		wg.Go(func() {
			if a := r.post(chatPath, body); a.status != 200 {
				r.t.Errorf("got %d %s", a.status, a.body)
			}
		})
	}
	wg.Wait()
	got := make([]int, len(r.engines))
	for i := range r.engines {
		got[i] = r.calls(i) - before[i]
	}
	return got
}

// prompts makes n bodies.
func prompts(n int, text func(i int) string) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = chat(text(i), true)
	}
	return list
}

func TestBurstWithoutMatchSpreads(t *testing.T) { // A1
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 5, always(testkit.Act{Before: time.Second}))
		got := r.burst(prompts(50, func(i int) string { return long(fmt.Sprint("question ", i), 200) })...)
		if slices.Max(got) > 15 || slices.Min(got) < 5 {
			t.Errorf("50 requests went %v; want about 10 each", got)
		}
		r.idle()
	})
}

func TestBurstSeesItself(t *testing.T) { // A2
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, always(testkit.Act{Before: time.Second, Tokens: 1}))
		got := r.burst(prompts(16, func(i int) string { return long(fmt.Sprint("document ", i), 32_000) })...)
		if slices.Max(got) > 6 || slices.Min(got) < 2 {
			t.Errorf("16 long requests went %v; want about 4 each", got)
		}
		r.idle()
	})
}

func TestSharedSystemPromptUsesAll(t *testing.T) { // A5
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, always(testkit.Act{Before: 200 * time.Millisecond, Gap: 50 * time.Millisecond, Tokens: 4}))
		system := long("You are a helpful assistant.", 500)
		total := make([]int, 4)
		for round := range 5 {
			got := r.burst(prompts(200, func(i int) string { return system + long(fmt.Sprint(round, " ", i), 100) })...)
			for i, n := range got {
				total[i] += n
			}
		}
		if slices.Min(total) < 100 {
			t.Errorf("1000 requests went %v; want all to be used", total)
		}
		r.idle()
	})
}

func TestSiblingsStayTogether(t *testing.T) { // A11
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8, always(testkit.Act{Before: 300 * time.Millisecond}), func(s *setup) {
			s.instance = func(_ int, c *fleet.InstanceConfig) { c.Profile = "llama-3.1-70b-8xh100" }
		})
		prefix := long("a new document", 8000)
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 6 * time.Millisecond)
				r.post(chatPath, chat(prefix+fmt.Sprint(" question ", i), true))
			})
		}
		wg.Wait()
		blind, used := 0, 0
		for _, rec := range r.books.records {
			if rec.AvailableTokens < 7800 {
				blind++
			}
		}
		for i := range r.engines {
			if r.calls(i) > 0 {
				used++
			}
		}
		if blind != 1 {
			t.Errorf("%d siblings did not see that an instance has their beginning; want the first only", blind)
		}
		if used > 2 {
			t.Errorf("16 siblings went to %d instances; want 1 or 2", used)
		}
		r.idle()
	})
}

func TestConversationStaysWhileOthersSpread(t *testing.T) { // A9
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, always(testkit.Act{Before: 200 * time.Millisecond, Gap: 20 * time.Millisecond}))
		home := ""
		talk := long("conversation", 1000)
		for turn := range 10 {
			a := r.post(chatPath, chat(talk, true))
			if h := a.header.Get(instanceHeader); home == "" {
				home = h
			} else if h != home {
				t.Errorf("turn %d went to %s; want %s", turn, h, home)
			}
			talk += long(fmt.Sprint(" turn ", turn), 200)
			r.post(chatPath, chat(long(fmt.Sprint("unrelated ", turn), 1000), true))
			time.Sleep(time.Second)
		}
		used := 0
		for i := range r.engines {
			if r.calls(i) > 0 {
				used++
			}
		}
		if used != 4 {
			t.Errorf("%d instances were used; want 4", used)
		}
	})
}

func TestNewInstanceGetsTraffic(t *testing.T) { // A10
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, always(testkit.Act{Before: 50 * time.Millisecond, Gap: 20 * time.Millisecond}), func(s *setup) {
			s.pool = func(p *fleet.PoolConfig) { p.Instances = p.Instances[:2] }
		})
		for i := range 20 {
			r.post(chatPath, chat(long(fmt.Sprint("before ", i), 500), true))
		}
		r.setup.pool = nil
		if err := r.fleet.Apply(r.pools(r.setup)); err != nil {
			t.Fatal(err)
		}
		for i := range 6 {
			r.post(chatPath, chat(long(fmt.Sprint("after ", i), 500), true))
		}
		if n := r.calls(2); n < 2 {
			t.Errorf("the new instance got %d of 6 requests; want its share", n)
		}
	})
}

func TestSessionsYieldToLoad(t *testing.T) { // A12
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, always(testkit.Act{Before: time.Second}), func(s *setup) { s.policy = route.Session })
		home := r.post(chatPath, chat("first", true), "X-Session-Id", "s1").header.Get(instanceHeader)
		for range 3 {
			if h := r.post(chatPath, chat("again", true), "X-Session-Id", "s1").header.Get(instanceHeader); h != home {
				t.Errorf("the session went to %s; want %s", h, home)
			}
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		seen := map[string]int{}
		for range 64 {
			wg.Go(func() {
				h := r.post(chatPath, chat("burst", true), "X-Session-Id", "s1").header.Get(instanceHeader)
				mu.Lock()
				seen[h]++
				mu.Unlock()
			})
		}
		wg.Wait()
		if len(seen) < 2 || slices.Max([]int{seen["e0"], seen["e1"], seen["e2"], seen["e3"]}) > 48 {
			t.Errorf("64 requests of one session went %v; want its instance to overflow", seen)
		}
	})
}

func TestPrefixHashPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, func(s *setup) { s.policy, s.headChars = route.PrefixHash, 20 })
		homes := map[string]bool{}
		for i := range 12 {
			a := r.post(chatPath, chat("exactly twenty chars!"+fmt.Sprint(i), true))
			homes[a.header.Get(instanceHeader)] = true
			if reason := a.header.Get(reasonHeader); reason != "hash" {
				t.Errorf("reason %q; want hash", reason)
			}
		}
		if len(homes) != 1 {
			t.Errorf("one key went to %v", homes)
		}
		for i := range 40 {
			homes[r.post(chatPath, chat(fmt.Sprint(i, " begins differently"), true)).header.Get(instanceHeader)] = true
		}
		if len(homes) != 4 {
			t.Errorf("40 keys went to %v; want all", homes)
		}
	})
}

// held starts requests at the given times, in milliseconds, and returns when
// each was dispatched.
func (r *rig) timeline(bodies map[int]string) map[int]Record {
	var wg sync.WaitGroup
	for at, body := range bodies {
		wg.Go(func() {
			time.Sleep(time.Duration(at) * time.Millisecond)
			r.post(chatPath, body, "X-Request-Id", strconv.Itoa(at))
		})
	}
	wg.Wait()
	synctest.Wait()
	out := make(map[int]Record)
	for _, rec := range r.books.records {
		if at, err := strconv.Atoi(rec.ID); err == nil {
			out[at] = rec
		}
	}
	return out
}

func TestLateBinding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, always(testkit.Act{Before: time.Second, Gap: 0}))
		got := r.timeline(map[int]string{
			0:   chat(long("one", 12_000), true), // fills the step until its first token at 1 s
			100: chat(long("two", 12_000), true), // waits for that, and for the next
			200: chat(long("mid", 4_000), true),  // waits too, but passes: it is shorter
		})
		for at, held := range map[int]time.Duration{0: 0, 100: 1900 * time.Millisecond, 200: 800 * time.Millisecond} {
			if rec := got[at]; rec.Held != held || rec.Attempts != 1 {
				t.Errorf("request %d was held %v; want %v: %+v", at, rec.Held, held, rec)
			}
		}
		if got[100].Overhead != 0 {
			t.Errorf("overhead %v; want none but the time held", got[100].Overhead)
		}
		r.idle()
	})
	// Nothing comes free: the hold ends after two seconds.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, always(testkit.Act{Before: 20 * time.Second}))
		got := r.timeline(map[int]string{0: chat(long("one", 12_000), true), 100: chat(long("two", 12_000), true)})
		if rec := got[100]; rec.Held != 2*time.Second || rec.Status != 200 {
			t.Errorf("held %v; want 2s: %+v", rec.Held, rec)
		}
		r.idle()
	})
	// The choice is made again: what comes free takes it.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		r.engines[0].Then = testkit.Act{Before: time.Second}
		r.engines[1].Then = testkit.Act{Before: 1500 * time.Millisecond}
		got := r.timeline(map[int]string{
			0: chat(long("one", 12_000), true), 1: chat(long("two", 12_000), true), 100: chat(long("three", 12_000), true),
		})
		if rec := got[100]; rec.Held > 901*time.Millisecond || rec.Instance != "e0" {
			t.Errorf("held %v, then on %s; want 900ms on the one that came free: %+v", rec.Held, rec.Instance, rec)
		}
		r.idle()
	})
}

// TestWholeAnswersAreNotPrefillForEver has long answers that do not stream: they
// must not look like prompts that are still being read.
func TestWholeAnswersAreNotPrefillForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, always(testkit.Act{Before: 30 * time.Second}))
		bodies := map[int]string{}
		for i := range 10 {
			bodies[2000*i] = chat(long(fmt.Sprint("document ", i), 6000), false)
		}
		for at, rec := range r.timeline(bodies) {
			if rec.Held > 0 || rec.Status != 200 {
				t.Errorf("request %d: %d, held %v; want it sent at once", at, rec.Status, rec.Held)
			}
		}
		r.idle()
	})
}

func TestQueue(t *testing.T) {
	one := func(s *setup) {
		s.instance = func(_ int, c *fleet.InstanceConfig) { c.MaxInflight = 1 }
		s.proxy.QueueLength = 2
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, one, always(testkit.Act{Before: 3 * time.Second}))
		got := r.timeline(map[int]string{0: chat("a", true), 10: chat("b", true), 20: chat("c", true), 30: chat("d", true)})
		for at, want := range map[int]struct {
			status int
			held   time.Duration
		}{0: {200, 0}, 10: {200, 2990 * time.Millisecond}, 20: {200, 5980 * time.Millisecond}, 30: {429, 0}} {
			if rec := got[at]; rec.Status != want.status || rec.Held != want.held {
				t.Errorf("request %d: %d, held %v; want %d, %v", at, rec.Status, rec.Held, want.status, want.held)
			}
		}
		if rec := got[30]; rec.Outcome() != "capacity" || rec.Reason != "all_full" {
			t.Errorf("recorded %+v", rec)
		}
		r.idle()
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, one, always(testkit.Act{Before: 25 * time.Second}))
		got := r.timeline(map[int]string{0: chat("a", true), 10: chat("b", true)})
		if rec := got[10]; rec.Status != 429 || rec.Held != 10*time.Second {
			t.Errorf("got %d after %v; want 429 after queue_time, 10s", rec.Status, rec.Held)
		}
		r.idle()
	})
}

func TestRefusalAsksToComeBack(t *testing.T) { // T29
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, always(testkit.Act{Before: 25 * time.Second}), func(s *setup) {
			s.instance = func(_ int, c *fleet.InstanceConfig) { c.MaxInflight = 1 }
			s.proxy.QueueTime = 0
		})
		go r.post(chatPath, chat("a", true))
		time.Sleep(time.Second)
		a := r.post(chatPath, chat("b", true))
		if e := errorOf(t, a.body); a.status != 429 || e.Code != "overloaded" || e.Type != "rate_limit_error" || a.header.Get("Retry-After") == "" {
			t.Errorf("got %d %+v, Retry-After %q", a.status, e, a.header.Get("Retry-After"))
		}
		time.Sleep(time.Minute)
	})
}

func TestOverloadIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, always(testkit.Act{Before: time.Minute}), func(s *setup) {
			s.route.TTFTBudget, s.route.MaxHold = time.Second, 0
		})
		go r.post(chatPath, chat(long("a", 30_000), true))
		time.Sleep(time.Second)
		a := r.post(chatPath, chat(long("b", 30_000), true))
		if e := errorOf(t, a.body); a.status != 429 || e.Code != "overloaded" || a.header.Get("Retry-After") == "" {
			t.Errorf("got %d %+v, Retry-After %q", a.status, e, a.header.Get("Retry-After"))
		}
		if rec := r.last(); rec.Reason != "overload" || rec.Outcome() != "capacity" || rec.Attempts != 0 {
			t.Errorf("recorded %+v", rec)
		}
		time.Sleep(2 * time.Minute)
		r.idle()
	})
}

func TestClientGoneWhileHeld(t *testing.T) { // T01
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, always(testkit.Act{Before: 5 * time.Second}), func(s *setup) {
			s.instance = func(_ int, c *fleet.InstanceConfig) { c.MaxInflight = 1 }
		})
		go r.post(chatPath, chat("a", true))
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.client.Do(r.request(chatPath, chat("b", true)).WithContext(ctx)); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
		rec := r.last()
		if rec.Status != StatusClientGone || rec.Held != time.Second || rec.Attempts != 0 || rec.Outcome() != "client_gone" {
			t.Errorf("recorded %+v", rec)
		}
		if n := r.gateway.Held(); n != 0 {
			t.Errorf("%d are held; want 0 at once", n)
		}
		time.Sleep(10 * time.Second)
		if n := r.calls(0); n != 1 {
			t.Errorf("the engine got %d requests; want 1", n)
		}
		r.idle()
	})
}

func TestHeldRequestSeesANewInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, always(testkit.Act{Before: 5 * time.Second}), func(s *setup) {
			s.pool = func(p *fleet.PoolConfig) { p.Instances = p.Instances[:1] }
			s.instance = func(_ int, c *fleet.InstanceConfig) { c.MaxInflight = 1 }
		})
		go r.post(chatPath, chat("a", true))
		time.Sleep(time.Second)
		go r.post(chatPath, chat("b", true), "X-Request-Id", "b")
		time.Sleep(100 * time.Millisecond)
		r.setup.pool = nil
		if err := r.fleet.Apply(r.pools(r.setup)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if rec := r.last(); rec.ID != "b" || rec.Instance != "e1" || rec.Held > 500*time.Millisecond {
			t.Errorf("recorded %+v; want it on the new instance", rec)
		}
		r.idle()
	})
}

func TestPauseEndsByTime(t *testing.T) {
	// One instance is full and one rests: a held request goes to the one that has
	// rested, though nothing happens at that moment.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, func(s *setup) { s.instance = func(_ int, c *fleet.InstanceConfig) { c.MaxInflight = 1 } })
		for _, e := range r.engines {
			e.Play(testkit.Busy("3"))
			e.Then = testkit.Act{Before: 30 * time.Second}
		}
		r.engines[0].Play()
		got := r.timeline(map[int]string{0: chat("a", true), 10: chat("b", true), 20: chat("c", true)})
		for _, at := range []int{0, 10, 20} {
			if rec := got[at]; rec.Status != 200 && rec.Status != 429 {
				t.Errorf("request %d: %+v", at, rec)
			}
		}
		served := 0
		for _, rec := range got {
			if rec.Status == 200 {
				served++
			}
		}
		if served < 2 {
			t.Errorf("%d of 3 were served; want both instances used", served)
		}
		r.idle()
	})
}

type failingBody struct{ io.ReadCloser }

func (b failingBody) Close() error {
	_ = b.ReadCloser.Close()
	return errors.New("close failed")
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestFailingCloseReturnsTheLease(t *testing.T) { // A14
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, func(s *setup) {
			s.transport = func(rt http.RoundTripper) http.RoundTripper {
				return roundTripper(func(req *http.Request) (*http.Response, error) {
					resp, err := rt.RoundTrip(req)
					if err == nil {
						resp.Body = failingBody{resp.Body}
					}
					return resp, err
				})
			}
		})
		for _, stream := range []bool{true, false} {
			if a := r.post(chatPath, chat("x", stream)); a.status != 200 {
				t.Errorf("got %d", a.status)
			}
		}
		r.engines[0].Play(status(400))
		r.post(chatPath, chat("x", true))
		r.idle()
	})
}

func TestResponsesGoOnWhereTheyBegan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n++
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"id":"resp_%d","object":"response","status":"completed","output":[]}`, n)
		})
		r := newRig(t, 4, served(h, h, h, h), func(s *setup) { s.policy = route.RoundRobin })
		first := r.post("/v1/responses", `{"model":"m","input":"one"}`)
		home := first.header.Get(instanceHeader)
		for range 6 {
			a := r.post("/v1/responses", `{"model":"m","input":"two","previous_response_id":"resp_1"}`)
			if got := a.header.Get(instanceHeader); got != home {
				t.Errorf("went on at %s; want %s", got, home)
			}
		}
		seen := map[string]bool{}
		for range 8 {
			seen[r.post("/v1/responses", `{"model":"m","input":"x","previous_response_id":"unheard of"}`).header.Get(instanceHeader)] = true
		}
		if len(seen) != 4 {
			t.Errorf("unknown responses went to %v; want all", seen)
		}
	})
}
