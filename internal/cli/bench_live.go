package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/warmroute/warmroute/internal/bench"
)

// BenchLiveCmd measures running endpoints over HTTP: gateways, or single
// engines.
type BenchLiveCmd struct {
	URL       []string `name:"url" required:"" sep:"none" placeholder:"[NAME=]URL" help:"Endpoint to measure, such as http://localhost:8080. Repeat it to compare endpoints that share no engines: all get the same requests at the same moments."`
	Model     string   `placeholder:"NAME" help:"Model to ask for. Default: the first that the first endpoint lists."`
	APIKeyEnv string   `name:"api-key-env" placeholder:"NAME" help:"Environment variable that holds the API key. Default: no key is sent."`
	OpenAI    bool     `name:"openai" help:"Send only what OpenAI's own API accepts: no ignore_eos, max_completion_tokens in place of max_tokens."`

	Workload string        `default:"rag:prefixes=35,tokens=2000,output=64" sep:"none" placeholder:"NAME[:K=V,...]" help:"agents, chat, groups, mixed, prefix-repetition or rag, and parameters, as in bench sim; \"help\" lists them. Default: ${default}."`
	Trace    string        `type:"existingfile" placeholder:"FILE" help:"Replay a trace instead: Mooncake's JSON lines; .gz is unpacked. --rate multiplies its speed."`
	Block    int           `default:"512" placeholder:"N" help:"Tokens of a block of --trace. Default: ${default}."`
	Rate     float64       `placeholder:"N" help:"Arrivals per second, whether or not earlier requests are answered (agents: agents at work). Default: the workload's for one instance."`
	Duration time.Duration `default:"1m" placeholder:"TIME" help:"Time of arrivals after the warm-up. Default: ${default}."`
	WarmUp   time.Duration `name:"warm-up" default:"10s" placeholder:"TIME" help:"Time in front that is not counted. Default: ${default}."`

	Arrivals    string  `default:"poisson" enum:"poisson,constant,gamma" placeholder:"SHAPE" help:"poisson, constant or gamma. Default: ${default}."`
	Burstiness  float64 `default:"0.25" placeholder:"X" help:"Shape of gamma arrivals: below 1 they come in bursts. Default: ${default}."`
	Concurrency int     `placeholder:"N" help:"Keep so many requests in flight instead of arrivals at a rate."`

	Seed    uint64        `default:"1" placeholder:"N" help:"Which requests are drawn. Default: ${default}."`
	Cold    bool          `default:"true" negatable:"" help:"Word all texts anew in each run, so that no cache holds them from the run before."`
	Timeout time.Duration `default:"10m" placeholder:"TIME" help:"Longest time of a request. Default: ${default}."`
	Speed   float64       `default:"1" placeholder:"X" help:"For simulated engines: simulated seconds per second. Times are given in simulated time. Default: ${default}."`

	SLOTTFT time.Duration `name:"slo-ttft" placeholder:"TIME" help:"Objective for the time to first token."`
	SLOITL  time.Duration `name:"slo-itl" placeholder:"TIME" help:"Objective for a request's mean time between tokens."`
	SLOE2E  time.Duration `name:"slo-e2e" placeholder:"TIME" help:"Objective for the whole time of a request."`
	Goal    float64       `default:"0.99" placeholder:"SHARE" help:"Share of requests that must keep all objectives, for --fail. Default: ${default}."`
	Fail    bool          `help:"Exit with an error when an endpoint misses the goal, or when there is no objective, when a request fails."`

	JSON bool   `name:"json" help:"Print the numbers as JSON on standard output."`
	HTML string `name:"html" placeholder:"FILE" help:"Write a page with charts."`

	salt uint64 // of the texts; zero draws one
}

// Run implements the command.
func (c *BenchLiveCmd) Run(env *Env) error {
	if c.Workload == "help" {
		for _, name := range bench.SpecNames() {
			fmt.Fprintf(env.Stdout, "%s\n    %s\n", name, bench.SpecHelp(name))
		}
		return nil
	}
	if err := c.validate(); err != nil {
		return err
	}
	targets, err := c.targets()
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: 4096, DisableCompression: true, IdleConnTimeout: 30 * time.Second,
	}}
	defer client.CloseIdleConnections()
	if c.Model == "" {
		if c.Model, err = bench.FirstModel(env.Ctx, client, targets[0]); err != nil {
			return fmt.Errorf("ask %s for its models (or give --model): %w", targets[0].URL, err)
		}
	}
	live, err := c.live(targets, client)
	if err != nil {
		return err
	}
	report, err := c.measure(env, live)
	if err != nil {
		return err
	}
	if err := c.deliver(env, report); err != nil {
		return err
	}
	return c.verdict(env, report)
}

func (c *BenchLiveCmd) validate() error {
	switch {
	case !(c.Rate >= 0):
		return fmt.Errorf("--rate: %g; want more than 0", c.Rate)
	case !(c.Burstiness > 0):
		return fmt.Errorf("--burstiness: %g; want more than 0", c.Burstiness)
	case !(c.Speed > 0):
		return fmt.Errorf("--speed: %g; want more than 0", c.Speed)
	case c.Block < 1:
		return fmt.Errorf("--block: %d; want 1 or more", c.Block)
	case c.Concurrency < 0:
		return fmt.Errorf("--concurrency: %d; want 0 (none) or more", c.Concurrency)
	case c.Duration <= 0 || c.WarmUp < 0 || c.Timeout <= 0:
		return errors.New("--duration, --timeout: want more than 0; --warm-up: want 0 or more")
	case !(c.Goal > 0 && c.Goal <= 1):
		return fmt.Errorf("--goal: %g; want more than 0, at most 1", c.Goal)
	}
	return nil
}

// targets reads --url.
func (c *BenchLiveCmd) targets() ([]bench.Target, error) {
	key := ""
	if c.APIKeyEnv != "" {
		if key = os.Getenv(c.APIKeyEnv); key == "" {
			return nil, fmt.Errorf("--api-key-env: %s is not set", c.APIKeyEnv)
		}
	}
	var out []bench.Target
	for _, text := range c.URL {
		name, address, named := strings.Cut(text, "=")
		if !named || strings.Contains(name, "/") { // an equals sign of the URL's own
			name, address = "", text
		}
		u, err := url.Parse(address)
		switch {
		case err != nil:
			return nil, fmt.Errorf("--url: %w", err)
		case u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
			return nil, fmt.Errorf("--url: %q; want [NAME=]http://HOST[:PORT]", text)
		case name == "":
			name = u.Host
		}
		if slices.ContainsFunc(out, func(t bench.Target) bool { return t.Name == name }) {
			return nil, fmt.Errorf("--url: two endpoints are called %q; write NAME=URL", name)
		}
		out = append(out, bench.Target{Name: name, URL: address, Key: key})
	}
	return out, nil
}

// live puts the benchmark together.
func (c *BenchLiveCmd) live(targets []bench.Target, client *http.Client) (*bench.Live, error) {
	w, err := c.workload()
	if err != nil {
		return nil, err
	}
	if c.Cold && c.salt == 0 {
		c.salt = rand.Uint64() >> 11 // exact in JSON readers that know only floats
	}
	l := &bench.Live{
		Targets: targets, Workload: w, Seed: c.Seed, Concurrent: c.Concurrency,
		Speed: c.Speed, Timeout: c.Timeout, HTTP: client,
	}
	for i := range targets {
		// Endpoints that share engines after all must not warm each other's caches.
		words, err := bench.NewWording(c.Model, c.salt+uint64(i))
		if err != nil {
			return nil, err
		}
		words.Plain = c.OpenAI
		l.Wordings = append(l.Wordings, words)
	}
	return l, nil
}

// workload makes what is sent. A rate is of requests, but for conversations and
// agents.
func (c *BenchLiveCmd) workload() (bench.Workload, error) {
	length := c.WarmUp + c.Duration
	var w bench.Workload
	if c.Trace != "" {
		c.Rate = cmp.Or(c.Rate, 1)
		t, err := bench.OpenTrace(c.Trace, c.Block, c.Rate)
		if err != nil {
			return nil, err
		}
		w = t.Until(length)
	} else {
		spec, err := bench.ParseSpec(c.Workload)
		if err != nil {
			return nil, fmt.Errorf("--workload: %w", err)
		}
		c.Rate = cmp.Or(c.Rate, spec.DefaultRate(1))
		w = spec.Workload(c.Rate, length)
	}
	if c.Arrivals == "poisson" {
		return w, nil
	}
	if !bench.Independent(w) {
		return nil, fmt.Errorf("--arrivals %s: in this workload requests follow answers; it takes rag, groups or prefix-repetition", c.Arrivals)
	}
	shape := c.Burstiness
	if c.Arrivals == "constant" {
		shape = math.Inf(1)
	}
	return bench.Spaced(w, bench.Arrivals{Rate: c.Rate, Burstiness: shape}), nil
}

// measure runs the benchmark and makes the report. A run that is broken off
// gives a report of what it had.
func (c *BenchLiveCmd) measure(env *Env, l *bench.Live) (*bench.LiveReport, error) {
	progress := newLiveProgress(env.Stderr, c, l)
	l.Answered = progress.answered
	saturation := bench.WatchSaturation()
	stop := progress.start()
	runs, err := l.Run(env.Ctx)
	stop()
	if err != nil {
		return nil, err
	}
	report := &bench.LiveReport{
		Setup: bench.LiveSetup{
			Workload: l.Workload.Name(), Arrivals: c.arrivalWords(), Model: c.Model, Seed: c.Seed,
			WarmUp: c.WarmUp.Seconds(), Speed: c.Speed, Salt: c.salt, ClientProc: runtime.GOMAXPROCS(0),
		},
		Interrupted: env.Ctx.Err() != nil,
		Warnings:    []string{},
		Formulas:    bench.Formulas,
	}
	cell := bench.LiveCell{Name: l.Workload.Name()}
	goals := bench.Objectives{TTFT: c.SLOTTFT, ITL: c.SLOITL, E2E: c.SLOE2E}
	for i := range runs {
		cell.Targets = append(cell.Targets, runs[i].Result(c.Speed, c.WarmUp, goals))
	}
	report.Cells = []bench.LiveCell{cell}
	report.Warnings = append(report.Warnings, saturation.Warnings(cell.Targets)...)
	return report, nil
}

func (c *BenchLiveCmd) arrivalWords() string {
	switch {
	case c.Concurrency > 0:
		return fmt.Sprintf("%d in flight", c.Concurrency)
	case c.Trace != "":
		return fmt.Sprintf("as recorded x%g", c.Rate)
	case c.Arrivals == "gamma":
		return fmt.Sprintf("gamma arrivals, burstiness %g", c.Burstiness)
	case c.Arrivals == "constant":
		return "constant arrivals"
	}
	return "arrivals of its own"
}

// deliver prints the report and writes the page.
func (c *BenchLiveCmd) deliver(env *Env, r *bench.LiveReport) error {
	if c.HTML != "" {
		if err := writePage(c.HTML, r.Page()); err != nil {
			return err
		}
	}
	if !c.JSON {
		printLive(env.Stdout, r, c.HTML)
		return nil
	}
	out := json.NewEncoder(env.Stdout)
	out.SetIndent("", "  ")
	if err := out.Encode(r); err != nil {
		return fmt.Errorf("print results: %w", err)
	}
	return nil
}

// verdict is the exit code.
func (c *BenchLiveCmd) verdict(env *Env, r *bench.LiveReport) error {
	if r.Interrupted {
		fmt.Fprintln(env.Stderr, "warmroute: interrupted; the numbers are of the requests that had ended")
		return errReported
	}
	bad := false
	for _, t := range r.Cells[0].Targets {
		switch {
		case t.SuccessRate == 0:
			fmt.Fprintf(env.Stderr, "warmroute: %s answered nothing: %s\n", t.Name, t.Example)
			bad = true
		case !c.Fail:
		case t.Goodput != nil && t.Goodput.Share < c.Goal:
			fmt.Fprintf(env.Stderr, "warmroute: %s kept the objectives in %.1f %% of requests; the goal is %.1f %%\n", t.Name, 100*t.Goodput.Share, 100*c.Goal)
			bad = true
		case t.Goodput == nil && t.SuccessRate < 1:
			fmt.Fprintf(env.Stderr, "warmroute: %s failed %.2f %% of requests\n", t.Name, 100*(1-t.SuccessRate))
			bad = true
		}
	}
	if bad {
		return errReported
	}
	return nil
}
