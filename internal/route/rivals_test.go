package route

import (
	"testing"
)

// choice checks what a policy makes of candidates that were computed by hand.
func choice(t *testing.T, what string, p Policy, tokens int, cs []Candidate, want int, reason Reason) {
	t.Helper()
	r := Request{Now: epoch, Tokens: tokens, Home: 1, Draw: 2}
	if d := p.Choose(&r, cs); d.Index != want || d.Reason != reason || d.Hold || d.Cost != 0 {
		t.Errorf("%s: %+v; want %d, %s", what, d, want, reason)
	}
}

// matching sets what the candidates hold of the prompt.
func matching(cs []Candidate, tokens ...int) []Candidate {
	for i, n := range tokens {
		cs[i].Match, cs[i].Known = n, n
	}
	return cs
}

func TestGatedMatch(t *testing.T) {
	p := mustNew(t, GatedMatch, Default())
	f := func(what string, inFlight, match [3]int, want int, reason Reason) {
		t.Helper()
		cs := candidates(Load{InFlight: inFlight[0]}, Load{InFlight: inFlight[1]}, Load{InFlight: inFlight[2]})
		choice(t, what, p, 1000, matching(cs, match[:]...), want, reason)
	}
	f("the longest match", [3]int{5, 0, 3}, [3]int{900, 0, 400}, 0, Matched)
	f("just above the share", [3]int{5, 0, 3}, [3]int{301, 0, 0}, 0, Matched)
	f("just the share", [3]int{5, 0, 3}, [3]int{300, 0, 0}, 1, LeastRequests)
	f("equal matches: fewest requests", [3]int{5, 0, 3}, [3]int{500, 0, 500}, 2, Matched)
	f("64 more are balance", [3]int{64, 0, 3}, [3]int{900, 0, 0}, 0, Matched)
	f("65 more are none", [3]int{65, 0, 3}, [3]int{900, 0, 0}, 1, LeastRequests)
	f("65 more, but not one and a half times", [3]int{195, 130, 150}, [3]int{900, 0, 0}, 0, Matched)
	f("more than one and a half times", [3]int{196, 130, 150}, [3]int{900, 0, 0}, 1, LeastRequests)
	f("one hot instance takes affinity from the others", [3]int{65, 1, 0}, [3]int{0, 900, 0}, 2, LeastRequests)

	cs := matching(candidates(Load{InFlight: 500}, Load{InFlight: 2}, Load{InFlight: 1}), 0, 900)
	cs[0].Excluded = Draining
	choice(t, "who may not be chosen is not out of balance", p, 1000, cs, 1, Matched)
}

func TestWeightedScores(t *testing.T) {
	f := func(what string, cfg func(*Config), cs []Candidate, want int, reason Reason) {
		t.Helper()
		c := Default()
		if cfg != nil {
			cfg(&c)
		}
		choice(t, what, mustNew(t, WeightedScores, c), 1000, cs, want, reason)
	}
	// Of 7 points, 2 are for the queue and 3 for the prefix.
	queues := func(waiting ...int) []Candidate {
		cs := make([]Load, len(waiting))
		for i, n := range waiting {
			cs[i] = Load{InFlight: n + 4, Decoding: 4}
		}
		return candidates(cs...)
	}
	f("nothing tells them apart but the match", nil, matching(queues(1, 1, 1), 0, 100, 0), 1, Matched)
	f("the longest queue costs 2: 600/1000 of 3 is less", nil, matching(queues(4, 0, 2), 600), 1, Spill)
	f("700/1000 of 3 is more", nil, matching(queues(4, 0, 2), 700), 0, Matched)
	f("half the queue costs 1: 300/1000 of 3 is less", nil, matching(queues(4, 0, 2), 0, 0, 300), 1, Spill)
	f("400/1000 of 3 is more", nil, matching(queues(4, 0, 2), 0, 0, 400), 2, Matched)
	f("streams are no queue", nil, candidates(Load{InFlight: 50, Decoding: 50}, Load{InFlight: 1}), 0, Cold)
	f("other weights", func(c *Config) { c.QueueWeight = 1 }, matching(queues(4, 0, 2), 600), 0, Matched)

	full := func(used ...float64) []Candidate {
		cs := queues(0, 0, 0)
		for i, u := range used {
			cs[i].Speed.KVTokens, cs[i].Load.Used = 10_000, u
		}
		return cs
	}
	f("a full cache costs 2: 600/1000 of 3 is less", nil, matching(full(10_000, 0, 5000), 600), 1, Spill)
	f("half a cache costs 1: 400/1000 of 3 is more", nil, matching(full(10_000, 0, 5000), 0, 0, 400), 2, Matched)
	f("more than full is full", nil, matching(full(90_000, 0, 5000), 700), 0, Matched)
}

func TestBlocks(t *testing.T) {
	f := func(what string, weight float64, cs []Candidate, want int, reason Reason) {
		t.Helper()
		cfg := Default()
		cfg.OverlapWeight = weight
		choice(t, what, mustNew(t, Blocks, cfg), 1600, cs, want, reason)
	}
	// In blocks of 16, of a prompt of 100: Dynamo's own example has the costs 8+10, 5+5 and 2+9.
	example := func() []Candidate {
		return matching(candidates(Load{Used: 160}, Load{Used: 80}, Load{Used: 144}), 1600-8*16, 1600-5*16, 1600-2*16)
	}
	f("10 is less than 11 and 18", 1, example(), 1, Spill)
	f("with weight 2: 15 and 13", 2, example(), 2, Matched)
	f("with weight 0: the emptiest", 0, example(), 1, Spill)
	f("waiting prefill counts", 1, candidates(Load{Queued: 300}, Load{Used: 200}), 1, Cold)
}

func TestLMetric(t *testing.T) {
	f := func(what string, cs []Candidate, want int, reason Reason) {
		t.Helper()
		choice(t, what, mustNew(t, LMetric, Default()), 1000, cs, want, reason)
	}
	f("200*5 is less than 1000*2", matching(candidates(Load{InFlight: 4}, Load{InFlight: 1}), 800), 0, Matched)
	f("500*5 is more than 1000*2", matching(candidates(Load{InFlight: 4}, Load{InFlight: 1}), 500), 1, Spill)
	f("(1000+1000)*2 is more than 1000*3", candidates(Load{InFlight: 1, Queued: 1000}, Load{InFlight: 2}), 1, Cold)
	f("idle instances differ", matching(candidates(Load{}, Load{}), 0, 800), 1, Matched)
}

func TestMooncake(t *testing.T) {
	f := func(what string, cs []Candidate, want int, reason Reason) {
		t.Helper()
		choice(t, what, mustNew(t, Mooncake, Default()), 1000, cs, want, reason)
	}
	// 1 ms per token, 10 ms per step.
	f("0.2 s of prefill behind 0.7 s: 0.91 s of 1.01 s", matching(candidates(Load{Queued: 700}, Load{}), 800), 0, Matched)
	f("0.2 s of prefill behind 0.9 s: 1.12 s of 1.01 s", matching(candidates(Load{Queued: 900}, Load{}), 800), 1, Spill)
	f("no price for the arrivals that will wait", matching(candidates(Load{Queued: 700, Arrivals: 100}, Load{}), 800), 0, Matched)

	unknown := matching(candidates(Load{Queued: 700}, Load{}), 800)
	unknown[0].Speed, unknown[1].Speed = Speed{}, Speed{}
	choice(t, "unknown speeds", mustNew(t, Mooncake, Default()), 1000, unknown, 0, Matched)
}

func TestSticky(t *testing.T) {
	f := func(what string, cs []Candidate, want int, reason Reason) {
		t.Helper()
		choice(t, what, mustNew(t, Sticky, Default()), 1000, cs, want, reason)
	}
	// 1 ms per token: 14 s of prefill are 14,000 tokens.
	f("0.8 of the prompt sticks", matching(candidates(Load{Queued: 14_000}, Load{}), 800), 0, Matched)
	f("a token less does not", matching(candidates(Load{Queued: 14_000}, Load{}), 799), 1, Spill)
	f("until saturated", matching(candidates(Load{Queued: 14_001}, Load{}), 800), 1, Spill)
	f("fewest tokens to prefill of those that hold it", matching(candidates(Load{Queued: 900}, Load{Queued: 800}, Load{}), 1000, 850), 0, Matched)
	f("else of all", matching(candidates(Load{Queued: 900}, Load{Queued: 500}), 500, 0), 0, Matched)

	fast := matching(candidates(Load{Queued: 20_000}, Load{}), 800)
	fast[0].Speed.PrefillToken /= 2
	choice(t, "the limit is in seconds of the instance's own prefill", mustNew(t, Sticky, Default()), 1000, fast, 0, Matched)
}

// What others throw dice about is settled so that replicas agree and nobody is a favourite: least work first, then by the prompt.
func TestRivals_Ties(t *testing.T) {
	for _, name := range []string{GatedMatch, WeightedScores, Blocks, LMetric, Mooncake, Sticky} {
		p := mustNew(t, name, Default())
		if d := p.Choose(&Request{Now: epoch, Tokens: 500}, candidates(Load{Work: 3}, Load{Work: 1}, Load{Work: 2})); d.Index != 1 {
			t.Errorf("%s: %d among equals; want the one with the least work, 1", name, d.Index)
		}
		idle := candidates(make([]Load, 8)...)
		counts := make(map[int]int)
		for i := range uint64(800) {
			counts[p.Choose(&Request{Now: epoch, Tokens: 500, Home: i}, idle).Index]++
		}
		for i := range idle {
			if counts[i] < 60 || counts[i] > 140 {
				t.Errorf("%s: 800 prompts on 8 idle instances: %v; want about 100 each", name, counts)
				break
			}
		}
	}
}

// Fifty requests that nobody holds go where there is room.
func TestRivals_NoMatchSpreadsByLoad(t *testing.T) {
	for _, name := range []string{GatedMatch, WeightedScores, Blocks, LMetric, Mooncake, Sticky} {
		f := newRig(t, mustNew(t, name, Default()), 8)
		for i := range 50 {
			f.send(Request{Output: 100}, part{string(rune('a' + i)), 2000})
		}
		for i, n := range f.served() {
			if n < 5 || n > 8 {
				t.Errorf("%s: 50 new prompts on 8 instances, %d on one (%d): %v", name, n, i, f.served())
				break
			}
		}
	}
}
