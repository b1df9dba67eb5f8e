package cli

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmroute/warmroute/internal/dialect"
	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/proxy"
	"github.com/warmroute/warmroute/internal/telemetry"
	"github.com/warmroute/warmroute/internal/testkit"
	"github.com/warmroute/warmroute/internal/upstream"
)

func newRecorder(out *bytes.Buffer, format string) *recorder {
	drop := func(groups []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	var h slog.Handler = slog.NewTextHandler(out, &slog.HandlerOptions{ReplaceAttr: drop})
	if format == "json" {
		h = slog.NewJSONHandler(out, &slog.HandlerOptions{ReplaceAttr: drop})
	}
	rec := &recorder{
		log: slog.New(h), metrics: telemetry.New(prometheus.NewRegistry()),
		models: func(string) (fleet.Model, bool) { return fleet.Model{}, false },
	}
	rec.access.Store(true)
	return rec
}

// records are requests that ended in different ways.
func records() []*proxy.Record {
	t0 := time.Unix(1_800_000_000, 0)
	after := func(ms float64) time.Time { return t0.Add(time.Duration(ms * float64(time.Millisecond))) }
	return []*proxy.Record{
		{
			ID: "r-1", Kind: dialect.Chat, Asked: "gpt-4o", Model: "llama", Status: 200, Instance: "a", Policy: "cost", Reason: "matched",
			Attempts: 1, PromptTokens: 1000, OutputTokens: 20, CachedTokens: 900, CachedKnown: true, UsageKnown: true, PredictedTokens: 912,
			AvailableTokens: 950, Streamed: true, BodyBytes: 4000, AnswerBytes: 3000,
			Received: t0, Read: after(1), Dispatched: after(1.25), First: after(31), End: after(501), Overhead: 250 * time.Microsecond,
		},
		{
			ID: "r-2", Kind: dialect.Completions, Asked: "llama", Model: "llama", Status: 499, Class: upstream.ClientGone, Cause: "canceled",
			Instance: "b", Policy: "cost", Reason: "cold", Attempts: 2, Tries: []proxy.Try{{Instance: "a", Class: upstream.Transient, Cause: "status_500"}},
			PromptTokens: 10, ShortPrompt: true, BodyBytes: 40, Received: t0, Read: after(1), Dispatched: after(2), End: after(5),
			Held: 1500 * time.Millisecond,
		},
		{
			ID: "r-3", Asked: strings.Repeat("x", 500) + "\n", Status: 404, Class: upstream.Client, Cause: "unknown_model",
			Detail: "nobody \"serves\" it", BodyBytes: 600, AnswerBytes: 200, Received: t0, Read: after(1), End: after(2),
		},
	}
}

func TestAccessLines(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		rec := newRecorder(&out, format)
		for _, r := range records() {
			rec.Started(r.Asked)
			rec.Ended(r)
		}
		testkit.Golden(t, "access."+format+".txt", out.Bytes())
		if n := rec.running.Load(); n != 0 {
			t.Errorf("%d requests run at the end; want 0", n)
		}
		if got, want := bytes.Count(out.Bytes(), []byte("\n")), len(records()); got != want {
			t.Errorf("%s: %d lines for %d requests", format, got, want)
		}
	}
}

// Most prompts are shorter than a block: somebody must be told, once.
func TestShortPromptsWarn(t *testing.T) {
	f := func(short, long int, want int) {
		t.Helper()
		var out bytes.Buffer
		rec := newRecorder(&out, "text")
		rec.access.Store(false)
		for i := range short + long {
			rec.Started("m")
			rec.Ended(&proxy.Record{Reason: "cold", ShortPrompt: i < short})
		}
		if got := strings.Count(out.String(), "shorter than one block"); got != want {
			t.Errorf("%d short of %d prompts: %d warnings; want %d", short, short+long, got, want)
		}
	}
	f(199, 0, 0) // too few to judge
	f(101, 99, 1)
	f(100, 100, 0)
	f(1000, 0, 1)
}

func BenchmarkEnded(b *testing.B) {
	var out bytes.Buffer
	rec := newRecorder(&out, "json")
	r := records()[0]
	b.ReportAllocs()
	for b.Loop() {
		out.Reset()
		rec.Started(r.Asked)
		rec.Ended(r)
	}
}
