package bench

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Page is the report of runs in virtual time as HTML.
func (r *Report) Page() *Page {
	p := &Page{Title: r.Title, Warnings: r.Skipped}
	if p.Title == "" {
		p.Title = "Warmroute: routing policies compared"
	}
	p.Lead = append(p.Lead, fmt.Sprintf("Virtual time, %d cells, seeds %s. Hit rate is cached prompt tokens over prompt tokens; the mark on each bar is the ceiling, what one cache without limits would give.",
		len(r.Cells), strings.Trim(fmt.Sprint(r.Seeds), "[]")))
	r.means(p)
	r.sweep(p)
	for i := range r.Cells {
		p.Sections = append(p.Sections, r.Cells[i].section(p))
	}
	return p
}

func (r *Report) means(p *Page) {
	if len(r.Means) == 0 && r.AWS == nil {
		return
	}
	s := PageSection{Title: "Over all cells"}
	if len(r.Means) > 0 {
		t := PageTable{Caption: "Geometric means over cells", Head: []string{"policy", "mean TTFT, ms", "P99 TTFT, ms", "mean over cost's", "P99 over cost's", "worst over best", "best in cells"}}
		for _, m := range r.Means {
			t.Rows = append(t.Rows, []string{m.Name, number(m.MeanTTFT, 0), number(m.P99TTFT, 0), number(m.OverCost, 2), number(m.OverCostP99, 2), number(m.Worst, 2), strconv.Itoa(m.Best)})
		}
		s.Tables = append(s.Tables, t)
	}
	if r.AWS != nil {
		t := PageTable{Caption: "Beside AWS's published comparison (" + r.AWS.Cell + ")", Head: []string{"measure", "published", "random", "cost", "change, %"}}
		for _, row := range r.AWS.Rows {
			t.Rows = append(t.Rows, []string{row.Measure, row.Published, number(row.Random, 1), number(row.Cost, 1), number(row.Change, 1)})
		}
		s.Tables = append(s.Tables, t)
	}
	p.Sections = append(p.Sections, s)
}

// sweep draws the latency over the rate, when cells vary it.
func (r *Report) sweep(p *Page) {
	byName := map[string]*plotSeries{}
	var order []string
	for i := range r.Cells {
		c := &r.Cells[i]
		if c.Rate == 0 {
			continue
		}
		for j := range c.Policies {
			q := &c.Policies[j]
			if byName[q.Name] == nil {
				byName[q.Name] = &plotSeries{name: q.Name}
				order = append(order, q.Name)
			}
			byName[q.Name].points = append(byName[q.Name].points, [2]float64{c.Rate, q.TTFT.P90 / 1000})
		}
	}
	var series []plotSeries
	for _, name := range order {
		series = append(series, *byName[name])
	}
	s := PageSection{Title: "Rate sweep"}
	p.lines(&s, "P90 time to first token over the rate", plotAxes{x: "requests/s", y: "s"}, series)
	if len(r.Knees) > 0 {
		t := PageTable{Caption: "Where policies saturate", Head: []string{"policy", "requests/s", "P90 TTFT objective, ms"}}
		for _, k := range r.Knees {
			rate := number(k.Rate, 2)
			if k.Beyond {
				rate = "over " + rate
			}
			t.Rows = append(t.Rows, []string{k.Name, rate, number(k.ObjectiveMS, 0)})
		}
		s.Tables = append(s.Tables, t)
	}
	if len(s.Charts)+len(s.Tables) > 0 {
		p.Sections = append(p.Sections, s)
	}
}

func (c *CellReport) section(p *Page) PageSection {
	s := PageSection{Title: c.Name, About: strings.TrimSpace(fmt.Sprintf("%s %s on %s; load %.2f.", c.About, c.Workload, c.Engines, c.Load))}
	var bars []plotBar
	var cdfs, hits, spread []plotSeries
	t := PageTable{Head: []string{"policy", "TTFT P50", "P90", "P99", "mean, ms", "E2E P50", "hit %", "ceiling %", "imbalance", "success %"}}
	rows := c.Policies
	for i := range rows {
		q := &rows[i]
		t.Rows = append(t.Rows, []string{
			q.Name, number(q.TTFT.P50, 0), number(q.TTFT.P90, 0), number(q.TTFT.P99, 0), number(q.TTFT.Mean, 0), number(q.E2E.P50, 0),
			number(100*q.HitRate.Actual, 1), number(100*q.HitRate.Ceiling, 1), number(q.Imbalance, 2), number(100*q.SuccessRate, 2),
		})
		bars = append(bars, plotBar{name: q.Name, value: q.HitRate.Actual, mark: q.HitRate.Ceiling})
		cdfs = append(cdfs, plotSeries{name: q.Name, points: inSeconds(q.CDF)})
		hit, even := plotSeries{name: q.Name}, plotSeries{name: q.Name}
		for _, at := range q.Curve {
			hit.points = append(hit.points, [2]float64{at.At, at.HitRate})
			even.points = append(even.points, [2]float64{at.At, at.Spread})
		}
		hits, spread = append(hits, hit), append(spread, even)
	}
	s.Tables = append(s.Tables, t)
	p.lines(&s, "Time to first token, cumulative", plotAxes{x: "s", logX: true, fixedY: true}, cdfs)
	p.bars(&s, "Hit rate against the ceiling", bars)
	p.lines(&s, "Load spread over time (busiest over average, prefilled tokens)", plotAxes{x: "s"}, spread)
	p.lines(&s, "Hit rate over time", plotAxes{x: "s", fixedY: true}, hits)
	return s
}

// Page is the report of a run over HTTP as HTML.
func (r *LiveReport) Page() *Page {
	p := &Page{Title: "Warmroute: " + r.Setup.Workload, Warnings: r.Warnings}
	lead := fmt.Sprintf("Over HTTP, %s, model %s, seed %d.", r.Setup.Arrivals, r.Setup.Model, r.Setup.Seed)
	if r.Setup.Speed != 1 {
		lead += fmt.Sprintf(" Times are in simulated seconds, %g to a real one.", r.Setup.Speed)
	}
	if r.Interrupted {
		lead += " The run was broken off: the numbers are of its beginning."
	}
	p.Lead = append(p.Lead, lead)
	for i := range r.Cells {
		p.Sections = append(p.Sections, r.Cells[i].section(p))
	}
	defs := PageTable{Caption: "Definitions", Head: []string{"number", "formula"}}
	for _, name := range []string{"ttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "hit_rate", "ceiling", "goodput", "imbalance"} {
		defs.Rows = append(defs.Rows, []string{name, r.Formulas[name]})
	}
	p.Sections = append(p.Sections, PageSection{Title: "How the numbers come about", Tables: []PageTable{defs}})
	return p
}

func (c *LiveCell) section(p *Page) PageSection {
	s := PageSection{Title: c.Name}
	times := PageTable{Caption: "Milliseconds", Head: []string{"endpoint", "TTFT P50", "P90", "P99", "mean", "ITL P50", "P99", "TPOT P50", "E2E P50", "P99"}}
	rates := PageTable{Caption: "Rates", Head: []string{"endpoint", "hit %", "predicted %", "ceiling %", "success %", "requests/s", "output tokens/s", "goodput/s", "imbalance"}}
	spread := PageTable{Caption: "Instances", Head: []string{"endpoint", "instance", "requests", "prompt tokens", "prefilled tokens"}}
	var bars []plotBar
	var cdfs, load, hits []plotSeries
	for _, t := range c.Targets {
		times.Rows = append(times.Rows, []string{
			t.Name, number(t.TTFT.P50, 1), number(t.TTFT.P90, 1), number(t.TTFT.P99, 1), number(t.TTFT.Mean, 1), number(t.ITL.P50, 1), number(t.ITL.P99, 1),
			number(t.TPOT.P50, 1), number(t.E2E.P50, 0), number(t.E2E.P99, 0),
		})
		good := "-"
		if t.Goodput != nil {
			good = fmt.Sprintf("%.2f (%.1f %%)", t.Goodput.Rate, 100*t.Goodput.Share)
		}
		rates.Rows = append(rates.Rows, []string{
			t.Name, numberOr(t.HitRate.Actual, 100, 1), numberOr(t.HitRate.Predicted, 100, 1), number(100*t.HitRate.Ceiling, 1), number(100*t.SuccessRate, 2),
			number(t.Rates.Requests, 2), number(t.Rates.Output, 0), good, numberOr(t.Imbalance, 1, 2),
		})
		for _, name := range sortedKeys(t.Instances) {
			in := t.Instances[name]
			spread.Rows = append(spread.Rows, []string{t.Name, name, strconv.Itoa(in.Requests), strconv.FormatInt(in.PromptTokens, 10), strconv.FormatInt(in.PromptTokens-in.CachedTokens, 10)})
		}
		bar := plotBar{name: t.Name, mark: t.HitRate.Ceiling, unsure: t.HitRate.Actual == nil}
		if !bar.unsure {
			bar.value = *t.HitRate.Actual
		}
		bars = append(bars, bar)
		cdfs = append(cdfs, plotSeries{name: t.Name, points: inSeconds(t.CDF)})
		l, h := t.curves()
		load, hits = append(load, l), append(hits, h)
	}
	s.Tables = append(s.Tables, times, rates)
	if len(spread.Rows) > 0 {
		s.Tables = append(s.Tables, spread)
	}
	p.lines(&s, "Time to first token, cumulative", plotAxes{x: "s", logX: true, fixedY: true}, cdfs)
	p.bars(&s, "Hit rate against the ceiling", bars)
	p.lines(&s, "Load spread over time (busiest over average, prefilled tokens)", plotAxes{x: "s"}, load)
	p.lines(&s, "Hit rate over time", plotAxes{x: "s", fixedY: true}, hits)
	return s
}

// curves are a target's load spread and hit rate over time.
func (t *LiveResult) curves() (load, hits plotSeries) {
	load.name, hits.name = t.Name, t.Name
	for _, at := range t.Curve {
		if at.Spread > 0 {
			load.points = append(load.points, [2]float64{at.At, at.Spread})
		}
		hit := math.NaN()
		if at.HitRate != nil {
			hit = *at.HitRate
		}
		hits.points = append(hits.points, [2]float64{at.At, hit})
	}
	return load, hits
}

func inSeconds(cdf [][2]float64) [][2]float64 {
	out := make([][2]float64, len(cdf))
	for i, p := range cdf {
		out[i] = [2]float64{p[0] / 1000, p[1]}
	}
	return out
}

func number(x float64, decimals int) string { return fmt.Sprintf("%.*f", decimals, x) }

func numberOr(x *float64, scale float64, decimals int) string {
	if x == nil {
		return "unknown"
	}
	return number(scale**x, decimals)
}
