package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/warmroute/warmroute/internal/bench"
	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/internal/sim"
)

// BenchSimCmd compares policies over simulated engines in virtual time.
type BenchSimCmd struct {
	Suite  string  `placeholder:"NAME" help:"Run a committed matrix of cells instead of one workload: standard."`
	Only   string  `placeholder:"TEXT" help:"Of the suite, only cells with this in their name."`
	Length float64 `default:"1" placeholder:"X" help:"Length of the suite's cells, from 0.01; below 1 the numbers are rough. Default: ${default}."`
	Traces string  `env:"WARMROUTE_TRACES" default:"../shared/traces" type:"path" placeholder:"DIR" help:"Where the suite's traces lie. Cells whose trace is not there are skipped. Default: ${default}."`

	Workload  string   `default:"rag" sep:"none" placeholder:"NAME[:K=V,...]" help:"agents, chat, groups, mixed, prefix-repetition or rag, and parameters; \"help\" lists them. Default: ${default}."`
	Trace     string   `type:"existingfile" placeholder:"FILE" help:"Replay a trace instead: Mooncake's JSON lines, or with a name that begins with text_ conversations or passages; .gz is unpacked."`
	Block     int      `default:"512" placeholder:"N" help:"Tokens of a block of --trace. Default: ${default}."`
	Engine    []string `default:"llama-3.1-70b-8xh100" placeholder:"NAME[=N]" help:"Simulated engines, such as a=3,b=2; without numbers --instances of each. Default: ${default}."`
	Instances int      `default:"7" placeholder:"N" help:"Instances of an engine. Default: ${default}."`
	KVTokens  int      `name:"kv-tokens" placeholder:"N" help:"Size of each cache in tokens. Default: the engine's."`
	BlockSize int      `name:"engine-block" default:"16" placeholder:"N" help:"Tokens of an engine's block; 64 is faster. Default: ${default}."`

	Policies  []string      `placeholder:"NAMES" help:"Policies to compare. Default: all."`
	Rate      []string      `placeholder:"N" help:"Arrivals per second (agents: agents at work; a trace: times its own speed): one, a list, or \"sweep\" to find where each policy saturates. Default: the workload's."`
	Objective time.Duration `name:"slo-ttft" default:"2s" placeholder:"TIME" help:"P90 time to first token beyond which a sweep calls a policy saturated. Default: ${default}."`
	Duration  time.Duration `default:"5m" placeholder:"TIME" help:"Virtual time of arrivals after the warm-up. Default: ${default}."`
	WarmUp    time.Duration `name:"warm-up" default:"1m" placeholder:"TIME" help:"Virtual time in front that is not counted. Default: ${default}."`
	Seeds     int           `default:"1" placeholder:"N" help:"Number of seeds; the suite takes 2 unless told. Default: ${default}."`
	Seed      uint64        `default:"1" placeholder:"N" help:"The first seed. Default: ${default}."`

	Events     []string      `placeholder:"AT:WHAT" help:"What happens to engines, unknown to the gateway: 300s:restart:2, 300s:restart:2:10s (away for so long), 300s:kv:all:100000; and known to it: 300s:add, 600s:remove:0."`
	Assumed    float64       `name:"assumed-capacity" default:"1" placeholder:"X" help:"Cache size that the gateway is told, as a multiple of the truth; 0 tells nothing. Default: ${default}."`
	Knowledge  string        `default:"reports" enum:"reports,no_reports,exact,all" placeholder:"KIND" help:"What the gateway learns of caches: reports, no_reports, exact, or all three for cost. Default: ${default}."`
	Replicas   int           `default:"1" placeholder:"N" help:"Gateway replicas, each with its own index and books. Default: ${default}."`
	ShareDelay time.Duration `default:"50ms" placeholder:"TIME" help:"How late replicas hear of each other's requests; below 0 never. Default: ${default}."`

	Workers int    `placeholder:"N" help:"Runs at a time. Default: one per processor."`
	JSON    string `name:"json" placeholder:"FILE" help:"Write the report as JSON; - is standard output and replaces the table."`
	HTML    string `name:"html" placeholder:"FILE" help:"Write a page with charts."`
}

// Limits that keep a slip of the finger from filling the machine's memory.
const (
	maxSimInstances = 10_000
	maxSimSeeds     = 100
	maxSimReplicas  = 64
)

// suiteSeeds is the suite's number of seeds where none is given.
const suiteSeeds = 2

// Run implements the command.
func (c *BenchSimCmd) Run(env *Env) error {
	if c.Workload == "help" {
		for _, name := range bench.SpecNames() {
			fmt.Fprintf(env.Stdout, "%s\n    %s\n", name, bench.SpecHelp(name))
		}
		return nil
	}
	if err := c.validate(); err != nil {
		return err
	}
	progress := newSimProgress(env.Stderr)
	defer progress.clear()
	report, err := c.report(env, progress)
	progress.clear()
	if report == nil {
		return err
	}
	return errors.Join(c.write(env.Stdout, report), err)
}

func (c *BenchSimCmd) validate() error {
	for _, p := range c.Policies {
		if !slices.Contains(route.Policies(), p) {
			return fmt.Errorf("--policies: %q is none of %s", p, strings.Join(route.Policies(), ", "))
		}
	}
	switch {
	case c.Suite != "" && c.Suite != "standard":
		return fmt.Errorf("--suite: %q; there is standard", c.Suite)
	case !(c.Length >= 0.01 && c.Length <= 100):
		return fmt.Errorf("--length: %g; want 0.01 to 100", c.Length)
	case c.Instances < 1 || c.Instances > maxSimInstances:
		return fmt.Errorf("--instances: %d; want 1 to %d", c.Instances, maxSimInstances)
	case c.KVTokens < 0 || c.Block < 1 || c.BlockSize < 1:
		return errors.New("--kv-tokens, --block, --engine-block: want positive numbers")
	case c.Duration <= 0 || c.WarmUp < 0:
		return errors.New("--duration: want more than 0; --warm-up: want 0 or more")
	case c.Seeds < 1 || c.Seeds > maxSimSeeds:
		return fmt.Errorf("--seeds: %d; want 1 to %d", c.Seeds, maxSimSeeds)
	case c.Replicas < 1 || c.Replicas > maxSimReplicas:
		return fmt.Errorf("--replicas: %d; want 1 to %d", c.Replicas, maxSimReplicas)
	case c.Objective <= 0:
		return errors.New("--slo-ttft: want more than 0")
	}
	return nil
}

// report runs what the flags ask for.
func (c *BenchSimCmd) report(env *Env, progress *simProgress) (*bench.Report, error) {
	e := bench.Experiment{Policies: c.Policies, Route: route.Default(), Workers: c.Workers, Detail: c.JSON != "" || c.HTML != ""}
	if len(e.Policies) == 0 {
		e.Policies = route.Policies()
	}
	if c.Suite != "" && c.Seeds == 1 {
		c.Seeds = suiteSeeds
	}
	for i := range c.Seeds {
		e.Seeds = append(e.Seeds, c.Seed+uint64(i))
	}
	e.Progress = progress.show
	if c.Suite != "" {
		return c.suite(env, e)
	}
	cellAt, rates, err := c.cells()
	if err != nil {
		return nil, err
	}
	e.Title = "Simulated in virtual time."
	if slices.Equal(c.Rate, []string{"sweep"}) {
		s := bench.Sweep{Experiment: e, Cell: cellAt, Start: rates[0], Objective: c.Objective}
		return s.Run(env.Ctx)
	}
	for _, r := range rates {
		cell, err := cellAt(r)
		if err != nil {
			return nil, err
		}
		e.Cells = append(e.Cells, cell)
	}
	if err := e.Validate(); err != nil {
		return nil, err
	}
	return e.Run(env.Ctx)
}

func (c *BenchSimCmd) suite(env *Env, e bench.Experiment) (*bench.Report, error) {
	cells, skipped, err := bench.Standard(c.Length, c.Traces)
	if err != nil {
		return nil, err
	}
	for _, cell := range cells {
		if strings.Contains(cell.Name, c.Only) {
			e.Cells = append(e.Cells, cell)
		}
	}
	e.Title = fmt.Sprintf("Standard suite: %d cells, %d policies, %d seeds; simulated in virtual time.", len(e.Cells), len(e.Policies), len(e.Seeds))
	if err := e.Validate(); err != nil {
		return nil, err
	}
	report, err := e.Run(env.Ctx)
	report.Skipped = skipped
	report.AWS = bench.AWS(report)
	return report, err
}

// cells reads the flags of one workload: how to make its cell at a rate, and
// the rates to run.
func (c *BenchSimCmd) cells() (func(rate float64) (bench.Cell, error), []float64, error) {
	s, err := c.settings()
	if err != nil {
		return nil, nil, err
	}
	workload, usual, err := c.workload(len(s.Profiles))
	if err != nil {
		return nil, nil, err
	}
	rates := []float64{usual}
	if len(c.Rate) > 0 && c.Rate[0] != "sweep" {
		if rates, err = numbers(c.Rate); err != nil {
			return nil, nil, fmt.Errorf("--rate: %w", err)
		}
	}
	name := c.Workload
	if c.Trace != "" {
		name, _, _ = strings.Cut(filepath.Base(c.Trace), ".")
	}
	return func(rate float64) (bench.Cell, error) {
		w, err := workload(rate)
		if err != nil {
			return bench.Cell{}, err
		}
		cell := bench.Cell{Name: fmt.Sprintf("%s at %g", name, rate), About: "as asked for", Rate: rate, AllKnowledge: c.Knowledge == "all", Settings: s}
		cell.Workload = w
		return cell, nil
	}, rates, nil
}

// settings reads the flags about engines and gateways.
func (c *BenchSimCmd) settings() (bench.Settings, error) {
	s := bench.Settings{
		KVTokens: c.KVTokens, Engine: sim.Options{BlockTokens: c.BlockSize}, Assumed: c.Assumed, WarmUp: c.WarmUp,
		CurveStep: max((c.Duration / curvePoints).Round(time.Second), time.Second), Replicas: c.Replicas, ShareDelay: c.ShareDelay,
	}
	switch c.Knowledge {
	case bench.NoReports.String():
		s.Knowledge = bench.NoReports
	case bench.Exact.String():
		s.Knowledge = bench.Exact
	}
	for _, e := range c.Engine {
		name, count, given := strings.Cut(e, "=")
		n := c.Instances
		if given {
			if _, err := fmt.Sscanf(count, "%d", &n); err != nil || n < 1 || n > maxSimInstances {
				return s, fmt.Errorf("--engine: %q: want NAME=NUMBER, at most %d", e, maxSimInstances)
			}
		}
		fleet, err := bench.Fleet(name, n)
		if err != nil {
			return s, fmt.Errorf("--engine: %w", err)
		}
		s.Profiles = append(s.Profiles, fleet...)
	}
	if err := s.ReadEvents(c.Events); err != nil {
		return s, fmt.Errorf("--events: %w", err)
	}
	return s, nil
}

// curvePoints is how many points a curve over time has.
const curvePoints = 40

// workload tells how to make the workload at a rate, and the usual rate.
func (c *BenchSimCmd) workload(instances int) (func(rate float64) (bench.Workload, error), float64, error) {
	if c.Trace == "" {
		spec, err := bench.ParseSpec(c.Workload)
		if err != nil {
			return nil, 0, fmt.Errorf("--workload: %w", err)
		}
		return func(rate float64) (bench.Workload, error) { return spec.Workload(rate, c.WarmUp+c.Duration), nil }, spec.DefaultRate(instances), nil
	}
	if strings.HasPrefix(filepath.Base(c.Trace), "text_") {
		return func(rate float64) (bench.Workload, error) {
			return bench.OpenConversations(c.Trace, rate, conversationPause)
		}, 1, nil
	}
	return func(rate float64) (bench.Workload, error) { return bench.OpenTrace(c.Trace, c.Block, rate) }, 1, nil
}

// conversationPause is the mean time between an answer and the next turn of a
// recorded conversation.
const conversationPause = 10 * time.Second

func numbers(texts []string) ([]float64, error) {
	out := make([]float64, len(texts))
	for i, t := range texts {
		if _, err := fmt.Sscanf(t, "%g", &out[i]); err != nil || !(out[i] > 0 && out[i] <= 1e6) {
			return nil, fmt.Errorf("%q: want a number above 0", t)
		}
	}
	return out, nil
}

// write puts the report where the flags say.
func (c *BenchSimCmd) write(stdout io.Writer, r *bench.Report) error {
	if c.HTML != "" {
		if err := writePage(c.HTML, r.Page()); err != nil {
			return err
		}
	}
	if c.JSON == "" {
		r.WriteText(stdout)
		return nil
	}
	out := stdout
	if c.JSON != "-" {
		r.WriteText(stdout)
		f, err := os.Create(c.JSON)
		if err != nil {
			return fmt.Errorf("--json: %w", err)
		}
		defer f.Close()
		out = f
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(r); err != nil {
		return fmt.Errorf("--json: %w", err)
	}
	return nil
}
