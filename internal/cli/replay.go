package cli

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/warmroute/warmroute/internal/bench"
	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/internal/sim"
)

// ReplayCmd tells what a log's requests would have met under each policy.
type ReplayCmd struct {
	File string `arg:"" placeholder:"FILE" help:"Log of requests, one JSON object a line: Warmroute's own (proxy traces), Mooncake traces, OpenAI batches, or logs with messages or prompt. .gz is unpacked; - is standard input."`

	Instances []int    `default:"4,8" placeholder:"N" help:"Sizes of fleets. Default: ${default}."`
	KVTokens  []string `name:"kv-tokens" placeholder:"N" help:"Sizes of each instance's cache in tokens, such as 500k,1M. Default: the engine's."`
	Engine    string   `default:"llama-3.1-70b-8xh100" placeholder:"NAME" help:"Simulated engine. Default: ${default}."`
	Policies  []string `default:"round_robin,least_requests,prefix_hash,cost" placeholder:"NAMES" help:"Policies to compare. Default: ${default}."`
	Baseline  string   `default:"round_robin" placeholder:"NAME" help:"Policy that savings are counted against. Default: ${default}."`
	Price     float64  `name:"price-per-hour" placeholder:"X" help:"Price of an instance per hour, in any currency."`

	Model  string        `placeholder:"NAME" help:"Use only requests for this model."`
	Block  int           `default:"512" placeholder:"N" help:"Tokens of a block of hash_ids, where the log does not say. Default: ${default}."`
	Output int           `default:"200" placeholder:"N" help:"Tokens of an answer, where the log does not say. Default: ${default}."`
	Rate   float64       `default:"1" placeholder:"N" help:"Requests per second, when the log does not say when they came. Default: ${default}."`
	Speed  float64       `default:"1" placeholder:"X" help:"How much faster than recorded the log is played. Default: ${default}."`
	WarmUp time.Duration `name:"warm-up" placeholder:"TIME" help:"Time in front that fills the caches and is not counted."`
	Seed   uint64        `default:"1" placeholder:"N" help:"Seed of policies that draw. Default: ${default}."`

	Workers int    `placeholder:"N" help:"Runs at a time. Default: one per processor."`
	JSON    bool   `name:"json" help:"Print the report as JSON on standard output."`
	HTML    string `name:"html" placeholder:"FILE" help:"Write a page with charts."`
}

// shownFaults is how many bad lines are shown.
const shownFaults = 5

// Run implements the command. Lines that cannot be used are named, the rest is
// replayed, and the command ends with [ExitFault].
func (c *ReplayCmd) Run(env *Env) error {
	sizes, err := c.validate()
	if err != nil {
		return err
	}
	requests, err := c.read()
	if err != nil {
		return err
	}
	for _, f := range requests.Faults[:min(len(requests.Faults), shownFaults)] {
		fmt.Fprintf(env.Stderr, "%s: %s\n", c.File, f)
	}
	if more := requests.Bad - shownFaults; more > 0 {
		fmt.Fprintf(env.Stderr, "%s: %d more lines cannot be used\n", c.File, more)
	}
	progress := newSimProgress(env.Stderr)
	report, err := bench.Replay{
		Log: requests, Workload: requests.Workload(c.Rate, c.Speed), Engine: c.Engine, Instances: c.Instances, KVTokens: sizes,
		Policies: c.Policies, Baseline: c.Baseline, Price: c.Price, WarmUp: c.WarmUp, Seed: c.Seed, Workers: c.Workers, Progress: progress.show,
	}.Run(env.Ctx)
	progress.clear()
	if report == nil || len(report.Cells) == 0 && err != nil {
		return err
	}
	if written := c.write(env.Stdout, report); written != nil {
		return errors.Join(written, err)
	}
	if err == nil && requests.Bad > 0 {
		return errReported
	}
	return err
}

func (c *ReplayCmd) validate() (kvTokens []int, err error) {
	for _, p := range append(slices.Clone(c.Policies), c.Baseline) {
		if !slices.Contains(route.Policies(), p) {
			return nil, fmt.Errorf("--policies, --baseline: %q is none of %s", p, strings.Join(route.Policies(), ", "))
		}
	}
	if _, err := sim.LookupProfile(c.Engine); err != nil {
		return nil, fmt.Errorf("--engine: %w", err)
	}
	switch {
	case len(c.Policies) == 0 || len(c.Instances) == 0:
		return nil, errors.New("--policies, --instances: name at least one")
	case !(c.Rate > 0) || !(c.Speed > 0):
		return nil, errors.New("--rate, --speed: want more than 0")
	case !(c.Price >= 0) || c.WarmUp < 0:
		return nil, errors.New("--price-per-hour, --warm-up: want 0 or more")
	case c.Block < 1 || c.Output < 1:
		return nil, errors.New("--block, --output: want 1 or more")
	}
	for _, n := range c.Instances {
		if n < 1 || n > maxSimInstances {
			return nil, fmt.Errorf("--instances: %d; want 1 to %d", n, maxSimInstances)
		}
	}
	if len(c.KVTokens) == 0 {
		return []int{0}, nil
	}
	for _, text := range c.KVTokens {
		n, err := parseTokens(text)
		if err != nil {
			return nil, fmt.Errorf("--kv-tokens: %w", err)
		}
		kvTokens = append(kvTokens, n)
	}
	return kvTokens, nil
}

// parseTokens reads a number such as 500k or 1.5M.
func parseTokens(text string) (int, error) {
	number, factor := text, 1.0
	for suffix, f := range map[string]float64{"k": 1e3, "K": 1e3, "M": 1e6, "m": 1e6} {
		if s, ok := strings.CutSuffix(text, suffix); ok {
			number, factor = s, f
		}
	}
	x, err := strconv.ParseFloat(number, 64)
	if err != nil || !(x*factor >= 1 && x*factor <= math.MaxInt32) {
		return 0, fmt.Errorf("%q; want a number of tokens such as 500k or 1M", text)
	}
	return int(x*factor + 0.5), nil
}

// read reads the requests.
func (c *ReplayCmd) read() (*bench.RequestLog, error) {
	var r io.Reader = os.Stdin
	if c.File != "-" {
		f, err := os.Open(c.File)
		if err != nil {
			return nil, fmt.Errorf("open log: %w", err)
		}
		defer f.Close()
		r = f
	}
	if strings.HasSuffix(c.File, ".gz") {
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, fmt.Errorf("unpack %s: %w", c.File, err)
		}
		defer func() { _ = z.Close() }() // the reads have told of faults
		r = z
	}
	requests, err := bench.ReadLog(r, bench.LogOptions{Model: c.Model, BlockTokens: c.Block, Output: c.Output})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", c.File, err)
	}
	requests.Name = filepath.Base(c.File)
	return requests, nil
}

func (c *ReplayCmd) write(w io.Writer, r *bench.ReplayReport) error {
	if c.HTML != "" {
		if err := writePage(c.HTML, r.Page()); err != nil {
			return err
		}
	}
	if c.JSON {
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		if err := out.Encode(r); err != nil {
			return fmt.Errorf("print report: %w", err)
		}
		return nil
	}
	printReplay(w, r, c.Engine)
	return nil
}

// printReplay writes the report for people.
func printReplay(w io.Writer, r *bench.ReplayReport, engine string) {
	fmt.Fprintf(w, "%s: %d requests", r.Log.Name, r.Log.Requests)
	if r.Log.Timed {
		fmt.Fprintf(w, " in %s", time.Duration(r.Log.Length*float64(time.Second)).Round(time.Second))
	} else {
		fmt.Fprint(w, ", spaced evenly because the log does not say when they came (--rate)")
	}
	fmt.Fprintf(w, "; simulated on %s\n", engine)
	for _, c := range r.Cells {
		fmt.Fprintf(w, "\n%s each, load %.2f\n", c.Name, c.Load)
		fmt.Fprintf(w, "  %-20s %7s %9s %8s %8s %8s %8s %6s %12s %11s %12s", "policy", "hit %", "ceiling %", "TTFT P50", "P90", "P99", "mean", "skew",
			"saved tokens", "GPU hours", "GPU h/30 d")
		if r.Price > 0 {
			fmt.Fprintf(w, " %12s", "cost/30 d")
		}
		fmt.Fprintln(w)
		for _, p := range c.Policies {
			fmt.Fprintf(w, "  %-20s %7.1f %9.1f %8.0f %8.0f %8.0f %8.0f %6.2f", p.Name, 100*p.HitRate.Actual, 100*p.HitRate.Ceiling,
				p.TTFT.P50, p.TTFT.P90, p.TTFT.P99, p.TTFT.Mean, p.Imbalance)
			printSaving(w, r, c.Name, p.Name)
			if p.SuccessRate < 1 {
				fmt.Fprintf(w, "   %.2f %% failed", 100*(1-p.SuccessRate))
			}
			fmt.Fprintln(w)
		}
	}
	fmt.Fprintf(w, `
Latencies in ms of virtual time. Hit rate: cached prompt tokens / prompt tokens; ceiling: as one cache without limits would give.
Skew: mean over arrivals of the prefill that a prompt finds on the busiest instance over that on the average one; 1 is even.
Saved: prompt tokens that need no prefill, against %s; hours: the time that the engine would have spent on them, times its GPUs.
Hours become money when the fleet shrinks by them; until then they are headroom and shorter waits.
`, r.Baseline)
}

func printSaving(w io.Writer, r *bench.ReplayReport, cell, policy string) {
	i := slices.IndexFunc(r.Savings, func(s bench.Saving) bool { return s.Cell == cell && s.Policy == policy })
	if i < 0 {
		fmt.Fprintf(w, " %12s", "baseline")
		return
	}
	s := r.Savings[i]
	fmt.Fprintf(w, " %12.0f %11.2f", s.Tokens, s.GPUHours)
	if !r.Log.Timed {
		return
	}
	fmt.Fprintf(w, " %12.1f", s.MonthGPUHours)
	if r.Price > 0 {
		fmt.Fprintf(w, " %12.2f", s.MonthCost)
	}
}
