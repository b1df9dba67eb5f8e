package bench

import "time"

// Report is what `warmroute bench sim` prints, and what an HTML page is made
// from. Its JSON is stable: names and meanings stay, new fields may come.
type Report struct {
	// Title says in a line what was compared.
	Title string `json:"title"`
	// Seeds are those that every cell was run with.
	Seeds []uint64     `json:"seeds"`
	Cells []CellReport `json:"cells"`
	// Skipped says in plain lines what was not run, and why.
	Skipped []string `json:"skipped,omitempty"`
	// Means compares the policies over all cells.
	Means []PolicyMeans `json:"means,omitempty"`
	// AWS compares with a published table.
	AWS *AWSReport `json:"aws,omitempty"`
	// Knees are where the policies saturate, of a sweep over rates.
	Knees []Knee `json:"knees,omitempty"`
}

// CellReport is one cell of the matrix workload x load x engines.
type CellReport struct {
	Name     string `json:"name"`
	About    string `json:"about,omitempty"`
	Workload string `json:"workload"`
	Engines  string `json:"engines"` // such as "7 x llama-3.1-70b-8xh100"
	// KVTokens is the memory of all caches together.
	KVTokens int64 `json:"kv_tokens"`
	// WorkingSet are the different tokens that were asked for more than once during the run: caches of that size in all could hold
	// whatever pays.
	WorkingSet int64 `json:"working_set_tokens"`
	// Offered are the prompt tokens per second that arrive, after the warm-up; Load is that over what the engines can prefill
	// when nothing is cached.
	Offered float64 `json:"offered_prompt_tokens_per_s"`
	Load    float64 `json:"load"`
	// Rate is the varied rate of a sweep.
	Rate   float64 `json:"rate,omitempty"`
	WarmUp float64 `json:"warm_up_s"`
	// Duration is the longest run's, of virtual time without the warm-up.
	Duration float64 `json:"duration_s"`
	// Policies are in the order in which they were asked for.
	Policies []PolicyReport `json:"policies"`
	// Knowledge repeats the cost policy with other kinds of knowledge: the three rows "reports", "no_reports" and "exact".
	Knowledge []PolicyReport `json:"knowledge,omitempty"`
	// Best names the policies with the lowest mean and P99 TTFT.
	BestMean string `json:"best_mean"`
	BestP99  string `json:"best_p99"`
	// CostMean and CostP99 are the cost policy's figure over the best other policy's: below 1 it wins. 0 when it did not run.
	CostMean float64 `json:"cost_over_best_mean,omitempty"`
	CostP99  float64 `json:"cost_over_best_p99,omitempty"`
}

// PolicyReport is one policy in one cell, over all seeds.
type PolicyReport struct {
	// The latencies' samples of all seeds are taken together; rates are over all requests, and imbalance is the seeds' mean.
	PolicyResult
	E2E  Summary `json:"e2e_ms"`
	TPOT Summary `json:"tpot_ms"`
	// TTFTError is half the width of the 95 % confidence interval of the mean TTFT in ms, HitError that of the hit rate; see
	// [Batches]. 0 when there are too few requests to tell.
	TTFTError float64 `json:"ttft_mean_ci95_ms"`
	HitError  float64 `json:"hit_rate_ci95"`
	Failed    int     `json:"failed"`
	Knowledge string  `json:"knowledge"`
	// Throughput is answered output tokens per second.
	Throughput float64      `json:"output_tokens_per_s"`
	Seeds      []SeedResult `json:"seeds,omitempty"`
	// CDF is the distribution of TTFT: pairs of ms and the share of requests that had their first token by then.
	CDF [][2]float64 `json:"ttft_cdf,omitempty"`
	// Instances and Curve are the first seed's.
	Instances []InstanceResult `json:"instances,omitempty"`
	Curve     []CurvePoint     `json:"curve,omitempty"`
}

// SeedResult is one seed's numbers.
type SeedResult struct {
	Seed     uint64  `json:"seed"`
	TTFTMean float64 `json:"ttft_mean_ms"`
	TTFTP99  float64 `json:"ttft_p99_ms"`
	HitRate  float64 `json:"hit_rate"`
}

// CurvePoint is one step of a run by time of arrival.
type CurvePoint struct {
	At       float64 `json:"at_s"`
	Requests int     `json:"requests"`
	HitRate  float64 `json:"hit_rate"`
	TTFT     float64 `json:"ttft_mean_ms"`
	// Spread is the busiest instance's share of the step's prefilled tokens over the average one's; 1 is even.
	Spread float64 `json:"spread"`
}

// PolicyMeans compares one policy with the cost policy over all cells in which both ran.
type PolicyMeans struct {
	Name string `json:"name"`
	// MeanTTFT and P99TTFT are geometric means over cells, in ms.
	MeanTTFT float64 `json:"ttft_mean_ms"`
	P99TTFT  float64 `json:"ttft_p99_ms"`
	// OverCost is MeanTTFT over the cost policy's, OverCostP99 the same of P99.
	OverCost    float64 `json:"over_cost_mean,omitempty"`
	OverCostP99 float64 `json:"over_cost_p99,omitempty"`
	// Worst is the largest ratio of its mean TTFT to the cell's best, and WorstCell where.
	Worst     float64 `json:"worst_over_best"`
	WorstCell string  `json:"worst_cell"`
	// Best counts the cells in which it has the lowest mean TTFT.
	Best int `json:"best_in_cells"`
}

// Knee is where a policy saturates: the highest rate of a sweep up to which its P90 TTFT stays within the objective.
type Knee struct {
	Name        string  `json:"name"`
	Rate        float64 `json:"rate"`
	ObjectiveMS float64 `json:"objective_p90_ttft_ms"`
	// Beyond says that the sweep ended before the policy saturated.
	Beyond bool `json:"beyond,omitempty"`
}

// AWSReport sets ours beside AWS's published table: SageMaker's prefix-aware routing against random, Llama 3.1 70B on seven
// p5.48xlarge with prefixes of 8,000 tokens.
type AWSReport struct {
	Cell string   `json:"cell"`
	Rows []AWSRow `json:"rows"`
}

// AWSRow is one measure. Changes are in percent against random.
type AWSRow struct {
	Measure   string  `json:"measure"`
	Published string  `json:"published"`
	Random    float64 `json:"random"`
	Cost      float64 `json:"cost"`
	Change    float64 `json:"change_percent"`
}

func secondsOf(d time.Duration) float64 { return rounded(d.Seconds(), 3) }
