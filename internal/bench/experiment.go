package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/internal/sim"
)

// Cell is one cell of a matrix: a workload at a load on a fleet.
type Cell struct {
	Name  string
	About string
	// Settings without Policy, Seed and Route.
	Settings
	// Rate is shown in the report of a sweep.
	Rate float64
	// AllKnowledge asks for the three rows of the cost policy: with reports,
	// without, and with exact knowledge.
	AllKnowledge bool
}

// Experiment plays cells with policies and seeds, several at a time.
type Experiment struct {
	Title    string
	Cells    []Cell
	Policies []string
	Seeds    []uint64
	Route    route.Config
	// Workers is how many runs go on at a time. Zero means GOMAXPROCS.
	Workers int
	// Detail keeps what charts need: distributions, instances, curves.
	Detail bool
	// Progress, when set, is called after each run, one call at a time.
	Progress func(done, all int, what string)
}

// row is one line of a cell's table in the making.
type row struct {
	cell      int
	policy    string
	knowledge Knowledge
	left      int      // runs
	runs      []*world // by seed
	report    PolicyReport
	offered   float64
	reused    int64 // tokens; see CellReport.WorkingSet
	length    time.Duration
	prompts   float64 // mean length
}

// run is one run to be done.
type runOf struct {
	row  *row
	seed int
}

// Run plays everything. When ctx ends before all is done, the report holds the
// cells that are complete, and the error says so.
func (e Experiment) Run(ctx context.Context) (*Report, error) {
	rows, runs := e.plan()
	faults := e.play(ctx, runs)
	report := &Report{Title: e.Title, Seeds: e.Seeds}
	for i := range e.Cells {
		if cell, ok := e.cell(i, rows); ok {
			report.Cells = append(report.Cells, cell)
		}
	}
	report.Means = means(report.Cells)
	return report, faults
}

// plan lists rows and their runs, the runs of one cell together.
func (e *Experiment) plan() ([]*row, []runOf) {
	var rows []*row
	var runs []runOf
	add := func(r *row) {
		r.left, r.runs = len(e.Seeds), make([]*world, len(e.Seeds))
		rows = append(rows, r)
		for i := range e.Seeds {
			runs = append(runs, runOf{r, i})
		}
	}
	for i, c := range e.Cells {
		for _, p := range e.Policies {
			add(&row{cell: i, policy: p, knowledge: c.Knowledge})
		}
		if c.AllKnowledge && slices.Contains(e.Policies, route.Cost) {
			for _, k := range []Knowledge{Reports, NoReports, Exact} {
				if k != c.Knowledge {
					add(&row{cell: i, policy: route.Cost, knowledge: k})
				}
			}
		}
	}
	return rows, runs
}

// play does the runs and closes each row with its last one.
func (e *Experiment) play(ctx context.Context, runs []runOf) error {
	workers := e.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var mu sync.Mutex // guards what follows and the rows
	next, done := 0, 0
	var fault error
	take := func() (runOf, bool) {
		mu.Lock()
		defer mu.Unlock()
		if next == len(runs) || ctx.Err() != nil {
			return runOf{}, false
		}
		next++
		return runs[next-1], true
	}
	finish := func(r runOf, w *world, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			fault = cmpErr(fault, err)
			stop(err)
			return
		}
		done++
		r.row.runs[r.seed] = w
		r.row.left--
		if r.row.left == 0 {
			e.close(r.row)
		}
		if e.Progress != nil {
			e.Progress(done, len(runs), e.Cells[r.row.cell].Name+" "+r.row.policy)
		}
	}
	var wg sync.WaitGroup
	for range min(workers, len(runs)) {
		wg.Go(func() {
			for r, ok := take(); ok; r, ok = take() {
				w, err := play(ctx, e.settings(r))
				finish(r, w, err)
			}
		})
	}
	wg.Wait()
	if fault == nil && done < len(runs) {
		fault = context.Cause(ctx)
	}
	return fault
}

// cmpErr keeps the first fault.
func cmpErr(first, err error) error {
	if first != nil {
		return first
	}
	return err
}

func (e *Experiment) settings(r runOf) Settings {
	s := e.Cells[r.row.cell].Settings
	s.Policy, s.Knowledge, s.Seed, s.Route = r.row.policy, r.row.knowledge, e.Seeds[r.seed], e.Route
	return s
}

// close takes the runs of a row together and lets their memory go.
func (e *Experiment) close(r *row) {
	var all recorder
	var ttft, hits Batches
	p := &r.report
	imbalance, answered, length := 0.0, int64(0), 0.0
	for i, w := range r.runs {
		rec := &w.record
		result := rec.result(w)
		all.merge(rec)
		imbalance += result.Imbalance / float64(len(r.runs))
		for _, in := range result.Instances {
			answered += in.OutputTokens
		}
		length += result.Duration.Seconds()
		r.length = max(r.length, result.Duration)
		r.reused = max(r.reused, int64(rec.infinite.reused)*int64(rec.blockTokens))
		addBatches(rec, &ttft, &hits)
		p.Seeds = append(p.Seeds, SeedResult{e.Seeds[i], result.TTFT.Mean, result.TTFT.P99, result.HitRate.Actual})
		if span := rec.lastArrival - rec.warmUp; span > 0 {
			r.offered += float64(rec.arrivals) / span.Seconds() / float64(len(r.runs))
		}
		if i == 0 && e.Detail {
			p.Instances, p.Curve = result.Instances, curvePoints(result.Curve)
		}
	}
	r.prompts = ratio(float64(all.prompt), float64(all.requests-all.failed))
	p.PolicyResult = all.policyResult(r.policy)
	p.Imbalance = rounded(imbalance, 3)
	p.E2E, p.TPOT = all.e2e.Summary(), all.tpot.Summary()
	p.TTFTError, p.HitError = rounded(1000*ttft.HalfWidth(), 3), rounded(hits.HalfWidth(), 4)
	p.Failed, p.Knowledge = all.failed, r.knowledge.String()
	p.Throughput = rounded(ratio(float64(answered), length), 1)
	if e.Detail {
		p.CDF = all.ttft.distribution()
	}
	clear(r.runs)
}

func addBatches(r *recorder, ttft, hits *Batches) {
	list := r.inOrder()
	ones, waits := make([]float64, len(list)), make([]float64, len(list))
	prompts, cached := make([]float64, len(list)), make([]float64, len(list))
	for i, a := range list {
		ones[i], waits[i] = 1, a.ttft.Seconds()
		prompts[i], cached[i] = float64(a.prompt), float64(a.cached)
	}
	ttft.Add(waits, ones)
	hits.Add(cached, prompts)
}

func curvePoints(points []Point) []CurvePoint {
	out := make([]CurvePoint, len(points))
	for i, p := range points {
		out[i] = CurvePoint{secondsOf(p.At), p.Requests, rounded(p.HitRate, 4), milliseconds(p.TTFT), p.Spread}
	}
	return out
}

// cell makes the report of a cell whose rows are all closed.
func (e *Experiment) cell(number int, rows []*row) (CellReport, bool) {
	c := &e.Cells[number]
	out := CellReport{
		Name: c.Name, About: c.About, Workload: c.Workload.Name(), Engines: enginesOf(c.Profiles), Rate: c.Rate,
		WarmUp: secondsOf(c.WarmUp),
	}
	for i := range c.Profiles {
		out.KVTokens += int64(capacityOf(&c.Settings, i))
	}
	for _, r := range rows {
		switch {
		case r.cell != number:
			continue
		case r.left > 0:
			return out, false
		}
		out.Duration = max(out.Duration, secondsOf(r.length))
		named := r.report
		named.Seeds, named.CDF, named.Instances, named.Curve = nil, nil, nil, nil
		if r.knowledge == c.Knowledge {
			out.Policies = append(out.Policies, r.report)
			// The offered load of a closed loop depends on the policy; the cost policy's stands for all.
			if r.policy == route.Cost || out.Offered == 0 {
				out.Offered, out.WorkingSet = rounded(r.offered, 0), r.reused
				out.Load = rounded(ratio(r.offered, coldCapacity(c.Profiles, r.prompts)), 3)
			}
		}
		if c.AllKnowledge && r.policy == route.Cost {
			out.Knowledge = append(out.Knowledge, named)
		}
	}
	out.compare()
	return out, len(out.Policies) > 0
}

// compare finds the best policies and how far the cost policy is from them.
func (c *CellReport) compare() {
	mean := func(p *PolicyReport) float64 { return p.TTFT.Mean }
	p99 := func(p *PolicyReport) float64 { return p.TTFT.P99 }
	c.BestMean, c.CostMean = c.best(mean)
	c.BestP99, c.CostP99 = c.best(p99)
}

// best is the policy with the least of a measure, and the cost policy's measure
// over the best other one's. A policy that loses more requests than another is
// not compared with it: who drops what is slow looks fast. One whose numbers
// are the cost policy's decides as it does, as session does where there are no
// sessions, and is no other.
func (c *CellReport) best(of func(*PolicyReport) float64) (name string, cost float64) {
	most := 0.0
	for i := range c.Policies {
		most = max(most, c.Policies[i].SuccessRate)
	}
	own := c.policy(route.Cost)
	least, other := math.Inf(1), math.Inf(1)
	for i := range c.Policies {
		p := &c.Policies[i]
		if p.SuccessRate < most-successSlack {
			continue
		}
		if v := of(p); v < least {
			name, least = p.Name, v
		}
		if own == nil || p.TTFT != own.TTFT || p.HitRate != own.HitRate {
			other = min(other, of(p))
		}
	}
	if own == nil || own.SuccessRate < most-successSlack || math.IsInf(other, 1) {
		return name, 0
	}
	return name, rounded(ratio(of(own), other), 4)
}

// successSlack is the difference in success rates that chance explains.
const successSlack = 0.02

// coldCapacity is how many prompt tokens per second the engines can prefill
// when nothing is cached, in prompts of the given length, chunk by chunk.
func coldCapacity(profiles []sim.Profile, prompt float64) float64 {
	sum := 0.0
	for i := range profiles {
		p := &profiles[i]
		ms := 0.0
		for at := 0.0; at < prompt; at += float64(p.MaxBatchedTokens) {
			n := min(prompt-at, float64(p.MaxBatchedTokens))
			ms += p.StepMS(sim.Load{Prefill: int(n), PrefillPairs: n * (at + n/2)})
		}
		sum += 1000 * ratio(prompt, ms)
	}
	return sum
}

// enginesOf counts a fleet by kind: "3 x a, 2 x b".
func enginesOf(profiles []sim.Profile) string {
	var names []string
	counts := map[string]int{}
	for _, p := range profiles {
		if counts[p.Name] == 0 {
			names = append(names, p.Name)
		}
		counts[p.Name]++
	}
	for i, n := range names {
		names[i] = fmt.Sprintf("%d x %s", counts[n], n)
	}
	return strings.Join(names, ", ")
}

// errNothing is an experiment without a row.
var errNothing = errors.New("no cell, no policy or no seed to run")

// Validate reports what is wrong with the plan before anything runs.
func (e *Experiment) Validate() error {
	if len(e.Cells) == 0 || len(e.Policies) == 0 || len(e.Seeds) == 0 {
		return errNothing
	}
	for i := range e.Cells {
		s := e.Cells[i].Settings
		if err := s.validate(); err != nil {
			return fmt.Errorf("cell %s: %w", e.Cells[i].Name, err)
		}
	}
	for _, p := range e.Policies {
		if _, err := route.New(p, e.Route); err != nil {
			return err
		}
	}
	return nil
}
