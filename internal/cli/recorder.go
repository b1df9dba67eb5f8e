package cli

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/proxy"
	"github.com/warmroute/warmroute/internal/telemetry"
)

// recorder writes down what happens to requests: metrics, and one access line
// for each. It implements [proxy.Recorder].
type recorder struct {
	log     *slog.Logger
	metrics *telemetry.Metrics
	access  atomic.Bool // whether access lines are written
	trace   *traceFile  // nil when there is none

	models  func(name string) (fleet.Model, bool) // of the fleet; set before serving
	running atomic.Int64                          // requests between Started and Ended
	prompts atomic.Int64                          // ended requests that had a prompt
	short   atomic.Int64                          // those whose prompt was shorter than a block
}

// Started counts a request in. A model that an instance has come to list since
// the last configuration gets its series here.
func (rec *recorder) Started(model string) {
	rec.running.Add(1)
	if !rec.metrics.Knows(model) {
		if m, ok := rec.models(model); ok {
			rec.metrics.Know(m.Name, m.Aliases...)
		}
	}
	rec.metrics.Started(model)
}

// Gap passes on the time between two contents of a stream.
func (rec *recorder) Gap(model string, gap time.Duration) { rec.metrics.Gap(model, gap) }

// Ended counts a request out.
func (rec *recorder) Ended(r *proxy.Record) {
	rec.running.Add(-1)
	ttft, _ := r.TTFT()
	outcome := r.Outcome()
	rec.metrics.Ended(telemetry.Request{
		Model: r.Asked, Kind: kindName(r), Class: outcome, Code: r.Status, Instance: r.Instance,
		TTFT: ttft, E2E: r.E2E(), Overhead: r.Overhead, Waited: r.Held,
		PromptTokens: r.PromptTokens, OutputTokens: r.OutputTokens,
		CachedTokens: r.CachedTokens, CachedKnown: r.CachedKnown,
		PredictedTokens: r.PredictedTokens, AvailableTokens: r.AvailableTokens,
		UnknownParts: r.UnknownParts, ShortPrompt: r.ShortPrompt,
		ClientGone: r.Status == proxy.StatusClientGone,
	})
	for _, t := range r.Tries {
		rec.metrics.Retried(t.Class.String())
	}
	if r.Reason != "" {
		rec.metrics.Decided(r.Policy, r.Reason)
		rec.checkBlocks(r.ShortPrompt)
	}
	if rec.trace != nil {
		rec.trace.record(r)
	}
	if rec.access.Load() && rec.log.Enabled(context.Background(), slog.LevelInfo) {
		rec.log.LogAttrs(context.Background(), slog.LevelInfo, "request", accessAttrs(r, outcome, ttft)...)
	}
}

// sample is how many prompts are looked at before the block size is judged.
const sample = 200

// checkBlocks says once when most prompts are shorter than a block: they never
// match, and nothing else would tell why the hit rate is low.
func (rec *recorder) checkBlocks(short bool) {
	if short {
		rec.short.Add(1)
	}
	if rec.prompts.Add(1) != sample {
		return
	}
	if n := rec.short.Load(); n > sample/2 {
		rec.log.Warn("most prompts are shorter than one block, so they can never match; cache.block_bytes may be too large for them",
			slog.Int64("short", n), slog.Int64("prompts", sample))
	}
}

// kindName is the API that was called.
func kindName(r *proxy.Record) string {
	if r.Kind == 0 {
		return "none"
	}
	return r.Kind.String()
}

// Bounds of text that comes from a client, and from an instance's error.
const (
	maxAsked  = 128
	maxDetail = 512
)

// accessAttrs are the attributes of a request's access line: numbers, names of
// ours, and the model that was asked for. Nothing of a prompt, an answer or a
// header is ever among them.
func accessAttrs(r *proxy.Record, outcome string, ttft time.Duration) []slog.Attr {
	attrs := append(make([]slog.Attr, 0, 24),
		slog.String("id", r.ID), slog.String("kind", kindName(r)), slog.String("model", clip(r.Asked, maxAsked)),
		slog.Int("status", r.Status), slog.String("outcome", outcome))
	add := func(when bool, a slog.Attr) {
		if when {
			attrs = append(attrs, a)
		}
	}
	add(r.Model != "" && r.Model != r.Asked, slog.String("pool", r.Model))
	add(r.Tenant != "", slog.String("tenant", r.Tenant))
	add(r.Cause != "", slog.String("cause", r.Cause))
	add(r.Detail != "", slog.String("detail", clip(r.Detail, maxDetail)))
	add(r.Instance != "", slog.String("instance", r.Instance))
	add(r.Reason != "", slog.String("policy", r.Policy))
	add(r.Reason != "", slog.String("reason", r.Reason))
	add(r.Attempts > 1, slog.Int("attempts", r.Attempts))
	add(r.Streamed, slog.Bool("stream", true))
	add(r.PromptTokens > 0, slog.Int("prompt_tokens", r.PromptTokens))
	add(r.Reason != "", slog.Int("predicted_tokens", r.PredictedTokens))
	add(r.CachedKnown, slog.Int("cached_tokens", r.CachedTokens))
	add(r.OutputTokens > 0, slog.Int("output_tokens", r.OutputTokens))
	add(ttft > 0, slog.Float64("ttft_ms", milliseconds(ttft)))
	add(r.E2E() > 0, slog.Float64("e2e_ms", milliseconds(r.E2E())))
	add(r.Overhead > 0, slog.Float64("overhead_ms", milliseconds(r.Overhead)))
	add(r.Held > 0, slog.Float64("held_ms", milliseconds(r.Held)))
	return append(attrs, slog.Int64("bytes_in", r.BodyBytes), slog.Int64("bytes_out", r.AnswerBytes))
}

func clip(s string, limit int) string {
	if len(s) > limit {
		return s[:limit] + "..."
	}
	return s
}

// milliseconds rounds to microseconds: more digits are noise in a log.
func milliseconds(d time.Duration) float64 {
	return float64(d.Round(time.Microsecond)) / float64(time.Millisecond)
}
