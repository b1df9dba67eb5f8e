package bench

import (
	"slices"
	"testing"
	"time"
)

func TestSchedule(t *testing.T) {
	for n := 1; n <= 40; n++ {
		s, r := newSchedule(n), stream(uint64(n), drawPolicy)
		want := slices.Repeat([]time.Duration{never}, n)
		for range 500 {
			engine, at := r.IntN(n), time.Duration(r.IntN(12))
			if r.IntN(5) == 0 {
				at = never
			}
			s.set(engine, at)
			want[engine] = at
			first := slices.Index(want, slices.Min(want))
			if got, at := s.first(); got != first || at != want[first] {
				t.Fatalf("%d engines: first is %d at %v; want %d at %v", n, got, at, first, want[first])
			}
		}
	}
}
