package route

import (
	"math"
	"time"
)

// Terms is the price of one candidate for one request, in seconds where nothing else is said.
type Terms struct {
	Uncached     float64 `json:"uncached_tokens"` // tokens to prefill, as expected
	Wait         float64 `json:"wait_s"`          // until the engine begins, and the decode steps until the first token
	Admission    float64 `json:"admission_s"`     // until the KV cache has room
	Prefill      float64 `json:"prefill_s"`       // own prefill
	Congestion   float64 `json:"congestion"`      // price of a second of prefill: those who will wait behind it
	Memory       float64 `json:"memory"`          // price of a second of prefill: what it evicts
	Interference float64 `json:"interference"`    // price of a second of prefill: streams that it slows
	Decode       float64 `json:"decode_s"`        // own decoding among the others' context, discounted
	Probation    float64 `json:"probation_s"`     // against a second request to an instance that has not answered its first
}

// Ready is the expected time to first token.
func (t *Terms) Ready() float64 { return t.Wait + t.Admission + t.Prefill }

// Total is J: the expected time to first token and the harm done to others.
func (t *Terms) Total() float64 {
	return t.Wait + t.Admission + t.Prefill*(1+t.Congestion+t.Memory+t.Interference) + t.Decode + t.Probation
}

// cost chooses the candidate with the lowest price in seconds:
//
//	J = W + A + pt*(1 + kappa + eps + i*D) + s*E[out]*DecodeCtx*ctx
//
// Greed for one's own time to first token (kappa = eps = 0) makes all later arrivals wait; a fleet-wide price pins everything when
// one prefix is hot or the fleet is just full. So kappa is local: an uncached token delays those who arrive at this instance while
// it is busy. Constants and their sources are in Default.
type cost struct {
	cfg     Config
	unknown Speed     // stands in for a Speed of which nothing is known
	totals  []float64 // scratch of Choose
}

func newCost(cfg Config) *cost {
	return &cost{cfg: cfg, unknown: Unknown()}
}

// Name implements Policy.
func (*cost) Name() string { return Cost }

// terms prices one candidate.
func (p *cost) terms(r *Request, x *Candidate) Terms {
	s := &x.Speed
	if !s.Known() {
		s = &p.unknown
	}
	l := &x.Load
	t := Terms{Uncached: p.uncached(r, x)}
	t.Prefill = prefillTime(s, t.Uncached, float64(r.Tokens))
	t.Wait = wait(s, l, t.Uncached)
	t.Admission = admission(float64(x.Speed.KVTokens), l, t.Uncached)
	t.Congestion = min(p.cfg.CongestionCap, p.cfg.Congestion*l.Arrivals*(t.Wait+t.Admission))
	t.Memory = p.memory(l)
	t.Interference = p.cfg.Interference * l.Decoding
	t.Decode = p.cfg.DecodeShare * float64(r.Output) * s.DecodeCtx * l.Context
	if l.Fresh && full(s, l, t.Uncached) {
		t.Probation = probation
	}
	return t
}

// uncached is the number of tokens to prefill. What was there once has a small chance to be there still. So among equals the
// instance is asked that may know, which also is how a retention learned too small is found out.
func (p *cost) uncached(r *Request, x *Candidate) float64 {
	match := float64(x.Match)
	u := float64(r.Tokens) - match
	if x.Known > x.Match {
		u -= p.cfg.Ghost * (float64(x.Known) - match)
	}
	return max(u, 1) // engines recompute at least the last token
}

// prefillTime is the prefill of the last u of n tokens: a*u + b*u*(h + u/2) with h = n - u.
func prefillTime(s *Speed, u, n float64) float64 {
	return u * (s.PrefillToken + s.PrefillQuad*(n-u/2))
}

// wait is the prefill that is ahead, and the share of the decoding streams in each step until the first token: near saturation
// the steps, not the prefill, fill the time. A step has room for StepTokens less one token per stream.
func wait(s *Speed, l *Load, u float64) float64 {
	room := max(float64(s.StepTokens)-l.Decoding, 1)
	steps := ceil((l.Queued + u) / room)
	return s.PrefillToken*l.Queued + steps*(s.DecodeBase+s.DecodeCtx*l.Context)
}

// admission is the time until running requests have freed the KV tokens that are missing: on average half a stay, in proportion.
func admission(capacity float64, l *Load, u float64) float64 {
	missing := l.Used + u - capacity
	if missing <= 0 || capacity <= 0 || l.Used <= 0 {
		return 0
	}
	return 0.5 * missing * l.Stay / l.Used
}

// memory is the price of overwriting: nothing until the instance evicts; then each token written evicts one that would have been
// hit as often as tokens there are.
func (p *cost) memory(l *Load) float64 {
	if l.Turnover < 1 {
		return 0
	}
	return p.cfg.Memory * l.HitRate
}

// full reports whether the engine's next step has no room for u more tokens.
func full(s *Speed, l *Load, u float64) bool {
	return l.Queued > 0 && l.Queued+u > float64(s.StepTokens)
}

// probation keeps all but one step's worth of tokens from an instance that has not shown a first token yet, unless all are new.
const probation = 60.0

// Choose implements Policy.
func (p *cost) Choose(r *Request, cs []Candidate) Decision {
	if cap(p.totals) < len(cs) {
		p.totals = make([]float64, len(cs))
	}
	totals := p.totals[:len(cs)]
	best, lowest, soonest, longest, eligible := -1, math.Inf(1), math.Inf(1), 0, 0
	for i := range cs {
		x := &cs[i]
		if x.Excluded != Eligible {
			totals[i] = math.Inf(1)
			continue
		}
		t := p.terms(r, x)
		totals[i] = t.Total()
		eligible++
		soonest = min(soonest, t.Ready())
		longest = max(longest, x.Match)
		if totals[i] < lowest || totals[i] == lowest && before(r, x, &cs[best]) {
			best, lowest = i, totals[i]
		}
	}
	if best < 0 {
		return p.nobody(r, cs)
	}
	best = p.settle(r, cs, totals, best)
	d := Decision{Index: best, Cost: totals[best], Reason: Cold}
	switch x := &cs[best]; {
	case eligible == 1:
		d.Reason = Sole
	case x.Match < longest:
		d.Reason = Spill
	case longest > 0:
		d.Reason = Matched
	}
	return p.bind(r, &cs[best], soonest, d)
}

// settle breaks near ties: of those that hold as much of the prompt as the best and cost the same but for the noise of learned
// speeds, the one that has done the least work. Otherwise the instance that looks a little faster would take all new prefixes, and
// its cache would overflow beside empty ones.
func (p *cost) settle(r *Request, cs []Candidate, totals []float64, best int) int {
	limit := totals[best] * (1 + p.cfg.Noise)
	match := cs[best].Match
	for i := range cs {
		if totals[i] <= limit && cs[i].Match >= match && before(r, &cs[i], &cs[best]) {
			best = i
		}
	}
	return best
}

// bind refuses what would come too late and holds back what would only queue in the engine, where it can no longer be moved.
func (p *cost) bind(r *Request, x *Candidate, soonest float64, d Decision) Decision {
	budget := r.Budget
	if budget == 0 {
		budget = p.cfg.TTFTBudget
	}
	if excess := soonest - budget.Seconds(); budget > 0 && excess > 0 {
		return Decision{Index: -1, Reason: Overload, RetryAfter: time.Duration(excess * float64(time.Second))}
	}
	s := &x.Speed
	if !s.Known() {
		s = &p.unknown
	}
	if r.Waited < p.maxHold(r) && full(s, &x.Load, p.uncached(r, x)) {
		d.Hold, d.Reason = true, LateBound
	}
	return d
}

// maxHold is the bound on the time that this request is held.
func (p *cost) maxHold(r *Request) time.Duration {
	if r.MaxHold != 0 {
		return r.MaxHold
	}
	hold := p.cfg.MaxHold
	if p.cfg.TTFTObjective > 0 {
		hold = min(hold, p.cfg.TTFTObjective/4)
	}
	return hold
}

// nobody is none, but held when waiting may help.
func (p *cost) nobody(r *Request, cs []Candidate) Decision {
	d := none(cs)
	d.Hold = d.Reason == AllFull && r.Waited < p.maxHold(r)
	return d
}
