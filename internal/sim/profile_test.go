package sim

import (
	"math"
	"strings"
	"testing"
	"time"
)

// The check values of the fitted table: the chunk of 8192 prompt tokens in ms and in tokens per second, and the decode step of 64
// streams at 4k context in ms, all without the CPU term.
func TestProfile_CheckValues(t *testing.T) {
	f := func(name string, prefillMS, perSecond, decodeMS float64) {
		t.Helper()
		p, err := LookupProfile(name)
		if err != nil {
			t.Fatal(err)
		}
		chunk := p.StepMS(Load{Prefill: 8192, PrefillPairs: 8192 * 4096}) - p.CPU
		if math.Abs(chunk-prefillMS) > 1 {
			t.Errorf("%s: chunk of 8192 takes %.1f ms; want %v", name, chunk, prefillMS)
		}
		if rate := 8192 / chunk * 1e3; math.Abs(rate-perSecond) > 100 {
			t.Errorf("%s: prefills %.0f tokens/s; want %v", name, rate, perSecond)
		}
		if ms := p.StepMS(Load{Decodes: 64, Context: 64 * 4096}) - p.CPU; math.Abs(ms-decodeMS) > .06 {
			t.Errorf("%s: decode step takes %.2f ms; want %v", name, ms, decodeMS)
		}
	}
	f("llama-3.1-70b-4xh100", 554, 14.8e3, 24.2)
	f("llama-3.1-70b-8xh100", 353, 23.2e3, 14.9)
	f("llama-3.1-70b-8xa100", 974, 8.4e3, 27.5)
	f("llama-3.1-70b-4xa100", 1535, 5.3e3, 47.3)
	f("qwen3-32b-2xh100", 474, 17.3e3, 26.4)
	f("llama-3.1-8b-1xh100", 196, 41.7e3, 18.8)
	f("llama-3.1-8b-1xa100", 612, 13.4e3, 35.7)
}

func TestLookupProfile_Unknown(t *testing.T) {
	_, err := LookupProfile("gpt-2")
	if err == nil {
		t.Fatal("no error")
	}
	for _, name := range Profiles() {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("error %q does not name %s", err, name)
		}
	}
}

// A lone cold prompt of one full chunk has its first token when that chunk ends.
func TestEngine_ColdTTFT(t *testing.T) {
	f := func(name string, ms float64) {
		t.Helper()
		p, err := LookupProfile(name)
		if err != nil {
			t.Fatal(err)
		}
		p.MaxBatchedTokens = 8192
		e := NewEngine(p, Options{})
		r := newRequest(1, 8192, 4)
		drive(t, e, r)
		got := float64(r.First-r.Arrived) / float64(time.Millisecond)
		if want := ms + p.CPU; math.Abs(got-want) > 1 {
			t.Errorf("%s: first token after %.1f ms; want %.1f", name, got, want)
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
