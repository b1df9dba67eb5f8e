package route

import "math"

// first finds the candidate that comes first in the key's own order among those that fit, or -1.
//
// The order is that of rendezvous hashing. Against a ring of virtual nodes it needs no state, spreads exactly evenly, and what
// overflows from one instance goes to all others, each key to its own next one, not all to the neighbour on the ring.
// With weights w the order is that of -ln(hash)/w, which gives each instance its share w (Schindelhauer, Schomaker 2005).
func first(key uint64, cs []Candidate, fits func(*Candidate) bool) int {
	best, top := -1, 0.0
	k := mix(key)
	for i := range cs {
		x := &cs[i]
		if x.Excluded != Eligible || !fits(x) {
			continue
		}
		rank := unit(mix(x.NameHash ^ k))
		if x.Weight > 0 && x.Weight != 1 {
			rank = math.Pow(rank, 1/x.Weight)
		}
		if best < 0 || rank > top || rank == top && x.ID < cs[best].ID {
			best, top = i, rank
		}
	}
	return best
}

// unit maps a hash into (0, 1).
func unit(h uint64) float64 { return (float64(h>>11) + 0.5) / (1 << 53) }

// prefixHash sends the same beginning to the same instance (key: Request.Simple). A guard keeps a hot key from drowning its
// instance.
type prefixHash struct {
	guard int // requests in flight; 0 means none
}

// Name implements Policy.
func (prefixHash) Name() string { return PrefixHash }

// Choose implements Policy.
func (p prefixHash) Choose(r *Request, cs []Candidate) Decision {
	if p.guard <= 0 {
		return hashed(r, cs, func(*Candidate) bool { return true })
	}
	return hashed(r, cs, func(x *Candidate) bool { return x.Load.InFlight < p.guard })
}

// boundedHash is prefixHash with a bound on the load of an instance.
type boundedHash struct {
	factor    float64
	threshold int
}

// Name implements Policy.
func (boundedHash) Name() string { return PrefixHashBounded }

// Choose implements Policy. The relative bound of an instance is its share of factor*(all requests in flight + this one), rounded
// up; at least one instance is always below it. The absolute bound is SageMaker's PREFIX_AWARE: with all at the threshold the
// least loaded takes the request.
func (p boundedHash) Choose(r *Request, cs []Candidate) Decision {
	if p.threshold > 0 {
		return hashed(r, cs, func(x *Candidate) bool { return x.Load.InFlight < p.threshold })
	}
	share := fairShare(cs) * p.factor
	return hashed(r, cs, func(x *Candidate) bool {
		return float64(x.Load.InFlight) < math.Ceil(share*x.weight())
	})
}

// fairShare is the number of requests in flight per unit of weight, with one more request than now.
func fairShare(cs []Candidate) float64 {
	requests, weight := 1, int64(0)
	for i := range cs {
		if cs[i].Excluded == Eligible {
			requests += cs[i].Load.InFlight
			weight += int64(cs[i].weight() * weightUnit)
		}
	}
	return float64(requests) * weightUnit / float64(max(weight, 1))
}

// weightUnit makes weights whole numbers, whose sum does not depend on the order.
const weightUnit = 1 << 16

// hashed picks the key's first instance that has room, and says whether that is the key's own.
func hashed(r *Request, cs []Candidate, room func(*Candidate) bool) Decision {
	own := first(r.Simple, cs, func(*Candidate) bool { return true })
	if own < 0 {
		return none(cs)
	}
	if room(&cs[own]) {
		return Decision{Index: own, Reason: Hashed}
	}
	next := first(r.Simple, cs, room)
	if next < 0 {
		next = fewest(r.Simple, cs)
	}
	if next == own {
		return Decision{Index: own, Reason: Hashed}
	}
	return Decision{Index: next, Reason: Overflow}
}
