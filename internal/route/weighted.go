package route

import "math"

// weightedScores is the default profile of llm-d's router: the highest weighted sum of scores between 0 and 1.
//
//	queue   (most - q)/(most - fewest), 1 when all are equal; q is the number of requests that wait
//	kv      1 - the share of the KV cache that running requests hold
//	prefix  the share of the prompt that is cached
//
// The queue's score is relative: one waiting request more than elsewhere counts as much as a hundred.
//
// Source: llm-d/llm-d-router, its queue, KV-cache utilization and prefix-cache scorers with weights 2, 2 and 3, and its picker of
// the highest score. There q and the cache's use come from scrapes of the engine; here they come from the ledger, which is never
// late. An instance of unknown capacity counts as empty.
type weightedScores struct {
	queue, kv, prefix float64
}

// Name implements Policy.
func (weightedScores) Name() string { return WeightedScores }

// Choose implements Policy.
func (p weightedScores) Choose(r *Request, cs []Candidate) Decision {
	fewest, most := math.Inf(1), 0.0
	for i := range cs {
		if cs[i].Excluded == Eligible {
			q := waiting(&cs[i].Load)
			fewest, most = min(fewest, q), max(most, q)
		}
	}
	tokens := float64(max(r.Tokens, 1))
	best := least(r, cs, anyone, func(x *Candidate) float64 {
		queue, prefix := 1.0, min(float64(x.Match)/tokens, 1)
		if most > fewest {
			queue = (most - waiting(&x.Load)) / (most - fewest)
		}
		return -(p.queue*queue + p.kv*(1-x.kvUsed()) + p.prefix*prefix)
	})
	return verdict(cs, best)
}

// kvUsed is the share of the KV cache that requests in flight hold, 0 to 1.
func (x *Candidate) kvUsed() float64 {
	if x.Speed.KVTokens <= 0 {
		return 0
	}
	return min(x.Load.Used/float64(x.Speed.KVTokens), 1)
}
