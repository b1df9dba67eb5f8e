package route

// least finds the candidate with the lowest price among those that may be chosen and fit, or -1. Exact ties are settled as
// everywhere (see before), where other routers throw dice: replicas then agree.
func least(r *Request, cs []Candidate, fits func(*Candidate) bool, price func(*Candidate) float64) int {
	best, lowest := -1, 0.0
	for i := range cs {
		x := &cs[i]
		if x.Excluded != Eligible || !fits(x) {
			continue
		}
		if p := price(x); best < 0 || p < lowest || p == lowest && before(r, x, &cs[best]) {
			best, lowest = i, p
		}
	}
	return best
}

// anyone is the fit of all.
func anyone(*Candidate) bool { return true }

// verdict is the decision for the best of a rule that weighs matches against load; best may be -1.
func verdict(cs []Candidate, best int) Decision {
	if best < 0 {
		return none(cs)
	}
	eligible, longest := 0, 0
	for i := range cs {
		if cs[i].Excluded == Eligible {
			eligible++
			longest = max(longest, cs[i].Match)
		}
	}
	d := Decision{Index: best, Reason: Cold}
	switch {
	case eligible == 1:
		d.Reason = Sole
	case cs[best].Match < longest:
		d.Reason = Spill
	case longest > 0:
		d.Reason = Matched
	}
	return d
}

// left is the number of prompt tokens that a candidate would have to prefill. Engines do at least the last one again.
func left(r *Request, x *Candidate) float64 { return float64(max(r.Tokens-x.Match, 1)) }

// waiting is the number of requests that wait for their first token.
func waiting(l *Load) float64 { return max(float64(l.InFlight)-l.Decoding, 0) }
