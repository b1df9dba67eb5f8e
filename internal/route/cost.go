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
	Thrift       float64 `json:"thrift"`          // price of a second of prefill wherever it is
	Copy         float64 `json:"copy"`            // price of a second of prefill that another candidate need not do
	Congestion   float64 `json:"congestion"`      // price of a second of prefill: those who will wait behind it
	Memory       float64 `json:"memory"`          // price of a second of prefill: what it evicts
	Interference float64 `json:"interference"`    // price of a second of prefill: streams that it slows
	Decode       float64 `json:"decode_s"`        // own decoding among the others' context, discounted
	Doubt        float64 `json:"doubt_s"`         // against a second request to an instance that has not answered its first
}

// Ready is the expected time to first token.
func (t *Terms) Ready() float64 { return t.Wait + t.Admission + t.Prefill }

// Total is J: the expected time to first token and the harm done to others.
func (t *Terms) Total() float64 {
	return t.Wait + t.Admission + t.Prefill*(1+t.Thrift+t.Copy+t.Congestion+t.Memory+t.Interference) + t.Decode + t.Doubt
}

// cost chooses the candidate with the lowest price in seconds:
//
//	J = W + A + pt*(1 + thrift + copy + kappa + eps + i*D) + s*E[out]*DecodeCtx*(ctx - crowd)
//
// Greed for one's own time to first token (thrift = copy = kappa = eps = 0) makes all later arrivals wait; a fleet-wide price pins
// everything when one prefix is hot or the fleet is just full. So kappa is local: an uncached token delays those who arrive at
// this instance while it is busy. Thrift is what prefill costs the fleet even on an idle instance: without it the second of two
// siblings does their common prefix again elsewhere rather than wait as long for it. Copy is the same for the part of the prompt
// that another candidate holds: a second copy takes memory from others, too. The last term counts only what exceeds a
// crowd, half as much again as the mean: priced in full, it moves long answers to whoever is a little emptier, and 150 groups of
// prompts never find their homes; without it, a hot prefix with long answers stays on one instance while others idle. Constants
// and their sources are in Default.
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

// quote is what all prices for one request have in common.
type quote struct {
	tokens  float64 // of the prompt
	output  float64 // tokens of the answer, discounted
	crowd   float64 // context tokens from which an instance is crowded
	longest float64 // longest match among the candidates, in tokens
}

func (p *cost) quote(r *Request, cs []Candidate) quote {
	q := quote{tokens: float64(r.Tokens), output: p.cfg.DecodeShare * float64(r.Output)}
	// The sum is of whole numbers, so the order of the candidates does not show in it.
	context, n, longest := int64(0), int64(0), 0
	for i := range cs {
		x := &cs[i]
		if x.Excluded != Eligible {
			continue
		}
		context += int64(x.Load.Context)
		n++
		if x.Match > longest {
			longest = x.Match
		}
	}
	if n > 0 {
		q.crowd = crowdFactor * float64(context) / float64(n)
	}
	q.longest = float64(longest)
	return q
}

// price is the total of terms and the expected time to first token, at a third of the time.
func (p *cost) price(q *quote, x *Candidate) (total, ready float64) {
	s, l := p.speed(x), &x.Load
	u := p.uncached(q, x)
	pt, w := prefillTime(s, u, q.tokens), wait(s, l, u)+admission(s, l, u)
	total = w + pt*(1+p.cfg.Thrift+p.copied(q, x, u)+p.congestion(l, w)+p.memory(l)+p.interference(l)) + decode(q, s, l) + doubt(s, l, u, w+pt)
	return total, w + pt
}

// terms prices one candidate for those who want to know why.
func (p *cost) terms(q *quote, x *Candidate) Terms {
	s, l := p.speed(x), &x.Load
	u := p.uncached(q, x)
	t := Terms{Uncached: u, Prefill: prefillTime(s, u, q.tokens), Wait: wait(s, l, u), Admission: admission(s, l, u)}
	t.Thrift, t.Copy = p.cfg.Thrift, p.copied(q, x, u)
	t.Congestion = p.congestion(l, t.Wait+t.Admission)
	t.Memory, t.Interference = p.memory(l), p.interference(l)
	t.Decode, t.Doubt = decode(q, s, l), doubt(s, l, u, t.Ready())
	return t
}

// speed is the candidate's, or a guess.
func (p *cost) speed(x *Candidate) *Speed {
	if x.Speed.Known() {
		return &x.Speed
	}
	return &p.unknown
}

// crowdFactor is how far above the mean an instance's context must be to count as crowded: by less, instances differ by chance.
const crowdFactor = 1.5

// copied is the price of the share of the prefill that another candidate holds.
func (p *cost) copied(q *quote, x *Candidate, u float64) float64 {
	held := q.longest - float64(x.Match)
	switch {
	case held <= 0:
		return 0
	case held > u:
		return p.cfg.Copy
	}
	return p.cfg.Copy * held / u
}

// uncached is the number of tokens to prefill. What was there once has a small chance to be there still. So among equals the
// instance is asked that may know, which also is how a retention learned too small is found out.
func (p *cost) uncached(q *quote, x *Candidate) float64 {
	u := q.tokens - float64(x.Match)
	if x.Known > x.Match {
		u -= p.cfg.Ghost * float64(x.Known-x.Match)
	}
	if u < 1 {
		return 1 // Engines recompute at least the last token.
	}
	return u
}

// prefillTime is the prefill of the last u of n tokens: a*u + b*u*(h + u/2) with h = n - u.
func prefillTime(s *Speed, u, n float64) float64 {
	return u * (s.PrefillToken + s.PrefillQuad*(n-u/2))
}

// wait is the prefill that is ahead, and the share of the decoding streams in each step until the first token: near saturation
// the steps, not the prefill, fill the time. A step has room for StepTokens less one token per stream.
func wait(s *Speed, l *Load, u float64) float64 {
	room := float64(s.StepTokens) - l.Decoding
	if room < 1 {
		room = 1
	}
	return s.PrefillToken*l.Queued + ceil((l.Queued+u)/room)*(s.DecodeBase+s.DecodeCtx*l.Context)
}

// admission is the time until running requests have freed the KV tokens that are missing: on average half a stay, in proportion.
func admission(s *Speed, l *Load, u float64) float64 {
	missing := l.Used + u - float64(s.KVTokens)
	if missing <= 0 || s.KVTokens <= 0 || l.Used <= 0 {
		return 0
	}
	return 0.5 * missing * l.Stay / l.Used
}

// congestion is kappa: those who arrive during the wait will wait for each second of prefill as well.
func (p *cost) congestion(l *Load, wait float64) float64 {
	kappa := p.cfg.Congestion * l.Arrivals * wait
	if kappa > p.cfg.CongestionCap {
		return p.cfg.CongestionCap
	}
	return kappa
}

// memory is eps, the price of overwriting: nothing until the instance evicts; then each token written evicts one that would have
// been hit about as often as tokens there are.
func (p *cost) memory(l *Load) float64 {
	if l.Turnover < 1 {
		return 0
	}
	return p.cfg.Memory * l.HitRate
}

// interference is the harm done to the streams that the prefill slows.
func (p *cost) interference(l *Load) float64 { return p.cfg.Interference * l.Decoding }

// decode is what the answer's own tokens wait for the excess of others' context.
func decode(q *quote, s *Speed, l *Load) float64 {
	if l.Context <= q.crowd {
		return 0
	}
	return q.output * s.DecodeCtx * (l.Context - q.crowd)
}

// doubt counts the time to first token twice when it is the second request, beyond one step's worth, to an instance that has not
// shown a first token yet.
func doubt(s *Speed, l *Load, u, ready float64) float64 {
	if l.Fresh && full(s, l, u) {
		return ready
	}
	return 0
}

// full reports whether the engine's next step has no room for u more tokens.
func full(s *Speed, l *Load, u float64) bool {
	return l.Queued > 0 && l.Queued+u > float64(s.StepTokens)
}

// Choose implements Policy.
func (p *cost) Choose(r *Request, cs []Candidate) Decision {
	if cap(p.totals) < len(cs) {
		p.totals = make([]float64, len(cs))
	}
	totals := p.totals[:len(cs)]
	q := p.quote(r, cs)
	best, lowest, soonest, longest, eligible := -1, math.Inf(1), math.Inf(1), 0, 0
	for i := range cs {
		x := &cs[i]
		if x.Excluded != Eligible {
			totals[i] = math.Inf(1)
			continue
		}
		total, ready := p.price(&q, x)
		totals[i] = total
		eligible++
		if ready < soonest {
			soonest = ready
		}
		if x.Match > longest {
			longest = x.Match
		}
		if total < lowest || total == lowest && before(r, x, &cs[best]) {
			best, lowest = i, total
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
	return p.bind(r, &q, &cs[best], soonest, d)
}

// settle breaks near ties: of those that hold as much of the prompt as the best and cost the same but for the noise of learned
// speeds, the one that has done the least work. Otherwise the instance that looks a little faster would take all new prefixes, and
// its cache would overflow beside empty ones.
func (p *cost) settle(r *Request, cs []Candidate, totals []float64, best int) int {
	limit := totals[best] * (1 + p.cfg.Noise)
	match, known := cs[best].Match, cs[best].Known
	for i := range cs {
		if totals[i] <= limit && cs[i].Match >= match && cs[i].Known >= known && before(r, &cs[i], &cs[best]) {
			best = i
		}
	}
	return best
}

// bind refuses what would come too late and holds back what would only queue in the engine, where it can no longer be moved.
func (p *cost) bind(r *Request, q *quote, x *Candidate, soonest float64, d Decision) Decision {
	budget := r.Budget
	if budget == 0 {
		budget = p.cfg.TTFTBudget
	}
	if excess := soonest - budget.Seconds(); budget > 0 && excess > 0 {
		return Decision{Index: -1, Reason: Overload, RetryAfter: seconds(excess)}
	}
	if r.Waited < p.maxHold(r) && worthHolding(p.speed(x), &x.Load, p.uncached(q, x)) {
		d.Hold, d.Reason = true, LateBound
	}
	return d
}

// minHoldable is the prefill in seconds that must be ahead before holding pays: what is gained in less is not worth the gateway's
// work of holding, and the next step of the engine takes as long anyway.
const minHoldable = 0.025

// worthHolding reports whether a request would only queue in the engine, and for so long that the choice may change meanwhile.
func worthHolding(s *Speed, l *Load, u float64) bool {
	return full(s, l, u) && s.PrefillToken*l.Queued >= minHoldable
}

// maxHold is the bound on the time that this request is held.
func (p *cost) maxHold(r *Request) time.Duration {
	if r.MaxHold != 0 {
		return r.MaxHold
	}
	return p.cfg.Hold()
}

// nobody is none, but held when waiting may help.
func (p *cost) nobody(r *Request, cs []Candidate) Decision {
	d := none(cs)
	d.Hold = d.Reason == AllFull && r.Waited < p.maxHold(r)
	return d
}

// Forecast is the expected time before a request's own prefill on a candidate, and the time of that prefill.
func Forecast(r *Request, x *Candidate) (ahead, prefill time.Duration) {
	p := cost{unknown: Unknown()}
	q := quote{tokens: float64(r.Tokens)}
	t := p.terms(&q, x)
	return seconds(t.Wait + t.Admission), seconds(t.Prefill)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
