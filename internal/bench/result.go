package bench

import "time"

// PolicyResult is the numbers of one policy over one workload. Its JSON is
// stable: names and meanings stay.
type PolicyResult struct {
	Name string `json:"name"`
	// TTFT is the time to first token: request sent to the gateway, to first
	// chunk that carries content. Virtual time for simulated engines.
	TTFT    Summary `json:"ttft_ms"`
	HitRate HitRate `json:"hit_rate"`
	// SuccessRate is the share of requests that were answered in full.
	SuccessRate float64 `json:"success_rate"`
	// Imbalance is the mean over arrivals of (max_i Q_i + n)/(mean_i Q_i + n);
	// see [Imbalance].
	Imbalance float64 `json:"imbalance"`
	Requests  int     `json:"requests"`
}

// HitRate is cached prompt tokens over prompt tokens, from 0 to 1.
type HitRate struct {
	Actual    float64 `json:"actual"`    // as the engines report
	Predicted float64 `json:"predicted"` // as the gateway believed when it sent the request
	Ceiling   float64 `json:"ceiling"`   // as one cache without limits would give, shared by all instances
}

func (p PolicyResult) rounded() PolicyResult {
	p.HitRate.Actual = rounded(p.HitRate.Actual, 4)
	p.HitRate.Predicted = rounded(p.HitRate.Predicted, 4)
	p.HitRate.Ceiling = rounded(p.HitRate.Ceiling, 4)
	p.SuccessRate = rounded(p.SuccessRate, 6)
	p.Imbalance = rounded(p.Imbalance, 3)
	return p
}

// Result is all that a virtual run measured.
type Result struct {
	PolicyResult
	E2E       Summary          `json:"e2e_ms"`
	TPOT      Summary          `json:"tpot_ms"` // (E2E - TTFT)/(output tokens - 1), per request
	Instances []InstanceResult `json:"instances"`
	Curve     []Point          `json:"curve,omitempty"`
	Duration  time.Duration    `json:"duration_ns"` // virtual, without the warm-up
}

// InstanceResult is what one instance answered.
type InstanceResult struct {
	Requests     int   `json:"requests"`
	PromptTokens int64 `json:"prompt_tokens"`
	CachedTokens int64 `json:"cached_tokens"`
	OutputTokens int64 `json:"output_tokens"`
}

// Point is one step of a curve over time, by time of arrival.
type Point struct {
	At       time.Duration `json:"at_ns"`
	Requests int           `json:"requests"`
	HitRate  float64       `json:"hit_rate"`
	TTFT     time.Duration `json:"ttft_ns"` // mean
	Spread   float64       `json:"spread"`  // the busiest instance's share of the prefilled tokens over the average one's
}
