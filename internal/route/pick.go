package route

// none is the decision when no candidate may be chosen.
func none(cs []Candidate) Decision {
	for i := range cs {
		if cs[i].Excluded == Full {
			return Decision{Index: -1, Reason: AllFull}
		}
	}
	return Decision{Index: -1, Reason: NoneReady}
}

// before settles a tie between two candidates: a session keeps its instance; then the least work done; then by the prompt's
// beginning. It never looks at the order of the candidates, so that replicas agree and no instance is a favourite.
func before(r *Request, a, b *Candidate) bool {
	if r.Session != 0 {
		return ranks(r.Session, a, b)
	}
	if a.Load.Work != b.Load.Work {
		return a.Load.Work < b.Load.Work
	}
	return ranks(r.Home, a, b)
}

// ranks reports whether a comes before b in the order of instances that is the key's own (rendezvous hashing: without one of the
// instances all others keep their order).
func ranks(key uint64, a, b *Candidate) bool {
	x, y := score(key, a), score(key, b)
	if x != y {
		return x > y
	}
	return a.ID < b.ID
}

func score(key uint64, x *Candidate) uint64 { return mix(x.NameHash ^ mix(key)) }

// mix is the finalizer of SplitMix64: each bit of the input changes each bit of the output with probability one half.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// Hash makes a key of a name, a session or the first characters of a prompt: FNV-1a, then mixed. It is fixed, because replicas
// and versions must agree.
func Hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return mix(h)
}

// weight is the candidate's share of the load.
func (x *Candidate) weight() float64 {
	if x.Weight > 0 {
		return x.Weight
	}
	return 1
}
