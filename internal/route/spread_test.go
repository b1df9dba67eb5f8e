package route

import (
	"fmt"
	"slices"
	"testing"
)

// tally lets a policy choose n times, with other dice each time, and counts. What is chosen ends at once.
func tally(p Policy, cs []Candidate, n int) []int {
	counts := make([]int, len(cs))
	for i := range n {
		r := Request{Now: epoch, Tokens: 100, Draw: mix(uint64(i)), Simple: Hash(fmt.Sprint(i))}
		counts[p.Choose(&r, cs).Index]++
	}
	return counts
}

func TestRoundRobin(t *testing.T) {
	p := mustNew(t, RoundRobin, Default())
	cs := candidates(Load{}, Load{}, Load{})
	if got, want := tally(p, cs, 30), []int{10, 10, 10}; !slices.Equal(got, want) {
		t.Errorf("thirty turns of three: %v; want %v", got, want)
	}
	cs[1].Excluded = Open
	if got, want := tally(p, cs, 30), []int{15, 0, 15}; !slices.Equal(got, want) {
		t.Errorf("one is away: %v; want %v", got, want)
	}
	cs[1].Excluded = Eligible
	if got := tally(p, cs, 30); slices.Max(got) > 11 {
		t.Errorf("it is back: %v; want ten turns each, none made up for", got)
	}
	p = mustNew(t, RoundRobin, Default())
	cs[2].Weight = 2
	if got, want := tally(p, cs, 40), []int{10, 10, 20}; !slices.Equal(got, want) {
		t.Errorf("one has weight two: %v; want %v", got, want)
	}
}

func TestRandom_Shares(t *testing.T) {
	f := func(cs []Candidate, want ...int) {
		t.Helper()
		for i, got := range tally(random{}, cs, 10_000) {
			if got < want[i]-300 || got > want[i]+300 {
				t.Errorf("candidate %d was drawn %d times in 10,000; want about %d", i, got, want[i])
			}
		}
	}
	cs := candidates(Load{}, Load{}, Load{}, Load{})
	f(cs, 2500, 2500, 2500, 2500)
	cs[0].Weight, cs[1].Weight = 2, .5
	f(cs, 4444, 1111, 2222, 2222)
	cs[2].Excluded = Draining
	f(cs, 5714, 1428, 0, 2857)
}

func TestLeastRequests(t *testing.T) {
	f := func(cs []Candidate, want int) {
		t.Helper()
		if d := (leastRequests{}).Choose(&Request{Draw: 1}, cs); d.Index != want || d.Reason != LeastRequests {
			t.Errorf("%+v; want %d", d, want)
		}
	}
	cs := candidates(Load{InFlight: 3}, Load{InFlight: 2, Work: 8}, Load{InFlight: 2, Work: 7})
	f(cs, 2)
	cs[0].Weight = 2
	f(cs, 0)
	cs[0].Excluded = Failed
	f(cs, 2)
	cs[2].Excluded = Full
	f(cs, 1)
}

func TestLeastRequests_TiesSpread(t *testing.T) {
	for i, n := range tally(leastRequests{}, candidates(Load{}, Load{}, Load{}, Load{}), 4000) {
		if n < 850 || n > 1150 {
			t.Errorf("idle candidate %d was chosen %d times in 4000; want about 1000", i, n)
		}
	}
}

func TestPowerOfTwo(t *testing.T) {
	cs := candidates(Load{InFlight: 1}, Load{InFlight: 2}, Load{InFlight: 3}, Load{InFlight: 4})
	// The busiest is never chosen, and the others by the number of those that are busier: 3, 2 and 1 of 6 pairs.
	want := []int{3000, 2000, 1000, 0}
	for i, n := range tally(powerOfTwo{}, cs, 6000) {
		if n < want[i]-200 || n > want[i]+200 {
			t.Errorf("candidate %d was chosen %d times in 6000; want about %d", i, n, want[i])
		}
	}
}
