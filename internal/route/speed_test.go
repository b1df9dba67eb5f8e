package route

import (
	"slices"
	"testing"
)

// The design's table of engines gives for each the time of a step of 8192 tokens, without the host's part.
func TestPrior_FullStep(t *testing.T) {
	f := func(name string, ms float64) {
		t.Helper()
		s, ok := Prior(name)
		if !ok {
			t.Errorf("no engine %q", name)
			return
		}
		got := 1e3*(s.DecodeBase+prefillTime(&s, 8192, 8192)) - cpu
		if !near(got, ms, .05) { // with 2048 tokens per step the line is that of a shorter step
			t.Errorf("%s: 8192 tokens take %.0f ms; want %.0f", name, got, ms)
		}
	}
	f("llama-3.1-70b-4xh100", 554)
	f("llama-3.1-70b-8xh100", 353)
	f("llama-3.1-70b-8xa100", 974)
	f("llama-3.1-70b-4xa100", 1535)
	f("qwen3-32b-2xh100", 474)
	f("llama-3.1-8b-1xh100", 196)
	f("llama-3.1-8b-1xa100", 612)
}

// And the decode step of 64 streams of 4k tokens.
func TestPrior_DecodeStep(t *testing.T) {
	f := func(name string, ms float64) {
		t.Helper()
		s, _ := Prior(name)
		if got := 1e3*(s.DecodeBase+s.DecodeCtx*64*4096) - cpu; !near(got, ms, .12) {
			t.Errorf("%s: decode step %.1f ms; want %.1f", name, got, ms)
		}
	}
	f("llama-3.1-70b-4xh100", 24.2)
	f("llama-3.1-70b-8xh100", 14.9)
	f("llama-3.1-70b-8xa100", 27.5)
	f("llama-3.1-70b-4xa100", 47.3)
	f("qwen3-32b-2xh100", 26.4)
	f("llama-3.1-8b-1xh100", 18.8)
	f("llama-3.1-8b-1xa100", 35.7)
}

func TestPrior_Unknown(t *testing.T) {
	if _, ok := Prior("abacus"); ok {
		t.Error("an abacus is known")
	}
	if s := (Speed{}); s.Known() {
		t.Error("the zero speed is known")
	}
	u := Unknown()
	var rates []float64
	for _, name := range Engines() {
		s, _ := Prior(name)
		rates = append(rates, s.PrefillToken)
	}
	slices.Sort(rates)
	if !u.Known() || u.KVTokens != 0 || u.PrefillToken < rates[0] || u.PrefillToken > rates[len(rates)-1] {
		t.Errorf("the unknown engine is %+v; want a rate among %v and no capacity", u, rates)
	}
}
