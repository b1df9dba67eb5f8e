package route

// roundRobin gives each instance its turn, by start-time fair queueing: an instance that was away does not get its missed turns
// at once, and a weight of two gives two turns.
type roundRobin struct {
	clock float64   // start of the last turn
	ready []float64 // by instance: end of its last turn
}

// Name implements Policy.
func (*roundRobin) Name() string { return RoundRobin }

// Choose implements Policy.
func (p *roundRobin) Choose(_ *Request, cs []Candidate) Decision {
	best, first := -1, 0.0
	for i := range cs {
		x := &cs[i]
		if x.Excluded != Eligible {
			continue
		}
		if int(x.ID) >= len(p.ready) {
			p.ready = append(p.ready, make([]float64, int(x.ID)+1-len(p.ready))...)
		}
		start := max(p.clock, p.ready[x.ID])
		if best < 0 || start < first || start == first && x.ID < cs[best].ID {
			best, first = i, start
		}
	}
	if best < 0 {
		return none(cs)
	}
	p.clock = first
	p.ready[cs[best].ID] = first + 1/cs[best].weight()
	return Decision{Index: best, Reason: Turn}
}

// random throws the dice of the request. The dice pick a name, not a position.
type random struct{}

// Name implements Policy.
func (random) Name() string { return Random }

// Choose implements Policy.
func (random) Choose(r *Request, cs []Candidate) Decision {
	best := first(r.Draw, cs, func(*Candidate) bool { return true })
	if best < 0 {
		return none(cs)
	}
	return Decision{Index: best, Reason: Drawn}
}

// leastRequests takes the instance with the fewest requests in flight for its weight.
type leastRequests struct{}

// Name implements Policy.
func (leastRequests) Name() string { return FewestRequests }

// Choose implements Policy.
func (leastRequests) Choose(r *Request, cs []Candidate) Decision {
	best := fewest(r.Draw, cs)
	if best < 0 {
		return none(cs)
	}
	return Decision{Index: best, Reason: LeastRequests}
}

// fewest finds the candidate with the fewest requests in flight for its weight, ties by least work, then in the key's order.
func fewest(key uint64, cs []Candidate) int {
	best := -1
	for i := range cs {
		if cs[i].Excluded == Eligible && (best < 0 || lighter(key, &cs[i], &cs[best])) {
			best = i
		}
	}
	return best
}

// lighter compares requests in flight per weight, then work, then the key's order.
func lighter(key uint64, a, b *Candidate) bool {
	x, y := float64(a.Load.InFlight)*b.weight(), float64(b.Load.InFlight)*a.weight()
	if x != y {
		return x < y
	}
	if a.Load.Work != b.Load.Work {
		return a.Load.Work < b.Load.Work
	}
	return ranks(key, a, b)
}

// powerOfTwo draws two instances and takes the one with fewer requests in flight: nearly as even as looking at all, and gateways
// that do not know of each other's requests do not all run to the same one.
type powerOfTwo struct{}

// Name implements Policy.
func (powerOfTwo) Name() string { return PowerOfTwo }

// Choose implements Policy.
func (powerOfTwo) Choose(r *Request, cs []Candidate) Decision {
	one := first(r.Draw, cs, func(*Candidate) bool { return true })
	if one < 0 {
		return none(cs)
	}
	other := first(r.Draw, cs, func(x *Candidate) bool { return x != &cs[one] })
	if other >= 0 && lighter(r.Draw, &cs[other], &cs[one]) {
		one = other
	}
	return Decision{Index: one, Reason: Drawn}
}
