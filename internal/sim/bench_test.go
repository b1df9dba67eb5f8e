package sim

import (
	"math/rand/v2"
	"testing"
	"time"
)

// One engine near saturation: 8k-token prompts, three quarters of them from 40 shared prefixes, 200 output tokens. An iteration is
// one request; 180 us each is the budget for a million requests on 100 instances in 3 minutes.
func BenchmarkEngine(b *testing.B) {
	f := func(name, profile string, every int, pause time.Duration) {
		b.Run(name, func(b *testing.B) {
			p, err := LookupProfile(profile)
			if err != nil {
				b.Fatal(err)
			}
			e := NewEngine(p, Options{})
			prompts := make([][]uint64, 160)
			for i := range prompts {
				prompts[i] = chainOf(uint64(i), 512)
			}
			rng := rand.New(rand.NewPCG(1, 1))
			at := time.Duration(0)
			var events, cached, n int
			for b.Loop() {
				i := rng.IntN(len(prompts))
				if rng.IntN(4) > 0 {
					i = rng.IntN(40)
				}
				prompt := append(make([]uint64, 0, 516), prompts[i]...)
				prompt = append(prompt, rng.Uint64(), rng.Uint64(), rng.Uint64(), rng.Uint64())
				r := &Request{Prompt: prompt, PromptTokens: 516*16 + 5, OutputTokens: 200, OutputSeed: uint64(n), TokenEvery: every}
				at += time.Duration(rng.ExpFloat64() * float64(pause))
				for next, ok := e.NextEvent(); ok && next < at; next, ok = e.NextEvent() {
					for _, ev := range e.Advance(next) {
						events++
						if ev.Kind == Done {
							cached += ev.Req.Cached
						}
					}
				}
				if err := e.Submit(at, r); err != nil {
					b.Fatal(err)
				}
				n++
			}
			s := e.Stats()
			b.ReportMetric(float64(s.Steps)/float64(n), "steps/op")
			b.ReportMetric(float64(events)/float64(n), "events/op")
			b.ReportMetric(float64(cached)/float64(n)/8261, "hit")
			b.ReportMetric(float64(s.Running+s.Waiting), "inflight")
		})
	}
	f("busy", "llama-3.1-70b-8xh100", 0, 250*time.Millisecond)
	f("idle", "llama-3.1-70b-8xh100", 0, 4*time.Second)
	f("thrash", "llama-3.1-70b-4xh100", 0, 400*time.Millisecond)
	f("busy-tokens", "llama-3.1-70b-8xh100", 1, 250*time.Millisecond)
}

func BenchmarkEngine_Cached(b *testing.B) {
	p, err := LookupProfile("llama-3.1-70b-8xh100")
	if err != nil {
		b.Fatal(err)
	}
	e := NewEngine(p, Options{})
	r := newRequest(1, 32_768, 1)
	if err := e.Submit(0, r); err != nil {
		b.Fatal(err)
	}
	e.Advance(time.Hour)
	for b.Loop() {
		if e.Cached(r.Prompt, r.PromptTokens+1) != r.PromptTokens {
			b.Fatal("not cached")
		}
	}
}
