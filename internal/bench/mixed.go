package bench

import (
	"strings"
	"time"
)

// Mixed runs several workloads at the same time on one fleet. Their texts and
// sessions are apart.
type Mixed []Workload

// Name implements [Workload].
func (m Mixed) Name() string {
	names := make([]string, len(m))
	for i, w := range m {
		names[i] = w.Name()
	}
	return "mixed: " + strings.Join(names, " + ")
}

// Source implements [Workload].
func (m Mixed) Source(seed uint64) Source {
	s := make(mixedSource, len(m))
	for i, w := range m {
		s[i] = w.Source(mix(seed+1, uint64(i)))
	}
	return s
}

type mixedSource []Source

// first is the part with the earliest arrival; of equals the first.
func (s mixedSource) first() (part int, at time.Duration) {
	part = -1
	for i, p := range s {
		if t, ok := p.Next(); ok && (part < 0 || t < at) {
			part, at = i, t
		}
	}
	return part, at
}

func (s mixedSource) Next() (time.Duration, bool) {
	part, at := s.first()
	return at, part >= 0
}

func (s mixedSource) Take(r *Request) {
	part, _ := s.first()
	s[part].Take(r)
	r.Part = part
	if r.Session != 0 {
		r.Session ^= partKey(part)
	}
}

func (s mixedSource) Ended(r *Request, now time.Duration) {
	inner := *r
	if inner.Session != 0 {
		inner.Session ^= partKey(r.Part)
	}
	s[r.Part].Ended(&inner, now)
}

// partKey moves the sessions of a part away from those of the others.
func partKey(part int) uint64 { return mix(uint64(part)+1, 0x6d69786564) &^ 0xff }
