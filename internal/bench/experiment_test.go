package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmroute/warmroute/internal/route"
)

var update = flag.Bool("update", false, "rewrite golden files")

// tiny is an experiment of two cells that takes a moment.
func tiny(t *testing.T) Experiment {
	t.Helper()
	cell := func(name string, w Workload) Cell {
		profiles, err := Fleet(small, 3)
		if err != nil {
			t.Fatal(err)
		}
		return Cell{Name: name, About: "a test", AllKnowledge: true, Settings: Settings{
			Workload: w, Profiles: profiles, KVTokens: 40_000, Assumed: 1, WarmUp: 5 * time.Second, CurveStep: 10 * time.Second,
		}}
	}
	return Experiment{
		Title: "Two cells.", Seeds: []uint64{1, 2}, Route: route.Default(), Detail: true,
		Policies: []string{route.Cost, route.Random, route.RoundRobin},
		Cells: []Cell{
			cell("documents", RAG{Requests: 150, Rate: 6, Prefixes: 12, PrefixTokens: 3000, Zipf: 0.7, Tail: Between(20, 90), Output: Between(10, 60)}),
			cell("conversations", chat(25, 1)),
		},
	}
}

func runTiny(t *testing.T, e Experiment) *Report {
	t.Helper()
	r, err := e.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The number of workers changes nothing.
func TestExperimentRepeats(t *testing.T) {
	one, four := tiny(t), tiny(t)
	one.Workers, four.Workers = 1, 4
	if diff := cmp.Diff(runTiny(t, one), runTiny(t, four)); diff != "" {
		t.Errorf("one worker and four differ:\n%s", diff)
	}
}

// Names and meanings of the JSON stay; the numbers follow the policies and are checked against each other here.
func TestReportJSON(t *testing.T) {
	r := runTiny(t, tiny(t))
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := json.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	var shape bytes.Buffer
	writeShape(&shape, "", tree)
	golden := filepath.Join("testdata", "report.shape.txt")
	if *update {
		if err := os.WriteFile(golden, shape.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), shape.String()); diff != "" {
		t.Errorf("the JSON's shape differs (-want +got):\n%s", diff)
	}
	for _, c := range r.Cells {
		if c.Load <= 0 || c.Offered <= 0 || c.Duration <= 0 || len(c.Knowledge) != 3 {
			t.Errorf("%s: load %g, offered %g, %g s, %d rows of knowledge", c.Name, c.Load, c.Offered, c.Duration, len(c.Knowledge))
		}
		for _, p := range c.Policies {
			checkPolicy(t, &c, &p)
		}
	}
}

func checkPolicy(t *testing.T, c *CellReport, p *PolicyReport) {
	t.Helper()
	requests := 0
	mean := 0.0
	for _, s := range p.Seeds {
		mean += s.TTFTMean / float64(len(p.Seeds))
	}
	for _, point := range p.Curve {
		requests += point.Requests
		if point.Spread < 1 {
			t.Errorf("%s %s: spread %g is below 1", c.Name, p.Name, point.Spread)
		}
	}
	if len(p.Seeds) != 2 || math.Abs(mean-p.TTFT.Mean) > 0.15*p.TTFT.Mean {
		t.Errorf("%s %s: mean %g of seeds %+v", c.Name, p.Name, p.TTFT.Mean, p.Seeds)
	}
	if requests == 0 || requests >= p.Requests {
		t.Errorf("%s %s: %d requests on the first seed's curve, %d in both", c.Name, p.Name, requests, p.Requests)
	}
	if last := p.CDF[len(p.CDF)-1]; last[1] < 0.999 || last[0] < p.TTFT.P99 || !slices.IsSortedFunc(p.CDF, func(a, b [2]float64) int { return int(1000 * (a[0] - b[0])) }) {
		t.Errorf("%s %s: distribution ends at %v, P99 %g", c.Name, p.Name, last, p.TTFT.P99)
	}
	if p.TTFTError <= 0 || p.E2E.Mean <= p.TTFT.Mean || p.TPOT.P50 <= 0 || p.Throughput <= 0 {
		t.Errorf("%s %s: %+v", c.Name, p.Name, p)
	}
}

// writeShape lists the paths and kinds of a JSON document; of lists only the first element counts.
func writeShape(b *bytes.Buffer, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			writeShape(b, path+"."+k, v[k])
		}
	case []any:
		writeShape(b, path+"[]", v[0])
	case string:
		b.WriteString(path + " text\n")
	case float64:
		b.WriteString(path + " number\n")
	}
}

func TestReportText(t *testing.T) {
	r := runTiny(t, tiny(t))
	r.Skipped = []string{"moon: needs moon.jsonl; not there"}
	var b strings.Builder
	r.WriteText(&b)
	for _, want := range []string{
		"== documents: a test", "== conversations", "cost, no reports", "cost, exact", "geometric means", "best policy by cell", "Skipped moon",
		"reports/exact", "+-",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, b.String())
		}
	}
}

func TestLossesAreSaidPlainly(t *testing.T) {
	cell := func(name string, cost, other float64) CellReport {
		c := CellReport{Name: name}
		for n, v := range map[string]float64{route.Cost: cost, "other": other} {
			c.Policies = append(c.Policies, PolicyReport{PolicyResult: PolicyResult{Name: n, SuccessRate: 1, TTFT: Summary{Mean: v, P99: v}}})
		}
		slices.SortFunc(c.Policies, func(a, b PolicyReport) int { return strings.Compare(a.Name, b.Name) })
		c.compare()
		return c
	}
	r := Report{Cells: []CellReport{cell("won", 100, 400), cell("lost", 110, 100)}}
	r.Means = means(r.Cells)
	var b strings.Builder
	r.WriteText(&b)
	if !strings.Contains(b.String(), "more than 5 % behind the best in 1 of 2 cells: lost.") {
		t.Errorf("the loss is not said:\n%s", b.String())
	}
	if r.Cells[0].CostMean != 0.25 || r.Cells[1].BestMean != "other" {
		t.Errorf("%+v", r.Cells)
	}
	// sqrt(400*100)/sqrt(100*110)
	if got := r.Means[1]; got.Name != "other" || math.Abs(got.OverCost-1.907) > 0.001 || got.Worst != 4 || got.WorstCell != "won" {
		t.Errorf("means %+v", r.Means)
	}
}

// Who drops requests must not win by it.
func TestDroppersAreNotCompared(t *testing.T) {
	c := CellReport{Policies: []PolicyReport{
		{PolicyResult: PolicyResult{Name: route.Cost, SuccessRate: 1, TTFT: Summary{Mean: 100, P99: 100}}},
		{PolicyResult: PolicyResult{Name: "dropper", SuccessRate: 0.6, TTFT: Summary{Mean: 1, P99: 1}}},
		{PolicyResult: PolicyResult{Name: "other", SuccessRate: 1, TTFT: Summary{Mean: 200, P99: 200}}},
	}}
	c.compare()
	if c.BestMean != route.Cost || c.CostMean != 0.5 {
		t.Errorf("best %s, cost %g", c.BestMean, c.CostMean)
	}
}

func TestExperimentStops(t *testing.T) {
	e := tiny(t)
	ctx, cancel := context.WithCancel(t.Context())
	var runs atomic.Int32
	e.Workers = 1
	e.Progress = func(done, all int, _ string) {
		// The first cell is 3 policies and 2 more rows of 2 seeds each.
		if runs.Add(1) == 10 {
			cancel()
		}
	}
	r, err := e.Run(ctx)
	if !errors.Is(err, context.Canceled) || len(r.Cells) != 1 || r.Cells[0].Name != "documents" {
		t.Errorf("error %v, %d cells; want context.Canceled and the complete cell", err, len(r.Cells))
	}
}

func TestExperimentValidates(t *testing.T) {
	f := func(want string, edit func(*Experiment)) {
		t.Helper()
		e := tiny(t)
		edit(&e)
		if err := e.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v; want one about %q", err, want)
		}
	}
	f("no cell", func(e *Experiment) { e.Cells = nil })
	f("find policy", func(e *Experiment) { e.Policies = []string{"best"} })
	f("cell documents: no instances", func(e *Experiment) { e.Cells[0].Profiles = nil })
}

func TestSweepFindsTheKnee(t *testing.T) {
	e := tiny(t)
	base := e.Cells[0]
	s := Sweep{Experiment: e, Start: 40, Objective: 300 * time.Millisecond, Cell: func(rate float64) (Cell, error) {
		c := base
		w := base.Workload.(RAG)
		w.Prefixes, w.Rate, w.Requests = 60, rate, int(rate*20)
		c.Workload, c.Rate = w, rate
		return c, nil
	}}
	s.Seeds = s.Seeds[:1]
	r, err := s.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	knees := map[string]Knee{}
	for _, k := range r.Knees {
		knees[k.Name] = k
	}
	t.Logf("%+v", r.Knees)
	if knees[route.Cost].Rate <= knees[route.Random].Rate || knees[route.Random].Rate < 20 || knees[route.Random].Beyond {
		t.Errorf("knees %+v; want cost's above random's", r.Knees)
	}
}

// Means of independent draws: the interval holds the truth in about 95 of 100 cases, and it shrinks with the root of the number.
func TestBatchesCover(t *testing.T) {
	r := stream(1, drawContent)
	inside, few, many := 0, 0.0, 0.0
	const trials = 1000
	for range trials {
		draw := func(n int) (mean, half float64) {
			ones, values := make([]float64, n), make([]float64, n)
			for i := range values {
				ones[i], values[i] = 1, r.ExpFloat64()
				mean += values[i] / float64(n)
			}
			var b Batches
			b.Add(values, ones)
			return mean, b.HalfWidth()
		}
		mean, half := draw(400)
		few += half
		if math.Abs(mean-1) <= half {
			inside++
		}
		_, half = draw(1600)
		many += half
	}
	if share := float64(inside) / trials; share < 0.92 || share > 0.98 {
		t.Errorf("the interval holds the mean in %.1f %% of cases; want 95", 100*share)
	}
	if ratio := few / many; ratio < 1.8 || ratio > 2.2 {
		t.Errorf("four times the requests make the interval %.2f times narrower; want 2", ratio)
	}
	for n, want := range map[int]float64{1: 12.706, 4: 2.776, 9: 2.262, 19: 2.093, 100: 1.984} {
		if got := student975(n); math.Abs(got-want) > 0.003 {
			t.Errorf("t(0.975, %d) = %g; want %g", n, got, want)
		}
	}
}

// The working set is what was asked for more than once.
func TestCeilingCountsReuse(t *testing.T) {
	var c ceiling
	f := func(blocks []uint64, want int) {
		t.Helper()
		known := c.lookup(blocks)
		c.reuse(blocks[:known])
		c.add(blocks, known)
		if c.reused != want {
			t.Errorf("after %v %d blocks are reused; want %d", blocks, c.reused, want)
		}
	}
	f([]uint64{1, 2, 3}, 0)
	f([]uint64{1, 2, 4}, 2)
	f([]uint64{1, 2, 4, 5}, 3)
	f([]uint64{1, 2, 3}, 4)
	f([]uint64{1, 2, 3}, 4)
}
