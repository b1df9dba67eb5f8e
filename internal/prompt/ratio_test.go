package prompt_test

import (
	"math"
	"testing"

	"github.com/warmroute/warmroute/internal/prompt"
)

func TestRatioStartsAtThePrior(t *testing.T) {
	var r prompt.Ratio
	if r.BytesPerToken() != 4 || r.Tokens(4000) != 1000 || r.Bytes(1000) != 4000 {
		t.Errorf("got %v, %d, %d; want 4, 1000, 4000", r.BytesPerToken(), r.Tokens(4000), r.Bytes(1000))
	}
	if r.Tokens(1) != 1 || r.Tokens(4) != 1 || r.Tokens(5) != 2 || r.Tokens(0) != 0 || r.Tokens(-1) != 0 || r.Bytes(-1) != 0 {
		t.Error("a started token counts; nothing is nothing")
	}
}

func TestRatioLearns(t *testing.T) {
	f := func(bytes int64, tokens, times int, want float64) {
		t.Helper()
		var r prompt.Ratio
		for range times {
			r.Observe(bytes, tokens)
		}
		if got := r.BytesPerToken(); math.Abs(got-want) > 0.05*want {
			t.Errorf("after %d times %d bytes in %d tokens: %.2f bytes a token; want %.2f", times, bytes, tokens, got, want)
		}
	}
	f(20_000, 10_000, 20, 2) // Chinese, one and a half tokens a character
	f(30_000, 6_000, 20, 5)
	f(7, 2, 1, 4) // one short prompt says little
	f(0, 100, 50, 4)
	f(100, 0, 50, 4)
	f(-5, -5, 50, 4)
	f(math.MaxInt64, 1000, 50, 32) // broken reports are clamped
	f(1, 1_000_000, 50, 0.5)
}

func TestRatioFollowsChange(t *testing.T) {
	var r prompt.Ratio
	for range 10_000 {
		r.Observe(4000, 1000)
	}
	// After as many tokens as the window holds twice, the new traffic decides.
	for range 3000 {
		r.Observe(2000, 1000)
	}
	if got := r.BytesPerToken(); got > 2.6 {
		t.Errorf("still %.2f bytes a token after 3M tokens at 2", got)
	}
}
