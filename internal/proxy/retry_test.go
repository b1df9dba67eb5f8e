package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/testkit"
)

// always makes every engine do the same for ever.
func always(act testkit.Act) func(*setup) {
	return func(s *setup) {
		for _, e := range s.engines {
			e.Then = act
		}
	}
}

func status(code int, header ...string) testkit.Act {
	a := testkit.Act{Status: code, Body: fmt.Sprintf(`{"error":{"message":"status %d","type":"t","code":"c%d"}}`, code, code), Header: http.Header{}}
	for i := 0; i+1 < len(header); i += 2 {
		a.Header.Set(header[i], header[i+1])
	}
	return a
}

// TestFaultClasses has the rows of the table of that name in the semantics: one
// fault, and then a good answer elsewhere.
func TestFaultClasses(t *testing.T) { // A38, T49
	f := func(name string, act testkit.Act, class string, retried bool) {
		t.Helper()
		for _, stream := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				asked := 0
				bad, good := testkit.NewEngine(), testkit.NewEngine()
				bad.Then = act
				h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					mu.Lock()
					asked++
					first := asked == 1
					mu.Unlock()
					if first {
						bad.ServeHTTP(w, r)
					} else {
						good.ServeHTTP(w, r)
					}
				})
				r := newRig(t, 2, served(h, h))
				a := r.post(chatPath, chat("x", stream))
				rec := r.last()
				if retried && (a.status != 200 || rec.Attempts != 2 || len(rec.Tries) != 1 || rec.Tries[0].Class.String() != class) {
					t.Errorf("%s, stream %t: got %d, recorded %+v", name, stream, a.status, rec)
				}
				if !retried && (a.status != act.Status || a.body != act.Body || rec.Attempts != 1 || rec.Outcome() != class || rec.Status != act.Status) {
					t.Errorf("%s, stream %t: got %d %s, recorded %+v", name, stream, a.status, a.body, rec)
				}
				counted := uint64(0)
				for v := range r.fleet.All() {
					counted += v.Results[class]
					if v.Opened != 0 {
						t.Errorf("%s: a breaker opened", name)
					}
				}
				if counted != 1 {
					t.Errorf("%s: %d faults of class %s counted; want 1", name, counted, class)
				}
				r.idle()
			})
		}
	}
	for _, code := range []int{400, 404, 405, 409, 413, 415, 418, 422} {
		f(fmt.Sprint(code), status(code), "client", false)
	}
	for _, code := range []int{401, 402, 403} {
		f(fmt.Sprint(code), status(code), "credential", true)
	}
	for _, code := range []int{500, 502, 503, 504, 408} {
		f(fmt.Sprint(code), status(code), "transient", true)
	}
	f("429", status(429), "capacity", true)
	f("429 with a pause", testkit.Busy("7"), "capacity", true)
	f("529", status(529), "capacity", true)
	f("503 with a pause", status(503, "Retry-After", "3"), "capacity", true)
	f("throttling", status(400, "X-Amzn-Errortype", "ThrottlingException"), "capacity", true) // SageMaker
	f("reset", testkit.Act{Fate: testkit.ResetNow}, "transient", true)
	f("error in 200", testkit.ErrorIn200(), "transient", true)
	f("no JSON in 200", testkit.Act{Body: `{"choices":[`}, "transient", true)
}

func TestNobodyLeft(t *testing.T) {
	f := func(name string, act testkit.Act, want int, code, retryAfter string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 2, always(act))
			a := r.post(chatPath, chat("x", true))
			if e := errorOf(t, a.body); a.status != want || e.Code != code || a.header.Get("Retry-After") != retryAfter {
				t.Errorf("%s: got %d %+v, Retry-After %q; want %d %s %q", name, a.status, e, a.header.Get("Retry-After"), want, code, retryAfter)
			}
			if rec := r.last(); rec.Attempts != 2 || rec.Status != want {
				t.Errorf("%s: recorded %+v; want each instance asked once", name, rec)
			}
			r.idle()
		})
	}
	f("429", status(429), 429, "overloaded", "1")
	f("429 with a pause", testkit.Busy("7"), 429, "overloaded", "7")
	f("503 with a pause", status(503, "Retry-After", "9"), 503, "overloaded", "9")
	f("500", testkit.Broken(), 502, "upstream_error", "")
	f("504", status(504), 504, "upstream_timeout", "")
	f("credentials", status(401), 502, "upstream_credentials_exhausted", "") // never a misleading 401
	f("reset", testkit.Act{Fate: testkit.ResetNow}, 502, "upstream_error", "")

	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, always(status(403)))
		r.post(chatPath, chat("x", true))
		// Both credentials are known to be dead: nothing is sent any more.
		a := r.post(chatPath, chat("x", true))
		if e := errorOf(t, a.body); a.status != 502 || e.Code != "upstream_credentials_exhausted" {
			t.Errorf("got %d %+v", a.status, e)
		}
		if n := r.calls(0) + r.calls(1); n != 2 {
			t.Errorf("%d requests were sent; want 2", n)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, always(testkit.Busy("7")))
		r.post(chatPath, chat("x", true))
		time.Sleep(time.Second)
		a := r.post(chatPath, chat("x", true))
		if e := errorOf(t, a.body); a.status != 429 || e.Code != "overloaded" || a.header.Get("Retry-After") != "6" {
			t.Errorf("while all rest: got %d %+v, Retry-After %q; want 6", a.status, e, a.header.Get("Retry-After"))
		}
	})
}

func TestOneDeadInstanceIsInvisible(t *testing.T) { // A41
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3)
		stop := r.net.Serve(t, "e1:8000", r.engines[1])
		stop()
		for i := range 30 {
			if a := r.post(chatPath, chat(fmt.Sprintf("question %d", i), i%2 == 0)); a.status != 200 {
				t.Errorf("request %d: got %d %s", i, a.status, a.body)
			}
		}
		r.idle()
	})
}

func TestFailOpen(t *testing.T) { // T48
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, always(testkit.Broken()))
		for range 20 {
			r.post(chatPath, chat("x", true))
		}
		for _, e := range r.engines {
			e.Then = testkit.Act{}
		}
		a := r.post(chatPath, chat("x", false), explainHeader, "1")
		if rec := r.last(); a.status != 200 || !rec.FailOpen || !parseExplanation(t, a.header.Get(explanationHeader)).FailOpen {
			t.Errorf("with all breakers open: got %d, recorded %+v", a.status, rec)
		}
	})
}

func TestRetriesSwitchedOff(t *testing.T) { // A41
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, always(testkit.Broken()), func(s *setup) { s.proxy.Retries = 0 })
		if a := r.post(chatPath, chat("x", true)); a.status != 502 {
			t.Errorf("got %d", a.status)
		}
		if n := r.calls(0) + r.calls(1); n != 1 {
			t.Errorf("%d requests were sent; want 1", n)
		}
	})
}

func TestAttemptsAreBoundedAndElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 5, always(testkit.Broken()))
		r.post(chatPath, chat("x", true))
		total := 0
		for i := range r.engines {
			if n := r.calls(i); n > 1 {
				t.Errorf("engine %d was asked %d times", i, n)
			}
			total += r.calls(i)
		}
		if rec := r.last(); total != 3 || rec.Attempts != 3 || len(rec.Tries) != 2 {
			t.Errorf("%d requests were sent, recorded %+v; want 3", total, rec)
		}
	})
}

func TestRetryBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 500
		r := newRig(t, 4, always(testkit.Broken()), func(s *setup) {
			s.fleet.Breaker.Consecutive, s.fleet.Breaker.FailureRatio = 0, 0 // never opens
			s.proxy.RetryFloor = 0
		})
		for range n {
			r.post(chatPath, chat("x", true))
		}
		sent := 0
		for i := range r.engines {
			sent += r.calls(i)
		}
		if extra := sent - n; extra > n/5+retryBurst || extra < n/5-1 {
			t.Errorf("%d retries for %d requests; want 20 %% and at most %d more", extra, n, retryBurst)
		}
	})
}

func TestTTFTTimeout(t *testing.T) { // T06
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, always(testkit.Act{Fate: testkit.HangEarly}))
		began := time.Now()
		a := r.post(chatPath, chat("x", true))
		if e := errorOf(t, a.body); a.status != 504 || e.Code != "upstream_timeout" {
			t.Errorf("got %d %+v", a.status, e)
		}
		d := time.Since(began)
		if least := 2 * Default().TTFTTimeout; d < least || d > least+time.Second {
			t.Errorf("given up after %v; want both attempts' %v and some for the prompt", d, Default().TTFTTimeout)
		}
		rec := r.last()
		if rec.Cause != causeTTFT || rec.Outcome() != "transient" || rec.Attempts != 2 {
			t.Errorf("recorded %+v", rec)
		}
		r.idle()
		for i := range r.engines {
			if r.engines[i].Calls()[0].Gone.IsZero() {
				t.Errorf("engine %d was not told", i)
			}
		}
	})
	// Headers and a role are no content; a slow answer that does not stream is not
	// slow; more prompt has more time.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		slow := testkit.Act{Gap: 45 * time.Second, Tokens: 1}
		for _, e := range r.engines {
			e.Then = slow
		}
		if a := r.post(chatPath, chat("x", true)); a.status != 504 {
			t.Errorf("role, then nothing: got %d", a.status)
		}
		if a := r.post(chatPath, chat(strings.Repeat("x", 40<<10), true)); a.status != 200 {
			t.Errorf("10,000 tokens: got %d; want 20 s more for them", a.status)
		}
		for _, e := range r.engines {
			e.Then = testkit.Act{Before: 5 * time.Minute}
		}
		if a := r.post(chatPath, chat("x", false)); a.status != 200 {
			t.Errorf("a whole answer after 5 minutes: got %d", a.status)
		}
		r.idle()
	})
}

// TestHungInstanceIsLeft has the home of a prompt accept requests and never
// answer: another instance answers, and becomes the home.
func TestHungInstanceIsLeft(t *testing.T) { // T06
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		body := chat(long("document", 1000), true)
		home := r.post(chatPath, body).header.Get(instanceHeader)
		for i, e := range r.engines {
			if fmt.Sprint("e", i) == home {
				e.Then = testkit.Act{Fate: testkit.HangEarly}
			} else {
				e.Play(testkit.Act{})
				e.Then = testkit.Act{Cached: 950}
			}
		}
		for i := range 10 {
			want := 1
			if i == 0 {
				want = 2
			}
			a := r.post(chatPath, body)
			if rec := r.last(); a.status != 200 || rec.Instance == home || rec.Attempts != want {
				t.Errorf("request %d: got %d from %s after %d attempts; want 200 from another than %s after %d", i, a.status, rec.Instance, rec.Attempts, home, want)
			}
		}
		r.idle()
	})
}

// TestContentAtTheVeryMoment has the first content and its timeout come together:
// one of them wins, and the client gets all of an answer or a plain error.
func TestContentAtTheVeryMoment(t *testing.T) {
	for range 30 {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 1, always(testkit.Act{Before: 30 * time.Second}), func(s *setup) {
				s.proxy.TTFTTimeout, s.proxy.TTFTPer1K = 30*time.Second, 0
			})
			a := r.post(chatPath, chat("x", true))
			if a.err != nil || a.status != 504 && (a.status != 200 || !strings.HasSuffix(a.body, doneChunk)) {
				t.Errorf("got %d %q, %v", a.status, a.body, a.err)
			}
			r.idle()
		})
	}
}

func TestIdleBody(t *testing.T) { // T06
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, always(testkit.Act{Fate: testkit.Hang}))
		began := time.Now()
		a := r.post(chatPath, chat("x", true))
		if !strings.HasSuffix(a.body, string(incompleteEvent)) {
			t.Errorf("got %q", a.body)
		}
		if d := time.Since(began); d < 2*time.Minute || d > 2*time.Minute+time.Second {
			t.Errorf("given up after %v; want body_idle_timeout, 2m", d)
		}
		if rec := r.last(); rec.Outcome() != "truncated" || rec.Cause != "idle" {
			t.Errorf("recorded %+v", rec)
		}
		r.idle()
	})
}

func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, always(testkit.Act{Fate: testkit.HangEarly}), func(s *setup) { s.proxy.Deadline = 20 * time.Second })
		began := time.Now()
		a := r.post(chatPath, chat("x", true))
		if e := errorOf(t, a.body); a.status != 504 || e.Code != "upstream_timeout" || time.Since(began) != 20*time.Second {
			t.Errorf("got %d %+v after %v", a.status, e, time.Since(began))
		}
		if rec := r.last(); rec.Cause != causeDeadline || rec.Attempts != 1 {
			t.Errorf("recorded %+v", rec)
		}
		r.idle()
	})
}

func TestConcurrentRequestsDoNotTripBreakers(t *testing.T) { // A39
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4)
		for _, e := range r.engines {
			e.Then = testkit.Act{Before: time.Second, Gap: 10 * time.Millisecond}
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		seen := map[int]int{}
		for i := range 2048 {
			wg.Go(func() {
				a := r.post(chatPath, chat(fmt.Sprint("question ", i), true))
				mu.Lock()
				seen[a.status]++
				mu.Unlock()
			})
		}
		wg.Wait()
		if seen[200] != 2048 {
			t.Errorf("statuses %v; want 2048 of 200", seen)
		}
		for v := range r.fleet.All() {
			if v.Opened != 0 || v.Results["served"] < 256 {
				t.Errorf("%s: opened %d times, %v", v.Name, v.Opened, v.Results)
			}
		}
		r.idle()
	})
}

func TestBackPressureOpensNoBreaker(t *testing.T) { // A38, T45
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		for _, code := range []int{400, 404, 413, 422, 429} {
			r.engines[0].Play(status(code), status(code), status(code), status(code), status(code), status(code))
			for range 6 {
				r.post(chatPath, chat("x", false))
				time.Sleep(time.Second)
			}
		}
		for v := range r.fleet.All() {
			if v.Opened != 0 || v.Breaker != "closed" {
				t.Errorf("the breaker is %s after faults that are not the instance's", v.Breaker)
			}
		}
		if a := r.post(chatPath, chat("x", false)); a.status != 200 {
			t.Errorf("got %d", a.status)
		}
	})
}

// TestUpstreamAnswerIsExact has an error answer with everything that a client
// may want of it.
func TestUpstreamAnswerIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := "{\"error\" : {\"message\":\"context length é\"},\r\n \"n\":1.50}\n"
		r := newRig(t, 2, always(testkit.Act{Status: 400, Body: body, Header: http.Header{
			"X-Ratelimit-Remaining": {"7"}, "Set-Cookie": {"a=b"}, "Server": {"uvicorn"},
		}}))
		a := r.post(chatPath, chat("x", true))
		if a.status != 400 || a.body != body {
			t.Errorf("got %d %q; want 400 %q", a.status, a.body, body)
		}
		if a.header.Get("X-Ratelimit-Remaining") != "7" || a.header.Get("Set-Cookie") != "" || a.header.Get("Server") != "" {
			t.Errorf("headers %v", a.header)
		}
	})
}

func TestSecretsStayInside(t *testing.T) { // T55
	synctest.Test(t, func(t *testing.T) {
		const key = "sk-e0-verysecretkey"
		leak := fmt.Sprintf(`{"error":{"message":"bad key %s"}}`, key)
		f := func(act testkit.Act, stream bool) {
			t.Helper()
			r := newRig(t, 1, always(act))
			a := r.post(chatPath, chat("x", stream), "X-Warmroute-Explain", "1")
			seen := a.body + fmt.Sprint(a.header, a.trailer) + r.log.String() + fmt.Sprintf("%+v", r.last())
			if strings.Contains(seen, key) {
				t.Errorf("the key came out: %s", seen)
			}
		}
		f(testkit.Act{Status: 400, Body: leak}, false)
		f(testkit.Act{Status: 401, Body: leak}, false)
		f(testkit.Act{Status: 500, Body: leak}, true)
		f(testkit.Act{FirstEvent: leak, Body: leak}, true)
	})
}

func TestSameRequestSameBytes(t *testing.T) { // T39
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, func(s *setup) {
			s.pool = func(p *fleet.PoolConfig) { p.Aliases, p.UpstreamModel = []string{"alias"}, "upstream-name" }
		})
		const body = `{"tools":[{"type":"function","function":{"parameters":{"z":1,"a":{"y":2,"b":[3,1.0,2e5]}},"name":"f"}}],` +
			`"stream":true, "model":"alias","messages":[{"content":"h\u00e9","role":"user"}],"seed":1e3}`
		const want = `{"tools":[{"type":"function","function":{"parameters":{"z":1,"a":{"y":2,"b":[3,1.0,2e5]}},"name":"f"}}],` +
			`"stream":true, "model":"upstream-name","messages":[{"content":"h\u00e9","role":"user"}],"seed":1e3,"stream_options":{"include_usage":true}}`
		for range 100 {
			if a := r.post(chatPath, body); a.status != 200 {
				t.Fatalf("got %d", a.status)
			}
		}
		n := 0
		for _, e := range r.engines {
			for _, c := range e.Calls() {
				n++
				if string(c.Body) != want {
					t.Fatalf("an engine got %s; want %s", c.Body, want)
				}
			}
		}
		if n != 100 {
			t.Errorf("%d requests arrived; want 100", n)
		}
	})
}

func TestForwardedHeaders(t *testing.T) { // T56
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		a := r.post(chatPath, chat("x", false), "Authorization", "Bearer client", "X-Api-Key", "client", "Cookie", "c=client",
			"X-Forwarded-For", "client", "X-Unheard-Of", "client", "X-Request-Id", "my-id-1", "Traceparent", "00-aa-bb-01", "User-Agent", "app/1")
		h := r.engines[0].Calls()[0].Header
		for name, values := range h {
			if strings.Contains(strings.Join(values, " "), "client") {
				t.Errorf("%s reached the engine", name)
			}
		}
		for name, want := range map[string]string{"X-Request-Id": "my-id-1", "Traceparent": "00-aa-bb-01", "User-Agent": "app/1", "Content-Type": "application/json"} {
			if got := h.Get(name); got != want {
				t.Errorf("%s: %q; want %q", name, got, want)
			}
		}
		if a.header.Get("X-Request-Id") != "my-id-1" || r.last().ID != "my-id-1" {
			t.Errorf("X-Request-Id %q, recorded %q", a.header.Get("X-Request-Id"), r.last().ID)
		}
		a = r.post(chatPath+"?api-version=1&key=client", chat("x", false), "X-Request-Id", "bad id \u00e9")
		if id := a.header.Get("X-Request-Id"); !strings.HasPrefix(id, "req-") || r.engines[0].Calls()[1].Header.Get("X-Request-Id") != id {
			t.Errorf("an id that is not sane became %q", id)
		}
		if path := r.engines[0].Calls()[1].Path; path != chatPath {
			t.Errorf("the engine was asked for %s", path)
		}
	})
}
