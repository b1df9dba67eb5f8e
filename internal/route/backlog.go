package route

// The rules here take the least of one number. They differ in what they count.

// blocks is the rule of NVIDIA Dynamo's KV router: the least
//
//	weight*(blocks to prefill) + (blocks that requests in flight hold)
//
// where the blocks to prefill are those that wait already and the uncached ones of this request. Blocks of 16 tokens or of 64 order
// the instances alike, so it is tokens that are added here.
//
// Source: ai-dynamo/dynamo, docs/design_docs/router_design.md (overlap score weight 1, temperature 0). Dynamo also counts the
// blocks of the request itself among the held ones, less those that a running request of the instance holds; they are nearly the
// same number everywhere, and left out.
type blocks struct {
	overlap float64 // weight of the blocks to prefill
}

// Name implements Policy.
func (blocks) Name() string { return Blocks }

// Choose implements Policy.
func (p blocks) Choose(r *Request, cs []Candidate) Decision {
	best := least(r, cs, anyone, func(x *Candidate) float64 {
		return p.overlap*(x.Load.Queued+left(r, x)) + x.Load.Used
	})
	return verdict(cs, best)
}

// lMetric takes the least product of the tokens to prefill, those that wait and the uncached ones of this request, and the number
// of requests on the instance. A product needs no weights: a factor on either side changes all candidates alike.
//
// Source: Zhang et al., "LMetric: Simple is Better", arXiv:2603.15202 (new prefill tokens times batch size). The request itself
// counts in the batch, since otherwise all idle instances have the price 0, be the prompt cached there or not.
type lMetric struct{}

// Name implements Policy.
func (lMetric) Name() string { return LMetric }

// Choose implements Policy.
func (lMetric) Choose(r *Request, cs []Candidate) Decision {
	best := least(r, cs, anyone, func(x *Candidate) float64 {
		return (x.Load.Queued + left(r, x)) * float64(x.Load.InFlight+1)
	})
	return verdict(cs, best)
}

// mooncake takes the least expected time to first token: the wait and the request's own prefill, without a price for the harm
// done to others.
//
// Source: Qin et al., "Mooncake", FAST 2025, algorithm 1 (queue time and prefill time of the instance with its longest match). Its
// second half, fetching blocks from the instance that matches best, needs engines that can, and is left out.
type mooncake struct {
	unknown Speed
}

// Name implements Policy.
func (*mooncake) Name() string { return Mooncake }

// Choose implements Policy.
func (p *mooncake) Choose(r *Request, cs []Candidate) Decision {
	best := least(r, cs, anyone, func(x *Candidate) float64 {
		s := &x.Speed
		if !s.Known() {
			s = &p.unknown
		}
		u := left(r, x)
		return wait(s, &x.Load, u) + admission(s, &x.Load, u) + prefillTime(s, u, float64(r.Tokens))
	})
	return verdict(cs, best)
}

// sticky keeps a prompt where most of it is cached until that instance is saturated: among those that hold a share of it and whose
// waiting tokens are at most so many seconds of prefill, the one with the fewest tokens to prefill; when there is none, the one
// with the fewest of all.
//
// Source: llm-d, "Sticky until saturated" (blog, 2026-08-17): a share of 0.8, released at 14 s of the peak prefill rate, load in
// uncached tokens in flight. There the rate is measured by the operator; here it is the learned one.
type sticky struct {
	match   float64 // share of the prompt
	backlog float64 // seconds
	unknown Speed
}

// Name implements Policy.
func (*sticky) Name() string { return Sticky }

// Choose implements Policy.
func (p *sticky) Choose(r *Request, cs []Candidate) Decision {
	load := func(x *Candidate) float64 { return x.Load.Queued + left(r, x) }
	need := p.match * float64(r.Tokens)
	best := least(r, cs, func(x *Candidate) bool { return x.Match > 0 && float64(x.Match) >= need && !p.saturated(x) }, load)
	if best < 0 {
		best = least(r, cs, anyone, load)
	}
	return verdict(cs, best)
}

// saturated reports whether more prefill waits than affinity is worth.
func (p *sticky) saturated(x *Candidate) bool {
	s := &x.Speed
	if !s.Known() {
		s = &p.unknown
	}
	return x.Load.Queued*s.PrefillToken > p.backlog
}
