package bench

import (
	"slices"
	"time"
)

// schedule is the order of the engines' next events: a tournament tree, whose
// update costs one path from a leaf to the root and whose ties go to the lowest
// number.
type schedule struct {
	at   []time.Duration // by engine
	best []int32         // node n has the children 2n and 2n+1; leaves follow the inner nodes
}

func newSchedule(n int) schedule {
	s := schedule{at: slices.Repeat([]time.Duration{never}, n), best: make([]int32, 2*n)}
	for i := range n {
		s.best[n+i] = int32(i)
	}
	for node := n - 1; node >= 1; node-- {
		s.play(node)
	}
	return s
}

// first is the engine with the earliest event.
func (s *schedule) first() (engine int, at time.Duration) {
	engine = int(s.best[1])
	return engine, s.at[engine]
}

func (s *schedule) set(engine int, at time.Duration) {
	if s.at[engine] == at {
		return
	}
	s.at[engine] = at
	for node := (len(s.at) + engine) / 2; node >= 1; node /= 2 {
		s.play(node)
	}
}

func (s *schedule) play(node int) {
	a, b := s.best[2*node], s.best[2*node+1]
	if s.at[b] < s.at[a] || s.at[b] == s.at[a] && b < a {
		a = b
	}
	s.best[node] = a
}
