package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/warmroute/warmroute/internal/bench"
	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/internal/sim"
)

// DemoCmd shows the gain: it replays one list of requests through the real
// gateway, once for each policy, over a simulated fleet.
type DemoCmd struct {
	Policies  []string      `default:"round_robin,least_requests,cost" placeholder:"NAMES" help:"Policies to compare, in this order. The last one stays. Default: ${default}."`
	Instances int           `default:"7" placeholder:"N" help:"Number of simulated engines. Default: ${default}."`
	Requests  int           `placeholder:"N" help:"Requests per policy. Default: 700."`
	Duration  time.Duration `placeholder:"TIME" help:"Wall time per policy, instead of --requests."`
	Speed     float64       `default:"3" placeholder:"X" help:"Simulated seconds per second. Default: ${default}."`
	Listen    string        `placeholder:"ADDR" help:"Address of the OpenAI endpoint. Default: 127.0.0.1:8080, or a free port when that is taken or with --once."`
	Seed      uint64        `default:"2" placeholder:"N" help:"Which requests are drawn. Default: ${default}."`
	Once      bool          `help:"Exit after the comparison instead of serving on."`
	JSON      bool          `name:"json" help:"Print the numbers as JSON on standard output."`
}

// The demo's engines and load. As in a day's traffic over full-size caches, the
// documents fit into the fleet's caches together and not into one: here 35
// documents and 7 to a cache, where the real engine's cache takes 170.
const (
	demoEngine   = "llama-3.1-70b-8xh100"
	demoModel    = "llama-3.1-70b"
	demoRequests = 700

	demoDocuments      = 5     // for each instance
	demoDocumentTokens = 8_000 // the shared prefix of AWS's published comparison
	demoZipf           = 0.6
	demoKVTokens       = 60_000
	demoRate           = 2.3 // requests per simulated second and instance
	demoMinOutput      = 24
	demoMaxOutput      = 64
)

// demoDefaultListen is tried first when no address is given.
const demoDefaultListen = "127.0.0.1:8080"

// demo is one run of the command.
type demo struct {
	*DemoCmd
	env       *Env
	profile   sim.Profile
	workload  bench.RAG
	calls     []bench.Call
	ceilings  []float64
	address   string // of the OpenAI endpoint
	progress  *demoProgress
	results   []bench.PolicyResult
	instances []map[string]bench.InstanceResult
}

// Run implements the command.
func (c *DemoCmd) Run(env *Env) error {
	d, err := c.prepare(env)
	if err != nil {
		return err
	}
	for i, policy := range c.Policies {
		last := i == len(c.Policies)-1
		stage, err := d.openStage(policy)
		if err != nil {
			return err
		}
		err = d.play(stage, i)
		if err != nil || !last || c.Once {
			if closed := stage.close(); err == nil {
				err = closed
			}
		}
		if err != nil {
			return err
		}
		if last {
			return d.finish(stage)
		}
	}
	return nil
}

// prepare checks the flags and writes the requests.
func (c *DemoCmd) prepare(env *Env) (*demo, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	d := &demo{DemoCmd: c, env: env}
	var err error
	if d.profile, err = sim.LookupProfile(demoEngine); err != nil {
		return nil, err
	}
	rate := demoRate * float64(c.Instances)
	if c.Duration > 0 {
		c.Requests = max(int(math.Round(c.Duration.Seconds()*c.Speed*rate)), 1)
	}
	if c.Requests == 0 {
		c.Requests = demoRequests
	}
	d.workload = bench.RAG{
		Requests: c.Requests, Rate: rate,
		Prefixes: demoDocuments * c.Instances, PrefixTokens: demoDocumentTokens, Zipf: demoZipf,
		Output: bench.Between(demoMinOutput, demoMaxOutput),
	}
	d.calls, err = bench.Texts{Model: demoModel, Speed: c.Speed}.Calls(d.workload, c.Seed)
	if err != nil {
		return nil, err
	}
	if d.ceilings, err = bench.Ceilings(d.calls); err != nil {
		return nil, err
	}
	d.address, err = c.claimAddress(env.Ctx)
	d.progress = newDemoProgress(env.Stderr, d)
	return d, err
}

func (c *DemoCmd) validate() error {
	for _, p := range c.Policies {
		if !slices.Contains(route.Policies(), p) {
			return fmt.Errorf("--policies: %q is none of %s", p, strings.Join(route.Policies(), ", "))
		}
	}
	switch {
	case len(c.Policies) == 0:
		return errors.New("--policies: name at least one")
	case c.Instances < 1 || c.Instances > 64:
		return fmt.Errorf("--instances: %d; want 1 to 64", c.Instances)
	case c.Requests < 0 || c.Requests > 1_000_000:
		return fmt.Errorf("--requests: %d; want 1 to 1000000", c.Requests)
	case c.Duration < 0:
		return fmt.Errorf("--duration: %s; want more than 0", c.Duration)
	case c.Duration > 0 && c.Requests > 0:
		return errors.New("--requests and --duration exclude each other")
	case !(c.Speed > 0 && c.Speed <= 1000):
		return fmt.Errorf("--speed: %g; want more than 0, at most 1000", c.Speed)
	}
	return nil
}

// play replays the calls through a stage and keeps the numbers.
func (d *demo) play(s *demoStage, number int) error {
	d.progress.begin(s.policy, number)
	load := bench.Load{URL: s.url() + "/v1/chat/completions", HTTP: s.client, Answered: d.progress.answered}
	watch, stop := context.WithCancel(d.env.Ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		d.progress.run(watch)
	}()
	answers := load.Run(d.env.Ctx, d.calls)
	stop()
	<-watched
	if d.env.Ctx.Err() != nil {
		d.progress.clear()
		return errors.New("interrupted before the comparison was complete")
	}
	result := bench.Summarize(s.policy, answers, d.ceilings, d.Speed, d.Instances)
	d.results = append(d.results, result)
	d.instances = append(d.instances, bench.PerInstance(answers))
	d.progress.end(result)
	for i := range answers {
		if err := answers[i].Err; err != nil {
			fmt.Fprintf(d.env.Stderr, "%s: request %d failed: %v\n", s.policy, i, err)
			break
		}
	}
	return nil
}

// finish prints the results and serves on until told to stop.
func (d *demo) finish(s *demoStage) error {
	if d.JSON {
		out := json.NewEncoder(d.env.Stdout)
		out.SetIndent("", "  ")
		if err := out.Encode(d.report()); err != nil {
			return fmt.Errorf("print results: %w", err)
		}
	} else {
		d.printTable(d.env.Stdout)
	}
	if d.Once {
		return nil
	}
	if !d.JSON {
		d.printNext(d.env.Stdout, s)
	}
	<-d.env.Ctx.Done()
	return s.close()
}
