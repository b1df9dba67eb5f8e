package route

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestVirtual_Predicts(t *testing.T) {
	v := new(Virtual)
	cs := candidates(Load{InFlight: 99}) // what is true of the real instance does not count
	send := func(after time.Duration, tokens, match, output int, want time.Duration) {
		t.Helper()
		now := epoch.Add(after)
		v.Look(now, cs)
		cs[0].Match = match
		if got := v.Dispatch(now, &Request{Now: now, Tokens: tokens, Output: output}, &cs[0]); (got - want).Abs() > time.Microsecond {
			t.Errorf("at %s: %d tokens, %d cached: first token after %s; want %s", after, tokens, match, got, want)
		}
	}
	// 1 ms per token, 10 ms per step of 1000 tokens.
	send(0, 500, 0, 100, 510*time.Millisecond)
	send(100*time.Millisecond, 500, 400, 100, 410*time.Millisecond+101*time.Millisecond) // a tenth of a step
	if x := cs[0].Load; x.InFlight != 1 || x.Queued != 500 {
		t.Errorf("load seen by the second: %+v; want one request with 500 tokens", x)
	}
	send(10*time.Second, 2500, 0, 0, 2530*time.Millisecond)
	if v.InFlight() != 1 {
		t.Errorf("%d in flight after the answers had time to end; want 1", v.InFlight())
	}
	send(11*time.Second, 100_000_000, 0, 0, maxVirtualTTFT)
}

// Full is about the load, which is another one here; what is down is down for all policies.
func TestVirtual_Exclusions(t *testing.T) {
	cs := candidates(Load{}, Load{}, Load{})
	cs[0].Excluded, cs[1].Excluded = Full, Open
	new(Virtual).Look(epoch, cs)
	if cs[0].Excluded != Eligible || cs[1].Excluded != Open || cs[2].Excluded != Eligible {
		t.Errorf("exclusions %q, %q, %q", cs[0].Excluded, cs[1].Excluded, cs[2].Excluded)
	}
}

// Everything that is dispatched ends, also when instances leave, and memory is bounded.
func TestVirtual_Conservation(t *testing.T) {
	dice := rand.New(rand.NewPCG(4, 4))
	v := new(Virtual)
	cs := candidates(make([]Load, 4)...)
	now := epoch
	var nodes []*virtualNode
	for i := range 3 * maxVirtual {
		now = now.Add(time.Duration(dice.IntN(int(time.Millisecond))))
		v.Look(now, cs)
		x := &cs[dice.IntN(len(cs))]
		x.Match = dice.IntN(600)
		v.Dispatch(now, &Request{Now: now, Tokens: 1 + dice.IntN(600), Output: dice.IntN(300)}, x)
		if i == maxVirtual {
			nodes = append(nodes, v.nodes[2])
			v.Leave(2)
		}
		if v.InFlight() > maxVirtual {
			t.Fatalf("%d in flight; want at most %d", v.InFlight(), maxVirtual)
		}
	}
	v.Look(now.Add(24*time.Hour), cs)
	for _, n := range append(nodes, v.nodes...) {
		if l := n.ledger; l.queued != 0 || l.context != 0 || l.used != 0 || l.InFlight() != 0 {
			t.Errorf("after all is over: %d queued, %d context, %d used, %d in flight", l.queued, l.context, l.used, l.InFlight())
		}
	}
}

func BenchmarkVirtual(b *testing.B) {
	v, cs, r := new(Virtual), benchCandidates(64), benchRequest()
	now := epoch
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		now = now.Add(5 * time.Millisecond)
		v.Look(now, cs)
		v.Dispatch(now, &r, &cs[i%len(cs)])
	}
}
