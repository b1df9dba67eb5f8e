package bench

import (
	"slices"

	"github.com/warmroute/warmroute/internal/route"
)

// awsCell is the name of the cell that has AWS's shape.
const awsCell = "aws-8k-prefix"

// AWS sets a report's cell of AWS's shape beside the published table. It is
// nil when the cell, or one of the two policies, is not there.
//
// Published: AWS Machine Learning Blog on SageMaker's prefix-aware routing,
// Llama 3.1 70B, 7 ml.p5.48xlarge, vLLM, 8,000-token shared prefixes, one
// hour, against random routing. Neither the number of prefixes nor the rate
// is published, so ours takes the number at which random has their hit rate.
func AWS(r *Report) *AWSReport {
	i := slices.IndexFunc(r.Cells, func(c CellReport) bool { return c.Name == awsCell })
	if i < 0 {
		return nil
	}
	random, cost := r.Cells[i].policy(route.Random), r.Cells[i].policy(route.Cost)
	if random == nil || cost == nil {
		return nil
	}
	row := func(measure, published string, a, b float64) AWSRow {
		return AWSRow{measure, published, a, b, rounded(100*(ratio(b, a)-1), 1)}
	}
	return &AWSReport{awsCell, []AWSRow{
		row("TTFT P50, ms", "-71 to -77 %", random.TTFT.P50, cost.TTFT.P50),
		row("TTFT P90, ms", "-33 to -37 %", random.TTFT.P90, cost.TTFT.P90),
		row("hit rate, %", "25 -> 82", rounded(100*random.HitRate.Actual, 1), rounded(100*cost.HitRate.Actual, 1)),
	}}
}
