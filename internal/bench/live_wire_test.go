package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// wireServer answers chat completions with a recorded stream.
func wireServer(t *testing.T, fixture string) (*httptest.Server, func() []map[string]any) {
	t.Helper()
	stream, err := os.ReadFile(filepath.Join("testdata", "wire", fixture))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var bodies []map[string]any
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/chat/completions" {
			t.Errorf("path %s", r.URL.Path)
		}
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Errorf("read body: %v", err)
		}
		mu.Lock()
		bodies = append(bodies, body)
		mu.Unlock()
		w.Header().Set("Content-Type", "text/event-stream")
		w.Write(stream)
	}))
	t.Cleanup(server.Close)
	return server, func() []map[string]any {
		mu.Lock()
		defer mu.Unlock()
		return bodies
	}
}

// shortRAG is a workload of n requests that takes no time.
func shortRAG(n int) RAG {
	return RAG{Requests: n, Rate: 1000, Prefixes: 2, PrefixTokens: 64, Zipf: 1, Tail: Fixed(8), Output: Fixed(3)}
}

// runLive plays a workload to servers and returns their results.
func runLive(ctx context.Context, t *testing.T, l *Live, urls ...string) []LiveRun {
	t.Helper()
	l.HTTP = http.DefaultClient
	if l.Speed == 0 {
		l.Speed = 1
	}
	for i, u := range urls {
		w, err := NewWording("m", 1)
		if err != nil {
			t.Fatal(err)
		}
		l.Wordings = append(l.Wordings, w)
		l.Targets = append(l.Targets, Target{Name: fmt.Sprint(i), URL: u})
	}
	runs, err := l.Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return runs
}

func TestLiveWireShapes(t *testing.T) {
	f := func(fixture string, prompt, output int, hit float64, unknown bool) {
		t.Helper()
		server, bodies := wireServer(t, fixture)
		r := runLive(t.Context(), t, &Live{Workload: shortRAG(4)}, server.URL)[0].Result(1, 0, Objectives{})
		if r.SuccessRate != 1 || r.Requests != 4 {
			t.Fatalf("%s: %+v", fixture, r)
		}
		switch got := r.HitRate.Actual; {
		case unknown != (got == nil):
			t.Errorf("%s: hit rate %v; unknown: want %v", fixture, got, unknown)
		case got != nil && math.Abs(*got-hit) > 1e-9:
			t.Errorf("%s: hit rate %v; want %v", fixture, *got, hit)
		}
		if r.TTFT.P50 <= 0 || r.E2E.P50 < r.TTFT.P50 {
			t.Errorf("%s: TTFT %v, E2E %v", fixture, r.TTFT, r.E2E)
		}
		if got := r.Rates.Input / r.Rates.Requests; math.Abs(got-float64(prompt)) > 0.01*float64(prompt) {
			t.Errorf("%s: %.1f prompt tokens a request; want %d", fixture, got, prompt)
		}
		if got := r.Rates.Output / r.Rates.Requests; math.Abs(got-float64(output)) > 0.02*float64(output) {
			t.Errorf("%s: %.1f output tokens a request; want %d", fixture, got, output)
		}
		if r.Imbalance != nil || len(r.Instances) > 0 {
			t.Errorf("%s: names instances without a header", fixture)
		}
		if b := bodies()[0]; b["stream"] != true || b["max_tokens"] != 3.0 || b["ignore_eos"] != true || b["model"] != "m" {
			t.Errorf("%s: sent %v", fixture, b)
		}
	}
	f("vllm.txt", 1200, 3, 0.8, false)
	f("vllm-null.txt", 1200, 3, 0, true)
	f("llamacpp.txt", 500, 3, 0.5, false)
	f("openai.txt", 2048, 3, 0.5, false)
}

func TestLivePlainBody(t *testing.T) {
	w, err := NewWording("gpt", 1)
	if err != nil {
		t.Fatal(err)
	}
	w.Plain = true
	body, err := w.body([]piece{{Segment: Segment{ID: 1, Tokens: 50}}}, 7)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{`"ignore_eos"`, `"max_tokens"`} {
		if strings.Contains(string(body), bad) {
			t.Errorf("body has %s: %s", bad, body)
		}
	}
	if !strings.Contains(string(body), `"max_completion_tokens":7`) {
		t.Errorf("body: %s", body)
	}
}

func TestLiveErrorClasses(t *testing.T) {
	const content = `data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}` + "\n\n"
	const stop = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"
	f := func(want string, answer http.HandlerFunc) {
		t.Helper()
		server := httptest.NewServer(answer)
		defer server.Close()
		r := runLive(t.Context(), t, &Live{Workload: shortRAG(2), Timeout: 200 * time.Millisecond}, server.URL)[0].Result(1, 0, Objectives{TTFT: time.Minute})
		if r.Errors[want] != 2 || r.SuccessRate != 0 || r.Example == "" || len(r.Errors) != 1 {
			t.Errorf("errors %v, success %v, example %q; want 2 of %s", r.Errors, r.SuccessRate, r.Example, want)
		}
		if r.Goodput == nil || r.Goodput.Share != 0 {
			t.Errorf("%s: goodput %+v; want 0", want, r.Goodput)
		}
		if r.HitRate.Actual != nil {
			t.Errorf("%s: hit rate %v of nothing", want, *r.HitRate.Actual)
		}
	}
	f("status_429", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "slow down", http.StatusTooManyRequests) })
	f("truncated", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, content) })
	f("no_content", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, stop) })
	f("stream_error", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, content+`data: {"error":{"message":"out of memory","type":"server_error"}}`+"\n\n")
	})
	f("connect", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	f("timeout", func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // the server notices that the client is gone
		<-r.Context().Done()
	})
}

// A run that is broken off keeps what it has and counts nothing that it broke.
func TestLiveInterrupted(t *testing.T) {
	stream, err := os.ReadFile("testdata/wire/vllm.txt")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	var mu sync.Mutex
	served := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		mu.Lock()
		served++
		n := served
		mu.Unlock()
		if n == 3 {
			cancel(errors.New("enough"))
		}
		if n >= 3 {
			<-r.Context().Done()
			return
		}
		w.Write(stream)
	}))
	defer server.Close()
	// One at a time: the order of requests is known.
	r := runLive(ctx, t, &Live{Workload: shortRAG(100), Concurrent: 1}, server.URL)[0].Result(1, 0, Objectives{})
	if r.Requests != 2 || r.Interrupted != 1 || r.SuccessRate != 1 || len(r.Errors) != 0 {
		t.Errorf("%d requests, %d interrupted, success %v, errors %v; want 2, 1, 1, none", r.Requests, r.Interrupted, r.SuccessRate, r.Errors)
	}
}

func TestLiveConcurrency(t *testing.T) {
	var mu sync.Mutex
	open, most, total := 0, 0, 0
	stream, err := os.ReadFile("testdata/wire/vllm.txt")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		mu.Lock()
		open++
		total++
		most = max(most, open)
		mu.Unlock()
		w.Write(stream)
		mu.Lock()
		open--
		mu.Unlock()
	}))
	defer server.Close()
	w := shortRAG(60)
	w.Rate = 1e-3 // a time that would never come
	runLive(t.Context(), t, &Live{Workload: w, Concurrent: 3}, server.URL)
	if most > 3 || total != 60 {
		t.Errorf("%d at a time, %d in total; want 3 at most, 60", most, total)
	}
}

// A conversation feeds the engine's own words back, as its client would.
func TestLiveChat(t *testing.T) {
	server, bodies := wireServer(t, "vllm.txt")
	chat := Chat{Sessions: 1, Rate: 1000, SystemTokens: 20, Turns: Fixed(3), User: Fixed(10), Output: Fixed(3)}
	runs := runLive(t.Context(), t, &Live{Workload: chat}, server.URL)
	if n := len(runs[0].Replies); n != 3 {
		t.Fatalf("%d turns; want 3", n)
	}
	type message struct{ Role, Content string }
	var turns [3][]message
	for i, b := range bodies() {
		text, _ := json.Marshal(b["messages"])
		if err := json.Unmarshal(text, &turns[i]); err != nil {
			t.Fatal(err)
		}
	}
	var roles strings.Builder
	for _, m := range turns[2] {
		roles.WriteString(m.Role[:1])
	}
	if roles.String() != "suauau" {
		t.Errorf("roles of turn 3: %s; want suauau", roles.String())
	}
	if got := turns[2][2].Content; got != "Hello there world" {
		t.Errorf("answer 1 comes back as %q", got)
	}
	for i, m := range turns[1] {
		if turns[2][i] != m {
			t.Errorf("message %d changed between turns: %q, then %q", i, m, turns[2][i])
		}
	}
}

// Two targets get the same requests, worded differently only by salt.
func TestLiveTargetsAlike(t *testing.T) {
	a, bodiesA := wireServer(t, "vllm.txt")
	b, bodiesB := wireServer(t, "openai.txt")
	runs := runLive(t.Context(), t, &Live{Workload: shortRAG(20)}, a.URL, b.URL+"/v1/")
	for i := range runs[0].Replies {
		if x, y := runs[0].Replies[i].Due, runs[1].Replies[i].Due; x != y {
			t.Fatalf("request %d is due at %v and at %v", i, x, y)
		}
	}
	count := func(bodies []map[string]any) map[string]int {
		n := map[string]int{}
		for _, b := range bodies {
			text, _ := json.Marshal(b)
			n[string(text)]++
		}
		return n
	}
	x, y := count(bodiesA()), count(bodiesB())
	for text, n := range x {
		if y[text] != n {
			t.Errorf("sent %d times to one and %d times to the other: %.80s", n, y[text], text)
		}
	}
}

func TestArrivals(t *testing.T) {
	f := func(burstiness, wantCV float64) {
		t.Helper()
		r := stream(1, 1)
		a := Arrivals{Rate: 4, Burstiness: burstiness}
		const n = 200_000
		sum, squares := 0.0, 0.0
		for range n {
			x := a.gap(r).Seconds()
			sum += x
			squares += x * x
		}
		mean := sum / n
		cv := math.Sqrt(max(squares/n-mean*mean, 0)) / mean
		if math.Abs(mean-0.25) > 0.005 || math.Abs(cv-wantCV) > 0.02*max(wantCV, 1) {
			t.Errorf("burstiness %g: mean gap %.4f, variation %.3f; want 0.25, %.3f", burstiness, mean, cv, wantCV)
		}
	}
	// A gamma variable of shape k varies by 1/sqrt(k).
	f(1, 1)
	f(0.25, 2)
	f(4, 0.5)
	f(math.Inf(1), 0)
}

func TestLiveResult(t *testing.T) {
	ms := time.Millisecond
	reply := func(due, ttft, e2e time.Duration, instance string, prompt, cached int) *Reply {
		r := &Reply{Due: due, Gaps: []time.Duration{10 * ms, 30 * ms}, ceiling: 0.5}
		r.Sent, r.First, r.Done, r.Instance = due+ms, due+ms+ttft, due+ms+e2e, instance
		r.Usage.Prompt, r.Usage.Output, r.Usage.HasUsage = prompt, 3, true
		r.Usage.Cached, r.Usage.HasCached = max(cached, 0), cached >= 0
		return r
	}
	late := reply(900*ms, 500*ms, 600*ms, "b", 1000, 0)
	run := LiveRun{Target: Target{Name: "x"}, Replies: []*Reply{
		reply(0, 10*ms, 50*ms, "a", 1000, 0),           // of the warm-up
		reply(200*ms, 100*ms, 200*ms, "a", 1000, 800),  // good
		reply(300*ms, 50*ms, 150*ms, "a", 1000, -1),    // null: this instance reports, so none was cached
		reply(400*ms, 20*ms, 120*ms, "c", 100_000, -1), // never reports: unknown
		late, // too late
		{Due: 950 * ms, Class: "status_500", Answer: Answer{Sent: 951 * ms, Done: 960 * ms, Err: errIncomplete}},
	}}
	// Twice as fast as the workload: all times double.
	r := run.Result(2, 200*ms, Objectives{TTFT: 300 * ms, ITL: 50 * ms})
	if r.Requests != 5 || r.SuccessRate != 0.8 || r.Errors["status_500"] != 1 {
		t.Errorf("%d requests, success %v, errors %v", r.Requests, r.SuccessRate, r.Errors)
	}
	if r.TTFT.P50 != 150 || r.TTFT.Mean != 335 || r.ITL.P50 != 40 || r.TPOT.P50 != 100 || r.E2E.P99 < 1100 {
		t.Errorf("TTFT %v ITL %v TPOT %v E2E %v", r.TTFT, r.ITL, r.TPOT, r.E2E)
	}
	if h := r.HitRate; h.Actual == nil || *h.Actual != rounded(800.0/3000, 4) || h.Coverage != 0.5 || h.Ceiling != 0.5 || h.Predicted != nil {
		t.Errorf("hit rate %+v", h)
	}
	// From 201 ms to 1501 ms of wall time there are 2.6 s; three of five are good.
	if g := r.Goodput; g == nil || g.Share != 0.6 || math.Abs(g.Rate-3/2.6) > 0.01 {
		t.Errorf("goodput %+v", g)
	}
	if len(r.Instances) != 3 || r.Imbalance == nil || *r.Imbalance < 1 {
		t.Errorf("instances %v, imbalance %v", r.Instances, r.Imbalance)
	}
	if n := len(r.CDF); n != 101 || r.CDF[100][0] != 1000 {
		t.Errorf("CDF of %d points ends at %v", n, r.CDF[n-1])
	}
	total := 0
	for _, p := range r.Curve {
		total += p.Requests
	}
	if total != 4 {
		t.Errorf("the curve holds %d requests; want 4", total)
	}
}
