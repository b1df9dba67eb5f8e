package cli

import (
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/warmroute/warmroute/internal/bench"
	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/internal/sim"
)

// demoReport is the JSON of `warmroute demo --json`. Names and meanings stay.
type demoReport struct {
	Policies []bench.PolicyResult `json:"policies"`
	Setup    demoSetup            `json:"setup"`
}

// demoSetup says what was compared on what.
type demoSetup struct {
	Engine         string  `json:"engine"`
	Instances      int     `json:"instances"`
	KVTokens       int     `json:"kv_tokens_per_instance"`
	Documents      int     `json:"documents"`
	DocumentTokens int     `json:"document_tokens"`
	Zipf           float64 `json:"zipf"`
	// Rate is requests per simulated second; Speed is simulated seconds per second.
	Rate  float64 `json:"requests_per_second"`
	Speed float64 `json:"speed"`
	// Load is the offered prompt tokens over what the fleet can prefill when
	// nothing is cached.
	Load float64 `json:"load"`
}

func (d *demo) report() demoReport {
	return demoReport{Policies: d.results, Setup: demoSetup{
		Engine: d.profile.Name, Instances: d.Instances, KVTokens: demoKVTokens,
		Documents: d.workload.Prefixes, DocumentTokens: demoDocumentTokens, Zipf: demoZipf,
		Rate: math.Round(100*d.workload.Rate) / 100, Speed: d.Speed, Load: d.load(),
	}}
}

// load is the offered prompt tokens over the fleet's rate of prefill, both of
// one prompt at a time without anything cached.
func (d *demo) load() float64 {
	const tokens = demoDocumentTokens
	ms := d.profile.StepMS(sim.Load{Prefill: tokens, PrefillPairs: tokens * tokens / 2})
	return math.Round(d.workload.Rate/float64(d.Instances)*ms/10) / 100
}

// printTable writes the comparison for people.
func (d *demo) printTable(w io.Writer) {
	fmt.Fprintf(w, "\n%-20s %31s   %27s\n", "", "time to first token, ms", "hit rate, %")
	fmt.Fprintf(w, "%-20s %7s %7s %7s %7s   %7s %9s %7s   %9s %9s\n",
		"policy", "P50", "P90", "P99", "mean", "actual", "predicted", "ceiling", "success %", "imbalance")
	for _, r := range d.results {
		fmt.Fprintf(w, "%-20s %7.0f %7.0f %7.0f %7.0f   %7.1f %9.1f %7.1f   %9.4g %9.2f\n", r.Name,
			r.TTFT.P50, r.TTFT.P90, r.TTFT.P99, r.TTFT.Mean,
			100*r.HitRate.Actual, 100*r.HitRate.Predicted, 100*r.HitRate.Ceiling, 100*r.SuccessRate, r.Imbalance)
	}
	d.printGain(w)
	fmt.Fprintf(w, `
Simulated: %d x %s, %d requests over %d documents of %d tokens (Zipf %g), %.3g requests/s, and a KV
cache of %d tokens each, %d documents: small, so that a short run shows what a day shows on full-size caches.
Load: the prompts are %.0f %% of what these engines can prefill when nothing is cached.
Real: the gateway, its HTTP, the texts, all measured times (in simulated milliseconds, %g to a real one).
Every policy starts with empty caches and gets the same requests, so the first request for a document misses everywhere.
Hit rate: cached prompt tokens / prompt tokens; actual as the engines report, predicted as the gateway believed when it
chose, ceiling as one endless cache would give. Imbalance: at each arrival, the prefill that a prompt of average length
finds on the busiest instance, its own included, over that on the average instance; 1 is even.
`, d.Instances, d.profile.Name, len(d.calls), d.workload.Prefixes, demoDocumentTokens, demoZipf, d.workload.Rate,
		demoKVTokens, demoKVTokens/demoDocumentTokens, 100*d.load(), d.Speed)
}

// printGain compares the cost policy with the others in words.
func (d *demo) printGain(w io.Writer) {
	i := slices.IndexFunc(d.results, func(r bench.PolicyResult) bool { return r.Name == route.Cost })
	if i < 0 {
		return
	}
	cost := d.results[i]
	for _, r := range d.results {
		if r.Name == route.Cost || r.TTFT.P50 == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s against %s: P50 time to first token %+.0f %%, prefilled tokens %+.0f %%.", cost.Name, r.Name,
			100*(cost.TTFT.P50/r.TTFT.P50-1), 100*((1-cost.HitRate.Actual)/(1-r.HitRate.Actual)-1))
	}
	fmt.Fprintln(w)
}

// printNext says what the reader may try on what is running.
func (d *demo) printNext(w io.Writer, s *demoStage) {
	address := reachable(d.address)
	fmt.Fprintf(w, `
The gateway (%s) and its engines go on until Ctrl-C. Try:

  ask it               %s
  why this instance?   add  -H 'X-Warmroute-Explain: 1' -i
  any OpenAI client    base_url = "http://%s/v1", model = "%s"
`, s.policy, curl(address), address, demoModel)
	if s.admin != "" {
		fmt.Fprintf(w, "  metrics              curl http://%s/metrics\n", s.admin)
	}
	fmt.Fprintf(w, `  other policies       warmroute demo --policies random,prefix_hash,session,cost
  your own engines     warmroute serve --upstream http://HOST:8000 --upstream http://HOST2:8000
  what it costs        warmroute bench overhead
`)
}
