package bench

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Objectives are the bounds that a good request keeps, in the workload's time.
// Zero bounds nothing.
type Objectives struct {
	TTFT time.Duration
	ITL  time.Duration // of the request's mean gap between contents
	E2E  time.Duration
}

// Any reports whether there is a bound at all.
func (o Objectives) Any() bool { return o.TTFT > 0 || o.ITL > 0 || o.E2E > 0 }

// LiveReport is all that a benchmark over HTTP measured. Its JSON is stable.
type LiveReport struct {
	Setup LiveSetup  `json:"setup"`
	Cells []LiveCell `json:"cells"`
	// Interrupted tells that the run was broken off: the numbers are of its
	// beginning.
	Interrupted bool `json:"interrupted"`
	// Warnings say what makes the numbers doubtful.
	Warnings []string          `json:"warnings"`
	Formulas map[string]string `json:"formulas"`
}

// LiveSetup says what was sent.
type LiveSetup struct {
	Workload   string  `json:"workload"`
	Arrivals   string  `json:"arrivals"`
	Model      string  `json:"model"`
	Seed       uint64  `json:"seed"`
	WarmUp     float64 `json:"warm_up_s"`
	Speed      float64 `json:"speed"`
	Salt       uint64  `json:"salt"`
	ClientProc int     `json:"client_cpus"`
}

// LiveCell is one workload with its targets, in the form of the other reports:
// targets stand where those have policies.
type LiveCell struct {
	Name    string        `json:"name"`
	Targets []*LiveResult `json:"policies"`
}

// LiveResult is the numbers of one target. What could not be learned is null.
type LiveResult struct {
	Name        string                    `json:"name"`
	URL         string                    `json:"url"`
	TTFT        Summary                   `json:"ttft_ms"`
	ITL         Summary                   `json:"itl_ms"`
	TPOT        Summary                   `json:"tpot_ms"`
	E2E         Summary                   `json:"e2e_ms"`
	HitRate     LiveHitRate               `json:"hit_rate"`
	SuccessRate float64                   `json:"success_rate"`
	Imbalance   *float64                  `json:"imbalance"` // null when no header names instances
	Requests    int                       `json:"requests"`  // measured and ended, well or not
	Interrupted int                       `json:"interrupted"`
	Errors      map[string]int            `json:"errors"` // failed requests by class
	Example     string                    `json:"error_example,omitempty"`
	Rates       LiveRates                 `json:"per_second"`
	Goodput     *Goodput                  `json:"goodput,omitempty"`
	Instances   map[string]InstanceResult `json:"instances"` // by the name in the header; empty without
	// CDF is the distribution of TTFT: pairs of ms and the share of requests that had their first token by then.
	CDF    [][2]float64 `json:"ttft_cdf,omitempty"`
	Curve  []LivePoint  `json:"curve,omitempty"`
	Client LiveClient   `json:"client"`
}

// LiveHitRate is cached prompt tokens over prompt tokens, from 0 to 1.
type LiveHitRate struct {
	// Actual is what the engines report in usage; null when they report nothing.
	Actual *float64 `json:"actual"`
	// Coverage is the share of answers that carried a count.
	Coverage float64 `json:"coverage"`
	// Predicted is what a Warmroute believed; null when no header says.
	Predicted *float64 `json:"predicted"`
	// Ceiling is what one cache without limits would give.
	Ceiling float64 `json:"ceiling"`
}

// LiveRates is throughput in the workload's seconds.
type LiveRates struct {
	Requests float64 `json:"requests"`
	Input    float64 `json:"input_tokens"`
	Output   float64 `json:"output_tokens"`
}

// Goodput is the requests that kept all objectives.
type Goodput struct {
	Rate  float64 `json:"requests_per_second"`
	Share float64 `json:"share"` // of all requests, failed ones included
}

// LivePoint is one step of time, by time of arrival.
type LivePoint struct {
	At       float64  `json:"at_s"`
	Requests int      `json:"requests"`
	HitRate  *float64 `json:"hit_rate"`
	TTFT     float64  `json:"ttft_mean_ms"`
	// Spread is the busiest instance's share of the step's prefilled tokens over
	// the average one's; 1 is even, 0 unknown.
	Spread    float64        `json:"spread"`
	Instances map[string]int `json:"instances"` // requests by instance
}

// LiveClient tells how late this program was in sending.
type LiveClient struct {
	LateP99 float64 `json:"late_p99_ms"` // wall time between a request's due time and its leaving
}

// Formulas says how each number of a [LiveReport] comes about: tools differ.
var Formulas = map[string]string{
	"ttft_ms":   "first event with content (text, reasoning or tool call) - request sent",
	"itl_ms":    "each gap between two events with content, pooled over requests (as vLLM bench serve); an event may hold several tokens",
	"tpot_ms":   "(E2E - TTFT) / (output tokens - 1), per request",
	"e2e_ms":    "end of the stream - request sent",
	"hit_rate":  "sum of cached prompt tokens / sum of prompt tokens, from usage; null when no answer reports a count",
	"goodput":   "requests that keep all objectives / (last end - first send); the ITL objective bounds a request's mean gap",
	"imbalance": "mean over requests of (max_i Q_i + n) / (mean_i Q_i + n), Q_i: unfinished uncached prompt tokens on instance i, n: mean prompt",
	"ceiling":   "hit rate of one cache without limits that sees every request in order of arrival, blocks of 16 tokens",
}

// curveSteps is how many points a curve has.
const curveSteps = 60

// Result makes a target's numbers. Requests due within warmUp, in the workload's
// time, count for nothing but the ceiling and the caches. speed is that of
// [Live]; all latencies are in the workload's time.
func (r *LiveRun) Result(speed float64, warmUp time.Duration, o Objectives) *LiveResult {
	m := liveMeasure{
		out:   &LiveResult{Name: r.Target.Name, URL: r.Target.URL, Errors: map[string]int{}, Instances: map[string]InstanceResult{}},
		speed: speed, goals: o, first: math.MaxInt64, reports: map[string]bool{},
	}
	cut := time.Duration(float64(warmUp) / speed)
	var measured []*Reply
	for _, p := range r.Replies {
		// Whoever reports a count once counts always: null then means none cached.
		if p.Err == nil && p.Usage.HasCached {
			m.reports[p.Instance] = true
		}
		if p.Due >= cut {
			measured = append(measured, p)
		}
	}
	for _, p := range measured {
		m.add(p)
	}
	m.finish()
	m.out.Curve = m.curve(measured)
	return m.out
}

// liveMeasure adds up replies.
type liveMeasure struct {
	out     *LiveResult
	speed   float64
	goals   Objectives
	reports map[string]bool // instances that report cached tokens

	ttft, itl, tpot, e2e, late Sample
	served, good               int
	counted, matched           int
	prompt, ceiling, output    float64
	cached, cachedOf           float64 // tokens, and the prompt tokens of the same requests
	believed, believedOf       float64
	first, last                time.Duration // first send, last end
	answers                    []Answer
}

// scaled is a wall time in the workload's time.
func (m *liveMeasure) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) * m.speed)
}

func (m *liveMeasure) add(p *Reply) {
	if p.Class == FailedInterrupted {
		m.out.Interrupted++
		return
	}
	m.out.Requests++
	m.first, m.last = min(m.first, p.Sent), max(m.last, p.Done)
	m.late.Add(p.Sent - p.Due)
	if p.Err != nil {
		m.out.Errors[p.Class]++
		if m.out.Example == "" {
			m.out.Example = clipped(p.Err.Error())
		}
		return
	}
	m.served++
	ttft, e2e, gap := m.scaled(p.First-p.Sent), m.scaled(p.Done-p.Sent), m.gaps(p)
	m.ttft.Add(ttft)
	m.e2e.Add(e2e)
	if n := p.Usage.Output; n > 1 {
		m.tpot.Add((e2e - ttft) / time.Duration(n-1))
	}
	if within(ttft, m.goals.TTFT) && within(gap, m.goals.ITL) && within(e2e, m.goals.E2E) {
		m.good++
	}
	m.tokens(p)
	m.answers = append(m.answers, p.Answer)
}

// gaps records a reply's gaps and returns their mean.
func (m *liveMeasure) gaps(p *Reply) time.Duration {
	sum := time.Duration(0)
	for _, g := range p.Gaps {
		g = m.scaled(g)
		m.itl.Add(g)
		sum += g
	}
	return sum / time.Duration(max(len(p.Gaps), 1))
}

func within(d, bound time.Duration) bool { return bound == 0 || d <= bound }

func (m *liveMeasure) tokens(p *Reply) {
	n := float64(p.Usage.Prompt)
	m.prompt += n
	m.output += float64(p.Usage.Output)
	m.ceiling += p.ceiling * n
	if m.reports[p.Instance] {
		m.cached += float64(p.Usage.Cached)
		m.cachedOf += n
	}
	if p.Usage.HasCached {
		m.counted++
	}
	if p.matched {
		m.matched++
		m.believed += float64(p.Match)
		m.believedOf += n
	}
}

func (m *liveMeasure) finish() {
	r := m.out
	r.TTFT, r.ITL, r.TPOT, r.E2E = m.ttft.Summary(), m.itl.Summary(), m.tpot.Summary(), m.e2e.Summary()
	r.HitRate = LiveHitRate{
		Actual: known(m.cached, m.cachedOf), Predicted: known(m.believed, m.believedOf),
		Coverage: rounded(ratio(float64(m.counted), float64(m.served)), 4),
		Ceiling:  rounded(ratio(m.ceiling, m.prompt), 4),
	}
	r.SuccessRate = rounded(ratio(float64(m.served), float64(r.Requests)), 6)
	r.Client.LateP99 = milliseconds(m.late.Quantile(0.99))
	if m.served > 0 {
		for q := range 101 {
			share := float64(q) / 100
			r.CDF = append(r.CDF, [2]float64{milliseconds(m.ttft.Quantile(share)), share})
		}
	}
	if wall := m.scaled(m.last - m.first).Seconds(); r.Requests > 0 && wall > 0 {
		r.Rates = LiveRates{
			Requests: rounded(float64(m.served)/wall, 3), Input: rounded(m.prompt/wall, 1), Output: rounded(m.output/wall, 1),
		}
		if m.goals.Any() {
			r.Goodput = &Goodput{Rate: rounded(float64(m.good)/wall, 3), Share: rounded(ratio(float64(m.good), float64(r.Requests)), 4)}
		}
	}
	for name, in := range PerInstance(m.answers) {
		if name != "" {
			r.Instances[name] = in
		}
	}
	if len(r.Instances) > 0 {
		r.Imbalance = new(rounded(imbalanceOf(m.answers, len(r.Instances)), 3))
	}
}

// known is part/whole, nil when nothing is known of it.
func known(part, whole float64) *float64 {
	if whole == 0 {
		return nil
	}
	return new(rounded(part/whole, 4))
}

func (m *liveMeasure) curve(replies []*Reply) []LivePoint {
	if len(replies) == 0 {
		return nil
	}
	begin := replies[0].Due
	last := slices.MaxFunc(replies, func(a, b *Reply) int { return cmp.Compare(a.Due, b.Due) }).Due
	step := max((last-begin)/curveSteps, time.Millisecond)
	points := make([]liveStep, (last-begin)/step+1)
	for _, p := range replies {
		if p.Err == nil {
			points[max(p.Due-begin, 0)/step].add(m, p)
		}
	}
	out := make([]LivePoint, len(points))
	for i := range points {
		out[i] = points[i].point(len(m.out.Instances))
		out[i].At = rounded(m.scaled(begin+time.Duration(i)*step).Seconds(), 3)
	}
	return out
}

// liveStep gathers what becomes a [LivePoint].
type liveStep struct {
	requests       map[string]int
	prefilled      map[string]float64 // tokens
	prompt, cached float64            // of instances that report cached tokens
	ttft           Sample
}

func (s *liveStep) add(m *liveMeasure, p *Reply) {
	if s.requests == nil {
		s.requests, s.prefilled = map[string]int{}, map[string]float64{}
	}
	s.ttft.Add(m.scaled(p.First - p.Sent))
	s.requests[p.Instance]++
	s.prefilled[p.Instance] += float64(p.Usage.Prompt - p.Usage.Cached)
	if m.reports[p.Instance] {
		s.prompt += float64(p.Usage.Prompt)
		s.cached += float64(p.Usage.Cached)
	}
}

func (s *liveStep) point(instances int) LivePoint {
	p := LivePoint{
		Requests: s.ttft.Len(), HitRate: known(s.cached, s.prompt), TTFT: milliseconds(s.ttft.Mean()), Instances: map[string]int{},
	}
	busiest, sum := 0.0, 0.0
	for name, n := range s.requests {
		if name != "" {
			p.Instances[name] = n
			busiest = max(busiest, s.prefilled[name])
			sum += s.prefilled[name]
		}
	}
	p.Spread = rounded(ratio(busiest*float64(instances), sum), 3)
	return p
}

// maxExample bounds the text of an error that a report shows.
const maxExample = 300

func clipped(s string) string {
	if len(s) > maxExample {
		return s[:maxExample] + "..."
	}
	return s
}
