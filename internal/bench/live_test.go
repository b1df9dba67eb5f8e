package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/warmroute/warmroute/internal/dialect"
)

func chatBody(text string) []byte {
	return fmt.Appendf(nil, `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":%q}]}`, text)
}

func TestLoad(t *testing.T) {
	const chunk = `data: {"choices":[{"index":0,"delta":{%s},"finish_reason":%s}]}` + "\n\n"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Warmroute-Instance", "a")
		w.Header().Set("X-Warmroute-Match", "64")
		if strings.Contains(string(body), "refuse") {
			http.Error(w, "no", http.StatusTooManyRequests)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, chunk, `"role":"assistant","content":""`, "null")
		fmt.Fprintf(w, chunk, `"content":"hi"`, "null")
		if strings.Contains(string(body), "cut") {
			return
		}
		fmt.Fprintf(w, chunk, "", `"stop"`)
		io.WriteString(w, `data: {"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":48}}}`+"\n\n")
		io.WriteString(w, "data: [DONE]\n\n")
	}))
	defer server.Close()
	heard := 0
	load := Load{URL: server.URL, HTTP: server.Client(), Answered: func(*Answer) { heard++ }}
	answers := load.Run(t.Context(), []Call{
		{At: 0, Body: chatBody("fine")},
		{At: 5 * time.Millisecond, Body: chatBody("refuse")},
		{At: 10 * time.Millisecond, Body: chatBody("cut")},
	})
	if heard != 3 {
		t.Errorf("heard of %d answers; want 3", heard)
	}
	a := answers[0]
	if a.Err != nil || a.Instance != "a" || a.Match != 64 || a.Usage.Prompt != 100 || a.Usage.Cached != 48 {
		t.Errorf("answer %+v", a)
	}
	if a.Sent <= 0 || a.First <= a.Sent || a.Done < a.First {
		t.Errorf("times %v, %v, %v are not in order", a.Sent, a.First, a.Done)
	}
	if err := answers[1].Err; err == nil || !strings.Contains(err.Error(), "429") {
		t.Errorf("refused call: error %v; want its status", err)
	}
	if !errors.Is(answers[2].Err, errIncomplete) {
		t.Errorf("cut stream: error %v; want %v", answers[2].Err, errIncomplete)
	}
	if answers[1].Sent < 5*time.Millisecond || answers[2].Sent < 10*time.Millisecond {
		t.Errorf("sent at %v and %v, before their times", answers[1].Sent, answers[2].Sent)
	}
}

func TestLoadCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	load := Load{URL: "http://127.0.0.1:1", HTTP: http.DefaultClient}
	for i, a := range load.Run(ctx, []Call{{Body: chatBody("x")}, {At: time.Hour, Body: chatBody("y")}}) {
		if a.Err == nil {
			t.Errorf("answer %d has no error", i)
		}
	}
}

func TestSummarize(t *testing.T) {
	ms := time.Millisecond
	answers := []Answer{
		{Sent: 0, First: 100 * ms, Instance: "a", Usage: dialect.Usage{Prompt: 1000, Cached: 0}},
		{Sent: 50 * ms, First: 70 * ms, Instance: "b", Match: 600, Usage: dialect.Usage{Prompt: 1000, Cached: 500}},
		{Err: errIncomplete, Instance: "a"},
		{Sent: 200 * ms, First: 240 * ms, Instance: "a", Match: 1000, Usage: dialect.Usage{Prompt: 2000, Cached: 1500}},
	}
	got := Summarize("x", answers, []float64{0, 0.9, 0.9, 1}, 4, 2)
	want := PolicyResult{
		Name:        "x",
		TTFT:        Summary{P50: 160, P90: 352, P99: 395.2, Mean: 213.333}, // of 80, 160 and 400
		HitRate:     HitRate{Actual: 0.5, Predicted: 0.4, Ceiling: 0.725},
		SuccessRate: 0.75,
		// Idle: 1; then 1000 tokens wait on one of two: 2000/1500; idle again: 1.
		Imbalance: 1.111,
		Requests:  4,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
	instances := PerInstance(answers)
	if diff := cmp.Diff(map[string]InstanceResult{
		"a": {Requests: 2, PromptTokens: 3000, CachedTokens: 1500},
		"b": {Requests: 1, PromptTokens: 1000, CachedTokens: 500},
	}, instances); diff != "" {
		t.Errorf("instances (-want +got):\n%s", diff)
	}
}

func TestCeilings(t *testing.T) {
	document := strings.Repeat("All of this is shared. ", 400)
	shares, err := Ceilings([]Call{
		{Body: chatBody(document + "one")}, {Body: chatBody(document + "two")}, {Body: chatBody("else " + document)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if shares[0] != 0 || shares[1] < 0.97 || shares[1] > 1 || shares[2] > 0.02 {
		t.Errorf("shares %v; want 0, nearly 1, nearly 0", shares)
	}
	if _, err := Ceilings([]Call{{Body: []byte("{")}}); err == nil {
		t.Error("a broken body is no error")
	}
}

func TestTexts(t *testing.T) {
	w := RAG{Requests: 60, Rate: 10, Prefixes: 9, PrefixTokens: 800, Zipf: 0.8, Tail: Fixed(50), Output: Fixed(24)}
	calls, err := Texts{Model: "m", Speed: 4}.Calls(w, 3)
	if err != nil {
		t.Fatal(err)
	}
	requests := drain(t, w.Source(3), 0)
	if len(calls) != len(requests) {
		t.Fatalf("%d calls of %d requests", len(calls), len(requests))
	}
	documents := map[string]uint64{}
	for i, c := range calls {
		if want := requests[i].At / 4; c.At != want {
			t.Errorf("call %d at %v; want %v", i, c.At, want)
		}
		call, err := dialect.Decode(dialect.Chat, c.Body)
		if err != nil {
			t.Fatal(err)
		}
		if !call.Stream || call.MaxTokens != 24 || call.Usage != dialect.Wanted {
			t.Fatalf("call %d: %+v", i, call)
		}
		user := call.Prompt.Messages[1].Text()
		id := requests[i].Prompt[0].ID
		if was, ok := documents[user[:300]]; ok && was != id {
			t.Fatalf("call %d: two documents begin alike", i)
		}
		documents[user[:300]] = id
	}
	chinese := 0
	for head := range documents {
		if strings.Contains(head, "资料") {
			chinese++
		}
	}
	if len(documents) != w.Prefixes || chinese != w.Prefixes/3 {
		t.Errorf("%d documents, %d of them Chinese; want %d and %d", len(documents), chinese, w.Prefixes, w.Prefixes/3)
	}
}
