package bench

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/warmroute/warmroute/internal/route"
)

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) {
	fmt.Fprintln(w, r.Title)
	for i := range r.Cells {
		r.Cells[i].writeText(w)
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(w, "\nSkipped %s.\n", s)
	}
	r.writeKnees(w)
	if len(r.Cells) > 1 && len(r.Knees) == 0 {
		r.writeMeans(w)
		r.writeBest(w)
		r.writeKnowledge(w)
	}
	r.writeAWS(w)
	fmt.Fprintf(w, `
All times in ms. TTFT: request sent to first token, through the gateway's waiting room and the engine's queue; quantiles over the
requests of all seeds (%d); +- is half the 95 %% confidence interval of the mean by batch means. E2E: request sent to last token. TPOT:
(E2E - TTFT)/(output tokens - 1), its P50. Hit rate: cached prompt tokens / prompt tokens, as the engines report; predicted is what the gateway believed;
ceiling is one endless cache for all. Imbalance: the prefill that a prompt of mean length finds at its arrival on the busiest instance over that
on the average one. Load: offered prompt tokens over what the engines can prefill with nothing cached. See docs/benchmark.md.
`, len(r.Seeds))
}

const tableHead = "%-20s %9s %8s %9s %9s %9s %10s %9s %8s   %6s %6s %6s   %9s %9s\n"

func (c *CellReport) writeText(w io.Writer) {
	fmt.Fprintf(w, "\n== %s: %s\n", c.Name, c.About)
	fmt.Fprintf(w, "   %s on %s, %s KV tokens in all, working set %s, load %.2f, %.0f s after %.0f s of warm-up\n", c.Workload, c.Engines, thousands(c.KVTokens),
		thousands(c.WorkingSet), c.Load, c.Duration, c.WarmUp)
	fmt.Fprintf(w, tableHead, "", "TTFT mean", "+-", "P50", "P90", "P99", "E2E mean", "P99", "TPOT", "hit %", "pred", "ceil", "imbalance", "success %")
	for i := range c.Policies {
		c.Policies[i].writeText(w, c.Policies[i].Name)
	}
	for i := range c.Knowledge {
		if k := &c.Knowledge[i]; k.Knowledge != Reports.String() {
			k.writeText(w, k.Name+", "+strings.ReplaceAll(k.Knowledge, "_", " "))
		}
	}
	fmt.Fprintf(w, "   best mean TTFT: %s; best P99: %s.", c.BestMean, c.BestP99)
	if c.CostMean > 0 {
		fmt.Fprintf(w, " cost over the best other: mean x%.2f, P99 x%.2f.", c.CostMean, c.CostP99)
	}
	fmt.Fprintln(w)
}

func (p *PolicyReport) writeText(w io.Writer, name string) {
	fmt.Fprintf(w, "%-20s %9s %8s %9s %9s %9s %10s %9s %8s   %6.1f %6.1f %6.1f   %9.2f %9.4g\n", name,
		ms(p.TTFT.Mean), ms(p.TTFTError), ms(p.TTFT.P50), ms(p.TTFT.P90), ms(p.TTFT.P99), ms(p.E2E.Mean), ms(p.E2E.P99), ms(p.TPOT.P50),
		100*p.HitRate.Actual, 100*p.HitRate.Predicted, 100*p.HitRate.Ceiling, p.Imbalance, 100*p.SuccessRate)
}

// ms prints milliseconds with three digits that mean something.
func ms(v float64) string {
	if v < 100 {
		return fmt.Sprintf("%.1f", v)
	}
	return thousands(int64(math.Round(v)))
}

// thousands groups digits.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func (r *Report) writeMeans(w io.Writer) {
	fmt.Fprintf(w, "\n== all %d cells: geometric means\n", len(r.Cells))
	fmt.Fprintf(w, "%-20s %9s %9s   %9s %9s   %7s   %s\n", "", "TTFT mean", "TTFT P99", "over cost", "P99", "best in", "at its worst, mean over the cell's best")
	for _, m := range r.Means {
		fmt.Fprintf(w, "%-20s %9s %9s   %9s %9s   %7d   x%.2f in %s\n", m.Name, ms(m.MeanTTFT), ms(m.P99TTFT), times(m.OverCost), times(m.OverCostP99),
			m.Best, m.Worst, m.WorstCell)
	}
}

func times(x float64) string {
	if x == 0 {
		return "-"
	}
	return fmt.Sprintf("x%.2f", x)
}

// closeEnough is by how much the cost policy may miss the best and still count
// as good as it.
const closeEnough = 1.05

// writeBest says in which cells the cost policy loses.
func (r *Report) writeBest(w io.Writer) {
	fmt.Fprintf(w, "\n== best policy by cell, and cost over the best other one\n")
	var lost []string
	for i := range r.Cells {
		c := &r.Cells[i]
		if c.CostMean == 0 {
			continue
		}
		verdict := "cost wins or is within 5 %"
		if c.CostMean > closeEnough || c.CostP99 > closeEnough {
			verdict = "COST LOSES"
			lost = append(lost, c.Name)
		}
		fmt.Fprintf(w, "%-22s mean x%.3f (best %s), P99 x%.3f (best %s): %s\n", c.Name, c.CostMean, c.BestMean, c.CostP99, c.BestP99, verdict)
	}
	if len(lost) > 0 {
		fmt.Fprintf(w, "cost is more than 5 %% behind the best in %d of %d cells: %s.\n", len(lost), len(r.Cells), strings.Join(lost, ", "))
	}
}

// writeKnowledge compares the three kinds of knowledge, and hit rates with
// their ceilings.
func (r *Report) writeKnowledge(w io.Writer) {
	fmt.Fprintf(w, "\n== cost: what the gateway knows of the caches, mean TTFT; and the share of the ceiling that it reaches\n")
	fmt.Fprintf(w, "%-22s %9s %10s %9s   %13s   %9s %10s   %s\n", "", "reports", "no reports", "exact", "reports/exact", "hit %", "of ceiling",
		"do the caches hold the working set?")
	for i := range r.Cells {
		c := &r.Cells[i]
		by := map[string]float64{}
		for _, k := range c.Knowledge {
			by[k.Knowledge] = k.TTFT.Mean
		}
		cost := c.policy(route.Cost)
		if len(by) < 3 || cost == nil {
			continue
		}
		holds := "no"
		if c.WorkingSet <= c.KVTokens {
			holds = "yes"
		}
		reports, exact := by[Reports.String()], by[Exact.String()]
		fmt.Fprintf(w, "%-22s %9s %10s %9s   %13s   %9.1f %9.1f%%   %s\n", c.Name, ms(reports), ms(by[NoReports.String()]), ms(exact),
			times(rounded(ratio(reports, exact), 3)), 100*cost.HitRate.Actual, 100*ratio(cost.HitRate.Actual, cost.HitRate.Ceiling), holds)
	}
}

func (r *Report) writeAWS(w io.Writer) {
	if r.AWS == nil {
		return
	}
	fmt.Fprintf(w, "\n== AWS's table: prefix-aware against random routing, Llama 3.1 70B, 7 instances, 8,000-token prefixes\n")
	fmt.Fprintf(w, "%-14s %16s   %9s %9s %9s\n", "", "published by AWS", "random", "cost", "change")
	for _, row := range r.AWS.Rows {
		fmt.Fprintf(w, "%-14s %16s   %9s %9s %+8.1f%%\n", row.Measure, row.Published, ms(row.Random), ms(row.Cost), row.Change)
	}
}

func (r *Report) writeKnees(w io.Writer) {
	if len(r.Knees) == 0 {
		return
	}
	fmt.Fprintf(w, "\n== saturation: the highest rate with a P90 TTFT of at most %s ms\n", ms(r.Knees[0].ObjectiveMS))
	for _, k := range r.Knees {
		more := ""
		if k.Beyond {
			more = " or more"
		}
		fmt.Fprintf(w, "%-20s %9.4g%s\n", k.Name, k.Rate, more)
	}
}
