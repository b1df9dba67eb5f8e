package bench

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func sampleOf(ms ...int) *Sample {
	s := &Sample{}
	for _, v := range ms {
		s.Add(time.Duration(v) * time.Millisecond)
	}
	return s
}

func TestSampleQuantile(t *testing.T) {
	f := func(s *Sample, q float64, want time.Duration) {
		t.Helper()
		if got := s.Quantile(q); got != want {
			t.Errorf("Quantile(%g) = %v; want %v", q, got, want)
		}
	}
	f(&Sample{}, 0.5, 0)
	f(sampleOf(7), 0, 7*time.Millisecond)
	f(sampleOf(7), 0.99, 7*time.Millisecond)
	f(sampleOf(4, 1, 3, 2), 0.5, 2500*time.Microsecond) // between the two in the middle, whatever the order
	f(sampleOf(4, 1, 3, 2), 1, 4*time.Millisecond)
	f(sampleOf(4, 1, 3, 2), 2, 4*time.Millisecond)
	f(sampleOf(4, 1, 3, 2), -1, time.Millisecond)
	f(sampleOf(0, 10), 0.9, 9*time.Millisecond)
}

func TestSampleQuantileAgainstRanks(t *testing.T) {
	s := &Sample{}
	for _, v := range rand.New(rand.NewPCG(1, 2)).Perm(1001) {
		s.Add(time.Duration(v) * time.Millisecond)
	}
	got := s.Summary()
	want := Summary{P50: 500, P90: 900, P99: 990, Mean: 500} // the q-quantile of 0..1000 is 1000*q
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
}

// A value added after a quantile was asked for must count in the next one.
func TestSampleStaysSorted(t *testing.T) {
	s := sampleOf(5, 9)
	s.Quantile(0.5)
	s.Add(time.Millisecond)
	if got := s.Quantile(0); got != time.Millisecond {
		t.Errorf("minimum = %v; want 1ms", got)
	}
}

func TestImbalance(t *testing.T) {
	m := NewImbalance(2)
	if got := m.Value(); got != 1 {
		t.Errorf("before any arrival: %v; want 1", got)
	}
	m.Arrive(1000, true) // idle: 1
	m.Send(0, 1000)
	m.Arrive(1000, true) // (1000+1000)/(500+1000)
	near := func(want float64) {
		t.Helper()
		if got := m.Value(); math.Abs(got-want) > 1e-12 {
			t.Errorf("imbalance = %v; want %v", got, want)
		}
	}
	near((1 + 4.0/3) / 2)
	m.Send(1, 1000)
	m.Arrive(1000, false) // warm-up counts for nothing
	m.Prefilled(0, 1000)
	m.Prefilled(1, 1000)
	m.Arrive(1000, true)
	near((1 + 4.0/3 + 1) / 3)
}

func TestCeiling(t *testing.T) {
	var c ceiling
	f := func(blocks []uint64, want int) {
		t.Helper()
		got := c.lookup(blocks)
		if got != want {
			t.Errorf("lookup(%v) = %d; want %d", blocks, got, want)
		}
		c.add(blocks, got)
	}
	f([]uint64{0, 2, 3}, 0)
	f([]uint64{0, 2, 3}, 3)
	f([]uint64{0, 2, 9, 4}, 2)
	f([]uint64{5, 7, 8}, 0)
	many := make([]uint64, 100_000)
	for i := range many {
		many[i] = mix(7, uint64(i))
	}
	f(many, 0)
	f(many, len(many))
	if c.used != 8+len(many) {
		t.Errorf("%d blocks kept; want %d", c.used, 8+len(many))
	}
	if got := cacheable(4, 16, 64); got != 3 {
		t.Errorf("cacheable of a prompt of whole blocks = %d; want 3, for the last token is computed", got)
	}
	if got := cacheable(4, 16, 65); got != 4 {
		t.Errorf("cacheable of 65 tokens = %d; want 4", got)
	}
}
