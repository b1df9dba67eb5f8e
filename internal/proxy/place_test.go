package proxy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
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

func TestHotInstanceLeavesTheOthersAlone(t *testing.T) { // A3
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, always(testkit.Act{Before: 50 * time.Millisecond, Gap: 10 * time.Millisecond}))
		homes := map[int]string{}
		document := func(i int) string { return chat(long(fmt.Sprint("document ", i), 2000), true) }
		for i := range 8 {
			homes[i] = r.post(chatPath, document(i)).header.Get(instanceHeader)
		}
		hot, busy := 0, homes[0]
		for _, e := range r.engines {
			e.Then = testkit.Act{Before: 50 * time.Millisecond, Gap: 200 * time.Millisecond, Tokens: 50}
		}
		for range 30 {
			go r.post(chatPath, document(hot))
		}
		time.Sleep(time.Second)
		for i := range 8 {
			if homes[i] == busy {
				continue
			}
			if got := r.post(chatPath, document(i)).header.Get(instanceHeader); got != homes[i] {
				t.Errorf("document %d went to %s; want %s, though %s is hot", i, got, homes[i], busy)
			}
		}
		time.Sleep(time.Minute)
		r.idle()
	})
}

func TestDeadInstanceLeavesTheBalanceAlone(t *testing.T) { // A4
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, always(testkit.Act{Before: time.Second}))
		r.net.Serve(t, "e3:8000", r.engines[3])()
		for i := range 12 { // until its breaker is open
			r.post(chatPath, chat(long(fmt.Sprint("warm up ", i), 200), true))
		}
		got := r.burst(prompts(30, func(i int) string { return long(fmt.Sprint("question ", i), 200) })...)
		if slices.Max(got) > 14 || slices.Min(got[:3]) < 6 || got[3] != 0 {
			t.Errorf("30 requests went %v; want about 10 to each that lives", got)
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

// TestPrefixHashWithoutText places prompts that have no characters by their chain: one key for all of them would pin them all.
func TestPrefixHashWithoutText(t *testing.T) { // A36
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, func(s *setup) { s.policy, s.headChars = route.PrefixHash, 20 })
		homes := map[string]bool{}
		for i := range 40 {
			ids := strings.Repeat(fmt.Sprintf("%d,", 1000+i), 400)
			body := fmt.Sprintf(`{"model":"m","stream":true,"prompt":[%s1]}`, ids)
			first := r.post("/v1/completions", body).header.Get(instanceHeader)
			if again := r.post("/v1/completions", body).header.Get(instanceHeader); again != first {
				t.Errorf("one prompt of token ids went to %s and %s", first, again)
			}
			homes[first] = true
		}
		if len(homes) != 4 {
			t.Errorf("40 prompts of token ids went to %v; want all", homes)
		}
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
