package bench

import (
	"cmp"
	"math"
	"slices"

	"github.com/warmroute/warmroute/internal/route"
)

// means compares the policies over cells by geometric means, in which each
// cell has the same weight whatever its latencies.
func means(cells []CellReport) []PolicyMeans {
	if len(cells) < 2 {
		return nil
	}
	var out []PolicyMeans
	for _, p := range cells[0].Policies {
		out = append(out, meansOf(p.Name, cells))
	}
	if i := slices.IndexFunc(out, func(m PolicyMeans) bool { return m.Name == route.Cost }); i >= 0 {
		cost := out[i]
		for i := range out {
			out[i].OverCost = rounded(ratio(out[i].MeanTTFT, cost.MeanTTFT), 3)
			out[i].OverCostP99 = rounded(ratio(out[i].P99TTFT, cost.P99TTFT), 3)
		}
	}
	slices.SortStableFunc(out, func(a, b PolicyMeans) int { return cmp.Compare(a.MeanTTFT, b.MeanTTFT) })
	return out
}

func meansOf(name string, cells []CellReport) PolicyMeans {
	m := PolicyMeans{Name: name}
	mean, p99, n := 0.0, 0.0, 0.0
	for i := range cells {
		c := &cells[i]
		p := c.policy(name)
		if p == nil || p.TTFT.Mean <= 0 {
			continue
		}
		mean += math.Log(p.TTFT.Mean)
		p99 += math.Log(p.TTFT.P99)
		n++
		best := c.policy(c.BestMean)
		if c.BestMean == name {
			m.Best++
		}
		if over := p.TTFT.Mean / best.TTFT.Mean; over > m.Worst {
			m.Worst, m.WorstCell = rounded(over, 3), c.Name
		}
	}
	if n > 0 {
		m.MeanTTFT, m.P99TTFT = rounded(math.Exp(mean/n), 3), rounded(math.Exp(p99/n), 3)
	}
	return m
}

// policy finds a policy's row, nil when there is none.
func (c *CellReport) policy(name string) *PolicyReport {
	i := slices.IndexFunc(c.Policies, func(p PolicyReport) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return &c.Policies[i]
}
