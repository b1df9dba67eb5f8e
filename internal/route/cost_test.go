package route

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/warmroute/warmroute/prefix"
)

// simple is an engine whose numbers can be done in the head: 1 ms per token, 10 ms per step, 1000 tokens in a step.
var simple = Speed{PrefillToken: 1e-3, DecodeBase: 10e-3, StepTokens: 1000}

func TestCopied(t *testing.T) {
	p := newCost(Default())
	f := func(longest, match, u, want float64) {
		t.Helper()
		if got := p.copied(&quote{longest: longest}, &Candidate{Match: int(match)}, u); got != want {
			t.Errorf("%g uncached tokens after %g, while another holds %g: copied is priced %g; want %g", u, match, longest, got, want)
		}
	}
	f(0, 0, 500, 0)
	f(400, 400, 100, 0)     // the longest match itself
	f(400, 0, 500, 0.2)     // 400 of the 500 are a second copy
	f(400, 200, 300, 0.5/3) // 200 of the 300
	f(400, 0, 100, 0.25)    // what a ghost may hold does not make it more than the whole
	f(100, 400, 100, 0)     // an excluded candidate may hold more than the longest
}

func TestTerms(t *testing.T) {
	f := func(s Speed, l Load, r Request, match, known int, want Terms) {
		t.Helper()
		p := newCost(Default())
		x := Candidate{Match: match, Known: known, Load: l, Speed: s}
		q := quote{tokens: float64(r.Tokens), output: p.cfg.DecodeShare * float64(r.Output), crowd: 1000}
		want.Thrift = p.cfg.Thrift
		got := p.terms(&q, &x)
		if diff := cmp.Diff(want, got, cmpopts.EquateApprox(1e-12, 0)); diff != "" {
			t.Errorf("terms of %+v (-want +got):\n%s", x, diff)
		}
	}
	idle := Load{}
	f(simple, idle, Request{Tokens: 500}, 0, 0, Terms{Uncached: 500, Wait: .01, Prefill: .5})
	f(simple, idle, Request{Tokens: 2500}, 0, 0, Terms{Uncached: 2500, Wait: .03, Prefill: 2.5})
	f(simple, idle, Request{Tokens: 500}, 500, 500, Terms{Uncached: 1, Wait: .01, Prefill: .001})
	f(simple, idle, Request{Tokens: 500}, 900, 900, Terms{Uncached: 1, Wait: .01, Prefill: .001})
	f(simple, idle, Request{Tokens: 500}, 100, 300, Terms{Uncached: 390, Wait: .01, Prefill: .39})

	quadratic := simple
	quadratic.PrefillQuad = 1e-6
	f(quadratic, idle, Request{Tokens: 500}, 300, 300, Terms{Uncached: 200, Wait: .01, Prefill: .2 + 1e-6*200*(300+100)})

	f(simple, Load{Queued: 800}, Request{Tokens: 500}, 0, 0, Terms{Uncached: 500, Wait: .8 + .02, Prefill: .5})
	f(simple, Load{Queued: 800, Fresh: true}, Request{Tokens: 500}, 0, 0, Terms{Uncached: 500, Wait: .8 + .02, Prefill: .5, Doubt: 1.32})
	f(simple, Load{Queued: 400, Fresh: true}, Request{Tokens: 500}, 0, 0, Terms{Uncached: 500, Wait: .4 + .01, Prefill: .5})
	f(simple, Load{Queued: 400, Decoding: 200}, Request{Tokens: 500}, 0, 0, Terms{Uncached: 500, Wait: .4 + .02, Prefill: .5, Interference: 10})
	f(simple, Load{Queued: 40, Arrivals: 2}, Request{Tokens: 500}, 0, 0, Terms{Uncached: 500, Wait: .05, Prefill: .5, Congestion: 1})
	f(simple, Load{Queued: 40, Arrivals: 200}, Request{Tokens: 500}, 0, 0, Terms{Uncached: 500, Wait: .05, Prefill: .5, Congestion: 4})
	f(simple, Load{HitRate: .8, Turnover: .99}, Request{Tokens: 500}, 0, 0, Terms{Uncached: 500, Wait: .01, Prefill: .5})
	f(simple, Load{HitRate: .8, Turnover: 1}, Request{Tokens: 500}, 0, 0, Terms{Uncached: 500, Wait: .01, Prefill: .5, Memory: .4})

	decoding := simple
	decoding.DecodeCtx = 1e-6
	f(decoding, Load{Context: 5000}, Request{Tokens: 500, Output: 300}, 0, 0, Terms{Uncached: 500, Wait: .015, Prefill: .5, Decode: .1 * 300 * 1e-6 * 4000})
	f(decoding, Load{Context: 900}, Request{Tokens: 500, Output: 300}, 0, 0, Terms{Uncached: 500, Wait: .0109, Prefill: .5})

	small := simple
	small.KVTokens = 10_000
	f(small, Load{Used: 9000, Stay: 9}, Request{Tokens: 500}, 0, 0, Terms{Uncached: 500, Wait: .01, Prefill: .5})
	f(small, Load{Used: 10_000, Stay: 9}, Request{Tokens: 500}, 0, 0, Terms{Uncached: 500, Wait: .01, Prefill: .5, Admission: .5 * 500 * 9 / 10_000})

	u := Unknown()
	f(Speed{}, idle, Request{Tokens: 500}, 0, 0, Terms{Uncached: 500, Wait: u.DecodeBase, Prefill: 500 * (u.PrefillToken + u.PrefillQuad*250)})
}

// The price that decides is to the last bit the total that is explained.
func TestPrice_IsTheTotalOfTheTerms(t *testing.T) {
	dice := rand.New(rand.NewPCG(5, 5))
	p := newCost(Default())
	for range 300 {
		cs, r := fleetOf(dice, 8), requestOf(dice)
		q := p.quote(&r, cs)
		for i := range cs {
			total, ready := p.price(&q, &cs[i])
			if x := p.terms(&q, &cs[i]); total != x.Total() || ready != x.Ready() {
				t.Fatalf("price %v, ready %v; terms %+v", total, ready, x)
			}
		}
	}
}

func candidates(loads ...Load) []Candidate {
	cs := make([]Candidate, len(loads))
	for i, l := range loads {
		name := fmt.Sprint("instance-", i)
		cs[i] = Candidate{ID: prefix.InstanceID(i), Name: name, NameHash: Hash(name), Load: l, Speed: simple}
	}
	return cs
}

func TestCost_Choice(t *testing.T) {
	f := func(what string, r Request, cs []Candidate, want int, reason Reason) {
		t.Helper()
		r.Now, r.MaxHold = epoch, -1
		if d := newCost(Default()).Choose(&r, cs); d.Index != want || d.Reason != reason {
			t.Errorf("%s: %+v; want %d, %s", what, d, want, reason)
		}
	}
	with := func(cs []Candidate, change func([]Candidate)) []Candidate {
		change(cs)
		return cs
	}
	three := func() []Candidate { return candidates(Load{Work: 9}, Load{Work: 5}, Load{Work: 7}) }

	f("nobody holds it: least work", Request{Tokens: 500}, three(), 1, Cold)
	f("the holder", Request{Tokens: 500}, with(three(), func(cs []Candidate) { cs[0].Match = 400 }), 0, Matched)
	f("the holder of more", Request{Tokens: 500}, with(three(), func(cs []Candidate) { cs[0].Match, cs[2].Match = 200, 400 }), 2, Matched)
	f("too long a wait at the holder", Request{Tokens: 500},
		with(three(), func(cs []Candidate) { cs[0].Match, cs[0].Load.Queued = 400, 3000 }), 1, Spill)
	f("a wait worth while", Request{Tokens: 500},
		with(three(), func(cs []Candidate) { cs[0].Match, cs[0].Load.Queued = 400, 300 }), 0, Matched)
	f("one that may hold it still", Request{Tokens: 5000}, with(three(), func(cs []Candidate) { cs[0].Known = 4000 }), 0, Cold)
	f("a ghost is worth little", Request{Tokens: 5000},
		with(three(), func(cs []Candidate) { cs[0].Known, cs[0].Load.Queued = 4000, 500 }), 1, Cold)
	f("noise of speeds is a tie", Request{Tokens: 500},
		with(three(), func(cs []Candidate) { cs[0].Speed.PrefillToken *= .97 }), 1, Cold)
	f("more than noise is not", Request{Tokens: 500},
		with(three(), func(cs []Candidate) { cs[0].Speed.PrefillToken *= .8 }), 0, Cold)
	f("noise does not hide a block", Request{Tokens: 10_000},
		with(three(), func(cs []Candidate) { cs[0].Match = 64 }), 0, Matched)
	f("one left", Request{Tokens: 500},
		with(three(), func(cs []Candidate) { cs[0].Excluded, cs[1].Excluded = Open, Failed }), 2, Sole)
	f("the faster one of a mixed pool", Request{Tokens: 5000},
		with(three(), func(cs []Candidate) { cs[2].Speed.PrefillToken /= 2 }), 2, Cold)
	f("room in the cache", Request{Tokens: 500}, with(three(), func(cs []Candidate) {
		for i := range cs {
			cs[i].Speed.KVTokens = 10_000
			cs[i].Load.Stay = 30
		}
		cs[1].Load.Used = 10_000
	}), 2, Cold)
}

// Without any knowledge of speeds the choice is as it would be with the right ones.
func TestCost_UnknownSpeeds(t *testing.T) {
	dice := rand.New(rand.NewPCG(6, 6))
	p := newCost(Default())
	same, rounds := 0, 1000
	for range rounds {
		cs, r := fleetOf(dice, 8), requestOf(dice)
		known, unknown := Unknown(), Speed{}
		known.PrefillToken *= .75
		r.MaxHold = -1
		var picks [2]int
		for k, s := range []Speed{known, unknown} {
			for i := range cs {
				cs[i].Speed = s
			}
			picks[k] = p.Choose(&r, cs).Index
		}
		if picks[0] == picks[1] {
			same++
		}
	}
	if same < rounds*9/10 {
		t.Errorf("an unknown engine and one a quarter faster: same choice in %d of %d; want 9 of 10", same, rounds)
	}
}

func TestCost_Hold(t *testing.T) {
	f := func(what string, cfg func(*Config), r Request, l Load, want bool) {
		t.Helper()
		c := Default()
		if cfg != nil {
			cfg(&c)
		}
		r.Now = epoch
		cs := candidates(l, l)
		d := newCost(c).Choose(&r, cs)
		if d.Hold != want || d.Hold != (d.Reason == LateBound) || d.Index < 0 {
			t.Errorf("%s: %+v; want hold %t", what, d, want)
		}
	}
	busy := Load{Queued: 800}
	f("no room in the next step", nil, Request{Tokens: 500}, busy, true)
	f("room in the next step", nil, Request{Tokens: 200}, busy, false)
	f("nothing before it, however long", nil, Request{Tokens: 50_000}, Load{}, false)
	f("held long enough", nil, Request{Tokens: 500, Waited: 2 * time.Second}, busy, false)
	f("held almost long enough", nil, Request{Tokens: 500, Waited: 2*time.Second - 1}, busy, true)
	f("never", nil, Request{Tokens: 500, MaxHold: -1}, busy, false)
	f("own bound", nil, Request{Tokens: 500, MaxHold: 5 * time.Second, Waited: 3 * time.Second}, busy, true)
	f("switched off", func(c *Config) { c.MaxHold = 0 }, Request{Tokens: 500}, busy, false)
	aims := func(c *Config) { c.TTFTObjective = time.Second }
	f("a quarter of the aim is left", aims, Request{Tokens: 500, Waited: 249 * time.Millisecond}, busy, true)
	f("a quarter of the aim is gone", aims, Request{Tokens: 500, Waited: 250 * time.Millisecond}, busy, false)
}

func TestCost_HoldWhenAllAreFull(t *testing.T) {
	cs := candidates(Load{}, Load{})
	cs[0].Excluded, cs[1].Excluded = Full, Open
	p := newCost(Default())
	if d := p.Choose(&Request{Now: epoch, Tokens: 5}, cs); d.Index != -1 || !d.Hold || d.Reason != AllFull {
		t.Errorf("all full: %+v; want to be held without an instance", d)
	}
	if d := p.Choose(&Request{Now: epoch, Tokens: 5, Waited: time.Minute}, cs); d.Index != -1 || d.Hold {
		t.Errorf("all full for a minute: %+v; want no hold", d)
	}
}

func TestCost_Overload(t *testing.T) {
	f := func(cfg, own time.Duration, l Load, want time.Duration) {
		t.Helper()
		c := Default()
		c.TTFTBudget = cfg
		d := newCost(c).Choose(&Request{Now: epoch, Tokens: 500, Budget: own, MaxHold: -1}, candidates(l, Load{Queued: l.Queued + 5000}))
		if refused := d.Reason == Overload; refused != (want > 0) || refused != (d.Index < 0) || (d.RetryAfter-want).Abs() > time.Microsecond {
			t.Errorf("budget %s, own %s, %+v: %+v; want retry after %s", cfg, own, l, d, want)
		}
	}
	// 500 tokens behind 800: 0.8 s + 2 steps + 0.5 s.
	f(time.Second, 0, Load{Queued: 800}, 320*time.Millisecond)
	f(time.Second, 0, Load{Queued: 300}, 0)
	f(0, 0, Load{Queued: 800_000}, 0)
	f(time.Second, 2*time.Second, Load{Queued: 800}, 0)
	f(0, time.Second, Load{Queued: 800}, 320*time.Millisecond)
}

func TestForecast(t *testing.T) {
	x := Candidate{Match: 100, Load: Load{Queued: 800}, Speed: simple}
	ahead, prefill := Forecast(&Request{Tokens: 500}, &x)
	if ahead != 820*time.Millisecond || prefill != 400*time.Millisecond {
		t.Errorf("forecast %s and %s; want 820ms and 400ms", ahead, prefill)
	}
}

func TestCeil(t *testing.T) {
	for _, x := range []float64{0, .1, .999, 1, 1.0000001, 7, 1e6 + .5} {
		if got := ceil(x); got != math.Ceil(x) {
			t.Errorf("ceil(%v) = %v", x, got)
		}
	}
}
