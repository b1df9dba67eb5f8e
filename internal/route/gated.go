package route

// gatedMatch is the cache-aware rule of SMG, once the SGLang router: a gate decides between affinity and load. While the fleet is
// in balance, the instance that holds the most of the prompt takes it, if that is more than a share of it. Otherwise, and whenever
// the fleet is out of balance, the instance with the fewest requests does. Out of balance means that the most loaded instance has
// both more than an absolute number of requests above the least loaded one, and more than a multiple of it. One hot instance
// thus takes affinity from all the others: that is how the rule is, not a mistake here.
//
// Source: lightseekorg/smg, docs/concepts/routing/cache-aware.md (cache_threshold 0.3, balance_abs_threshold 64,
// balance_rel_threshold 1.5). Earlier releases sent what matches nowhere to the instance with the smallest tree of prefixes, which
// let the smallest one drown; SMG has since taken the least loaded one, and so does this.
type gatedMatch struct {
	match    float64 // share of the prompt above which a match decides
	abs, rel float64 // out of balance: most > least + abs and most > rel*least, in requests
}

// Name implements Policy.
func (gatedMatch) Name() string { return GatedMatch }

// Choose implements Policy.
func (p gatedMatch) Choose(r *Request, cs []Candidate) Decision {
	lightest, longest, most := -1, -1, 0.0
	for i := range cs {
		x := &cs[i]
		if x.Excluded != Eligible {
			continue
		}
		if lightest < 0 || lighter(r.Home, x, &cs[lightest]) {
			lightest = i
		}
		if longest < 0 || x.Match > cs[longest].Match || x.Match == cs[longest].Match && lighter(r.Home, x, &cs[longest]) {
			longest = i
		}
		most = max(most, x.requests())
	}
	if lightest < 0 {
		return none(cs)
	}
	fewest := cs[lightest].requests()
	balanced := most-fewest <= p.abs || most <= p.rel*fewest
	if balanced && float64(cs[longest].Match) > p.match*float64(r.Tokens) {
		return Decision{Index: longest, Reason: Matched}
	}
	return Decision{Index: lightest, Reason: LeastRequests}
}

// requests is the number of requests in flight per unit of weight.
func (x *Candidate) requests() float64 { return float64(x.Load.InFlight) / x.weight() }
