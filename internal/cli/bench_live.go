package cli

import (
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

	Workload string `default:"rag" enum:"rag,prefix-repetition,chat,trace" placeholder:"NAME" help:"rag, prefix-repetition, chat or trace. Default: ${default}."`
	Trace    string `placeholder:"FILE" help:"Trace to replay, in Mooncake's JSON lines; .gz is unpacked. Implies --workload trace."`

	Requests     int           `default:"500" placeholder:"N" help:"Requests; with chat, about so many turns. Default: ${default}."`
	Prefixes     int           `default:"35" placeholder:"N" help:"Documents of rag and prefix-repetition; system texts of chat. Default: ${default}."`
	PrefixTokens int           `default:"2000" placeholder:"N" help:"Length of each. Default: ${default}."`
	Zipf         float64       `default:"1" placeholder:"S" help:"Skew of the documents' popularity in rag. Default: ${default}."`
	Tail         int           `default:"100" placeholder:"N" help:"Tokens of a question or user message. Default: ${default}."`
	Output       int           `default:"64" placeholder:"N" help:"Tokens of an answer. Default: ${default}."`
	Turns        int           `default:"5" placeholder:"N" help:"User messages of a chat. Default: ${default}."`
	Think        time.Duration `default:"5s" placeholder:"TIME" help:"Mean pause between an answer and the next message of a chat. Default: ${default}."`
	TraceSpeed   float64       `default:"1" placeholder:"X" help:"How much faster than recorded a trace is played. Default: ${default}."`
	TraceBlock   int           `default:"512" placeholder:"N" help:"Tokens of a trace's block. Default: ${default}."`

	Rate        float64 `default:"2" placeholder:"N" help:"Requests (chat: conversations) per second that arrive, whether or not earlier ones are answered. Default: ${default}."`
	Arrivals    string  `default:"poisson" enum:"poisson,constant,gamma" placeholder:"SHAPE" help:"poisson, constant or gamma. Default: ${default}."`
	Burstiness  float64 `default:"0.25" placeholder:"X" help:"Shape of gamma arrivals: below 1 they come in bursts. Default: ${default}."`
	Concurrency int     `placeholder:"N" help:"Keep so many requests in flight instead of arrivals at a rate."`

	WarmUp  time.Duration `placeholder:"TIME" help:"Leave the requests of the beginning out of the numbers."`
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
	if c.Trace != "" {
		c.Workload = "trace"
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
	case c.Requests < 1 || c.Requests > 10_000_000:
		return fmt.Errorf("--requests: %d; want 1 to 10000000", c.Requests)
	case c.Prefixes < 1 || c.Prefixes > 10_000_000:
		return fmt.Errorf("--prefixes: %d; want 1 to 10000000", c.Prefixes)
	case c.PrefixTokens < 0 || c.PrefixTokens > 10_000_000:
		return fmt.Errorf("--prefix-tokens: %d; want 0 to 10000000", c.PrefixTokens)
	case c.Tail < 1 || c.Output < 1 || c.Turns < 1:
		return errors.New("--tail, --output and --turns: want 1 or more")
	case !(c.Rate > 0):
		return fmt.Errorf("--rate: %g; want more than 0", c.Rate)
	case !(c.Burstiness > 0):
		return fmt.Errorf("--burstiness: %g; want more than 0", c.Burstiness)
	case !(c.Zipf >= 0):
		return fmt.Errorf("--zipf: %g; want 0 or more", c.Zipf)
	case !(c.Speed > 0):
		return fmt.Errorf("--speed: %g; want more than 0", c.Speed)
	case !(c.TraceSpeed > 0) || c.TraceBlock < 1:
		return errors.New("--trace-speed and --trace-block: want more than 0")
	case c.Concurrency < 0 || c.WarmUp < 0 || c.Timeout <= 0:
		return errors.New("--concurrency and --warm-up: want 0 or more; --timeout: want more than 0")
	case !(c.Goal > 0 && c.Goal <= 1):
		return fmt.Errorf("--goal: %g; want more than 0, at most 1", c.Goal)
	case c.Workload == "trace" && c.Trace == "":
		return errors.New("--workload trace: name the file with --trace")
	case c.Workload == "chat" && c.Arrivals != "poisson":
		return errors.New("--arrivals: conversations start as a Poisson process; later turns follow their answers")
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
		Targets: targets, Workload: w, Seed: c.Seed,
		Speed: c.Speed, Timeout: c.Timeout, HTTP: client,
	}
	if c.Workload != "chat" { // whose users are as many, and some of them think
		l.Concurrent = c.Concurrency
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

func (c *BenchLiveCmd) workload() (bench.Workload, error) {
	var w bench.Workload
	switch c.Workload {
	case "chat":
		chat := bench.Chat{
			Sessions: (c.Requests + c.Turns - 1) / c.Turns, Rate: c.Rate, Groups: c.Prefixes, SystemTokens: c.PrefixTokens,
			Turns: bench.Fixed(c.Turns), User: bench.Fixed(c.Tail), Output: bench.Fixed(c.Output), Think: c.Think,
		}
		if c.Concurrency > 0 {
			chat.Rate, chat.Users = 0, c.Concurrency
		}
		return chat, nil
	case "trace":
		t, err := bench.OpenTrace(c.Trace, c.TraceBlock, c.TraceSpeed)
		if err != nil {
			return nil, err
		}
		return t.Head(c.Requests), nil
	case "prefix-repetition":
		c.Zipf = 0
		fallthrough
	default:
		w = bench.RAG{
			Requests: c.Requests, Rate: c.Rate, Prefixes: c.Prefixes, PrefixTokens: c.PrefixTokens, Zipf: c.Zipf,
			Tail: bench.Fixed(c.Tail), Output: bench.Fixed(c.Output),
		}
	}
	switch c.Arrivals {
	case "constant":
		w = bench.Spaced(w, bench.Arrivals{Rate: c.Rate, Burstiness: math.Inf(1)})
	case "gamma":
		w = bench.Spaced(w, bench.Arrivals{Rate: c.Rate, Burstiness: c.Burstiness})
	}
	return w, nil
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
	case c.Workload == "chat" && c.Concurrency > 0:
		return fmt.Sprintf("%d users", c.Concurrency)
	case c.Workload == "chat":
		return fmt.Sprintf("conversations, %g/s", c.Rate)
	case c.Concurrency > 0:
		return fmt.Sprintf("%d in flight", c.Concurrency)
	case c.Workload == "trace":
		return "as recorded"
	case c.Arrivals == "gamma":
		return fmt.Sprintf("gamma, burstiness %g, %g/s", c.Burstiness, c.Rate)
	}
	return fmt.Sprintf("%s, %g/s", c.Arrivals, c.Rate)
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
