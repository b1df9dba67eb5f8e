package bench

import (
	"cmp"
	"slices"
	"time"
)

// recorder measures a run. Requests that arrive during the warm-up go into the
// infinite cache of the ceiling and into nothing else.
type recorder struct {
	warmUp, step time.Duration
	blockTokens  int // of the engines
	infinite     ceiling
	imbalance    *Imbalance

	ttft, e2e, tpot  Sample
	requests, failed int
	prompt           int64 // tokens of requests that were answered
	cached           int64 // of these, as the engines report
	predicted        int64 // as the gateway believed when it sent them
	ceiling          int64 // as an infinite cache would have held
	instances        []InstanceResult
	points           []point
	answered         []answered
	arrivals         int64         // prompt tokens that arrived
	lastArrival      time.Duration // of a measured request
}

// answered is what the confidence intervals need of a request.
type answered struct {
	at, ttft       time.Duration
	prompt, cached int32
}

// inOrder sorts the answered requests by arrival.
func (r *recorder) inOrder() []answered {
	slices.SortStableFunc(r.answered, func(a, b answered) int { return cmp.Compare(a.at, b.at) })
	return r.answered
}

// point gathers what becomes a [Point].
type point struct {
	requests       int
	prompt, cached int64
	ttft           time.Duration
	prefilled      []int64 // by instance
}

func newRecorder(s *Settings) recorder {
	n := len(s.Profiles)
	return recorder{
		warmUp: s.WarmUp, step: s.CurveStep, blockTokens: s.Engine.BlockTokens,
		imbalance: NewImbalance(n), instances: make([]InstanceResult, n),
	}
}

func (r *recorder) arrived(f *flight) {
	f.measured = f.At >= r.warmUp
	known := r.infinite.lookup(f.blocks.blocks)
	r.infinite.reuse(f.blocks.blocks[:known])
	r.infinite.add(f.blocks.blocks, known)
	prompt := f.engine.Prompt
	f.ceiling = min(known, cacheable(len(prompt), r.blockTokens, f.prompt)) * r.blockTokens
	r.imbalance.Arrive(f.prompt, f.measured)
	if f.measured {
		r.arrivals += int64(f.prompt)
		r.lastArrival = f.At
	}
}

// sent counts the tokens that the instance will have to prefill.
func (r *recorder) sent(f *flight, instance, cached int) {
	f.uncached = f.prompt - cached
	r.imbalance.Send(instance, f.uncached)
}

func (r *recorder) prefilled(f *flight) {
	r.imbalance.Prefilled(f.instance, f.uncached)
	f.uncached = 0
}

func (r *recorder) ended(f *flight, now time.Duration, err error) {
	if !f.measured {
		return
	}
	r.requests++
	if err != nil {
		r.failed++
		return
	}
	ttft := f.first - f.At
	r.ttft.Add(ttft)
	r.e2e.Add(now - f.At)
	if n := f.Answer.Tokens; n > 1 {
		r.tpot.Add((now - f.first) / time.Duration(n-1))
	}
	r.answered = append(r.answered, answered{f.At, ttft, int32(f.prompt), int32(f.engine.Cached)})
	r.prompt += int64(f.prompt)
	r.cached += int64(f.engine.Cached)
	r.predicted += int64(f.match)
	r.ceiling += int64(f.ceiling)
	in := &r.instances[f.instance]
	in.Requests++
	in.PromptTokens += int64(f.prompt)
	in.CachedTokens += int64(f.engine.Cached)
	in.OutputTokens += int64(f.Answer.Tokens)
	r.plot(f, ttft)
}

func (r *recorder) plot(f *flight, ttft time.Duration) {
	if r.step == 0 {
		return
	}
	i := int((f.At - r.warmUp) / r.step)
	for len(r.points) <= i {
		r.points = append(r.points, point{})
	}
	p := &r.points[i]
	p.requests++
	p.prompt += int64(f.prompt)
	p.cached += int64(f.engine.Cached)
	p.ttft += ttft
	for len(p.prefilled) <= f.instance {
		p.prefilled = append(p.prefilled, 0)
	}
	p.prefilled[f.instance] += int64(f.prompt - f.engine.Cached)
}

// spread is the busiest instance's share of the prefilled tokens over the average one's.
func (p *point) spread(instances int) float64 {
	busiest, sum := int64(0), int64(0)
	for _, n := range p.prefilled {
		busiest = max(busiest, n)
		sum += n
	}
	if sum == 0 {
		return 1
	}
	return float64(busiest) * float64(instances) / float64(sum)
}

// merge adds another run's counts and samples, but for what belongs to one
// run alone: imbalance, instances and curve.
func (r *recorder) merge(o *recorder) {
	r.ttft.merge(&o.ttft)
	r.e2e.merge(&o.e2e)
	r.tpot.merge(&o.tpot)
	r.requests += o.requests
	r.failed += o.failed
	r.prompt += o.prompt
	r.cached += o.cached
	r.predicted += o.predicted
	r.ceiling += o.ceiling
}

// policyResult is the numbers of all that was recorded.
func (r *recorder) policyResult(name string) PolicyResult {
	prompt := float64(r.prompt)
	p := PolicyResult{
		Name: name,
		TTFT: r.ttft.Summary(),
		HitRate: HitRate{
			Actual:    ratio(float64(r.cached), prompt),
			Predicted: ratio(float64(r.predicted), prompt),
			Ceiling:   ratio(float64(r.ceiling), prompt),
		},
		SuccessRate: ratio(float64(r.requests-r.failed), float64(r.requests)),
		Requests:    r.requests,
	}
	if r.imbalance != nil {
		p.Imbalance = r.imbalance.Value()
	}
	return p.rounded()
}

// result closes the books.
func (r *recorder) result(w *world) *Result {
	out := &Result{
		PolicyResult: r.policyResult(w.Policy),
		E2E:          r.e2e.Summary(),
		TPOT:         r.tpot.Summary(),
		Instances:    r.instances,
		Duration:     w.now - r.warmUp,
	}
	for i, p := range r.points {
		out.Curve = append(out.Curve, Point{
			At:       r.warmUp + time.Duration(i)*r.step,
			Requests: p.requests,
			HitRate:  ratio(float64(p.cached), float64(p.prompt)),
			TTFT:     p.ttft / time.Duration(max(p.requests, 1)),
			Spread:   rounded(p.spread(len(r.instances)), 3),
		})
	}
	return out
}
