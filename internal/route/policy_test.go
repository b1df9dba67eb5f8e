package route

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/warmroute/warmroute/prefix"
)

// fleetOf makes n candidates in all kinds of states. Few distinct values, so that there are many ties.
func fleetOf(dice *rand.Rand, n int) []Candidate {
	speeds := []Speed{{}, Unknown()}
	for _, name := range Engines()[:2] {
		s, _ := Prior(name)
		speeds = append(speeds, s)
	}
	cs := make([]Candidate, n)
	for i := range cs {
		name := fmt.Sprint("instance-", i)
		match := 1024 * dice.IntN(4)
		cs[i] = Candidate{
			ID: prefix.InstanceID(i), Name: name, NameHash: Hash(name), Match: match, Known: match + 1024*dice.IntN(2),
			Speed: speeds[dice.IntN(len(speeds))], Weight: float64(dice.IntN(3)),
			Load: Load{
				Queued: float64(4096 * dice.IntN(4)), Decoding: float64(16 * dice.IntN(3)), Context: float64(100_000 * dice.IntN(3)),
				Used: float64(200_000 * dice.IntN(6)), InFlight: dice.IntN(4), Fresh: dice.IntN(4) == 0, Work: float64(dice.IntN(3)),
				Arrivals: float64(dice.IntN(3)), HitRate: 0.5, Turnover: float64(dice.IntN(3)), Stay: 8,
			},
		}
		if dice.IntN(3) == 0 {
			cs[i].Excluded = Exclusion(1 + dice.IntN(int(Full)))
		}
	}
	return cs
}

func requestOf(dice *rand.Rand) Request {
	r := Request{
		Now: epoch, Tokens: 1 + dice.IntN(8000), Output: dice.IntN(1000), Home: dice.Uint64(), Simple: dice.Uint64(), Draw: dice.Uint64(),
		Waited: time.Duration(dice.IntN(3)) * time.Second,
	}
	if dice.IntN(2) == 0 {
		r.Session = 1 + dice.Uint64N(8)
	}
	return r
}

func shuffled(dice *rand.Rand, cs []Candidate) []Candidate {
	out := slices.Clone(cs)
	dice.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// checkChoices lets two copies of each policy choose for the same requests from the same candidates in different orders.
func checkChoices(t *testing.T, seed uint64, n, rounds int) {
	t.Helper()
	dice := rand.New(rand.NewPCG(seed, 7))
	for _, name := range Policies() {
		a, b := mustNew(t, name, Default()), mustNew(t, name, Default())
		for range rounds {
			cs, r := fleetOf(dice, n), requestOf(dice)
			other := shuffled(dice, cs)
			d, e := a.Choose(&r, cs), b.Choose(&r, other)
			if (d.Index < 0) != (e.Index < 0) || d.Hold != e.Hold || d.Reason != e.Reason || d.RetryAfter != e.RetryAfter || d.Cost != e.Cost {
				t.Fatalf("%s: %+v in one order, %+v in another", name, d, e)
			}
			if d.Index < 0 {
				if some := slices.ContainsFunc(cs, func(x Candidate) bool { return x.Excluded == Eligible }); some {
					t.Fatalf("%s: %+v though some may be chosen", name, d)
				}
				continue
			}
			if cs[d.Index].ID != other[e.Index].ID {
				t.Fatalf("%s: chose %d in one order, %d in another", name, cs[d.Index].ID, other[e.Index].ID)
			}
			if cs[d.Index].Excluded != Eligible {
				t.Fatalf("%s: chose a candidate that is %s", name, cs[d.Index].Excluded)
			}
		}
	}
}

func TestChoose_OrderNeverMatters(t *testing.T) {
	for n := range 20 {
		checkChoices(t, uint64(n), n, 200)
	}
	checkChoices(t, 99, 300, 20)
}

func FuzzChoose(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Add([]byte{255, 0, 0, 0, 0, 0, 0, 0, 64})
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) < 9 {
			t.Skip("want a seed and a number of candidates")
		}
		checkChoices(t, binary.LittleEndian.Uint64(in), int(in[8]), 3)
	})
}

func TestChoose_NobodyEligible(t *testing.T) {
	f := func(excluded []Exclusion, want Reason) {
		t.Helper()
		cs := make([]Candidate, len(excluded))
		for i, e := range excluded {
			cs[i] = Candidate{ID: prefix.InstanceID(i), Excluded: e}
		}
		for _, name := range Policies() {
			for _, session := range []uint64{0, 5} {
				d := mustNew(t, name, Default()).Choose(&Request{Now: epoch, Tokens: 10, Session: session}, cs)
				if d.Index != -1 || d.Reason != want {
					t.Errorf("%s of %v: %+v; want index -1, %s", name, excluded, d, want)
				}
			}
		}
	}
	f(nil, NoneReady)
	f([]Exclusion{Failed, Open, Cooling, Draining, Unready}, NoneReady)
	f([]Exclusion{Open, Full, Unready}, AllFull)
}

// The unit of time is a convention: with all of it scaled, the choice is the same.
func TestCost_ScaleOfTime(t *testing.T) {
	dice := rand.New(rand.NewPCG(3, 3))
	p := mustNew(t, Cost, Default())
	for range 500 {
		cs, r := fleetOf(dice, 12), requestOf(dice)
		for i := range cs {
			if !cs[i].Speed.Known() {
				cs[i].Speed = Unknown()
			}
		}
		slow := slices.Clone(cs)
		for i := range slow {
			s, l := &slow[i].Speed, &slow[i].Load
			s.PrefillToken *= 8
			s.PrefillQuad *= 8
			s.DecodeBase *= 8
			s.DecodeCtx *= 8
			l.Stay *= 8
			l.Arrivals /= 8
		}
		d, e := p.Choose(&r, cs), p.Choose(&r, slow)
		if d.Index != e.Index || d.Reason != e.Reason || d.Cost*8 != e.Cost {
			t.Fatalf("%+v, eight times slower %+v", d, e)
		}
	}
}

func TestChoose_NoAllocations(t *testing.T) {
	for _, n := range []int{64, 1000} {
		cs, r := benchCandidates(n), benchRequest()
		for _, name := range Policies() {
			p := mustNew(t, name, Default())
			if got := testing.AllocsPerRun(100, func() { p.Choose(&r, cs) }); got != 0 {
				t.Errorf("%s of %d allocates %v times; want 0", name, n, got)
			}
		}
	}
}

// benchCandidates are busy instances with all prices in play.
func benchCandidates(n int) []Candidate {
	speed, _ := Prior("llama-3.1-70b-8xh100")
	cs := make([]Candidate, n)
	for i := range cs {
		name := fmt.Sprint("instance-", i)
		cs[i] = Candidate{
			ID: prefix.InstanceID(i), Name: name, NameHash: Hash(name), Match: i * 100 % 8000, Known: i * 120 % 8000, Speed: speed,
			Load: Load{
				Queued: float64(i * 7919 % 9000), Decoding: float64(i % 50), Context: float64(i * 6007 % 300_000), Used: 1e5, InFlight: i % 50,
				Arrivals: 1, Work: float64(i), Turnover: 2, HitRate: 0.5, Stay: 10,
			},
		}
	}
	return cs
}

func benchRequest() Request {
	return Request{Now: epoch, Tokens: 8000, Output: 200, Home: 7, Draw: 9, Simple: 4, Session: 8}
}

func BenchmarkChoose(b *testing.B) {
	for _, n := range []int{64, 1000} {
		for _, name := range Policies() {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				cs, r, p := benchCandidates(n), benchRequest(), mustNew(b, name, Default())
				b.ReportAllocs()
				for b.Loop() {
					p.Choose(&r, cs)
				}
			})
		}
	}
}
