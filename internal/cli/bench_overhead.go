package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/warmroute/warmroute/internal/bench"
)

// BenchOverheadCmd measures `warmroute serve` in a process of its own, in front
// of an engine that answers at once.
type BenchOverheadCmd struct {
	Rate       float64       `default:"200" placeholder:"N" help:"Requests per second through the gateway, and as many directly. Default: ${default}."`
	Duration   time.Duration `default:"10s" placeholder:"TIME" help:"Time per cell. Default: ${default}."`
	Bodies     []int         `default:"10000,200000" placeholder:"BYTES" help:"Sizes of request bodies. Default: ${default}."`
	Concurrent int           `default:"64" placeholder:"N" help:"Clients of the processor measurement. Default: ${default}."`
	Nginx      string        `placeholder:"PATH" help:"nginx to compare with. Default: the one on the PATH, if any."`
	JSON       bool          `name:"json" help:"Print the numbers as JSON on standard output."`

	binary string // of the gateway; empty means this program
}

// Run implements the command.
func (c *BenchOverheadCmd) Run(env *Env) error {
	if err := c.validate(); err != nil {
		return err
	}
	if c.binary == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
		c.binary = self
	}
	if c.Nginx == "" {
		c.Nginx, _ = exec.LookPath("nginx") // absent: the comparison is skipped and says so
	}
	report, err := bench.Overhead{
		Gateway: c.gateway, Nginx: c.Nginx,
		Rate: c.Rate, Bodies: c.Bodies, Duration: c.Duration, Concurrent: c.Concurrent,
		Say: func(line string) { fmt.Fprintln(env.Stderr, line) },
	}.Run(env.Ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		out := json.NewEncoder(env.Stdout)
		out.SetIndent("", "  ")
		if err := out.Encode(report); err != nil {
			return fmt.Errorf("print results: %w", err)
		}
		return nil
	}
	c.print(env.Stdout, report)
	return nil
}

func (c *BenchOverheadCmd) validate() error {
	switch {
	case !(c.Rate > 0 && c.Rate <= 10_000):
		return fmt.Errorf("--rate: %g; want more than 0, at most 10000", c.Rate)
	case c.Duration < 100*time.Millisecond:
		return fmt.Errorf("--duration: %s; want at least 100ms", c.Duration)
	case c.Concurrent < 1 || c.Concurrent > 1000:
		return fmt.Errorf("--concurrent: %d; want 1 to 1000", c.Concurrent)
	case len(c.Bodies) == 0:
		return errors.New("--bodies: name at least one size")
	}
	for _, n := range c.Bodies {
		if n < 500 || n > 16<<20 {
			return fmt.Errorf("--bodies: %d; want 500 to %d", n, 16<<20)
		}
	}
	return nil
}

// gateway is the command line of a gateway as a user starts it. It logs its
// access lines, to nobody.
func (c *BenchOverheadCmd) gateway(ctx context.Context, upstream, listen string) *exec.Cmd {
	return exec.CommandContext(ctx, c.binary, "serve", "--upstream", upstream, "--listen", listen, "--admin-listen", "127.0.0.1:0")
}

func (c *BenchOverheadCmd) print(w io.Writer, r *bench.OverheadReport) {
	fmt.Fprintf(w, "Time added by the gateway: pairs of requests, one through it and one directly, interleaved at %g/s each; ms.\n", c.Rate)
	fmt.Fprintf(w, "Streams: to the first content; others: to the end.\n\n")
	fmt.Fprintf(w, "%9s  %-7s %6s %7s   %8s %8s   %8s %8s   %8s %8s   %8s\n",
		"body", "answer", "pairs", "failed", "direct50", "direct99", "through50", "through99", "ADDED50", "ADDED99", "to end50")
	for _, x := range r.Cells {
		fmt.Fprintf(w, "%6d KB  %-7s %6d %7d   %8.3f %8.3f   %8.3f %8.3f   %8.3f %8.3f   %8.3f\n", x.BodyBytes/1000, answerWord(x.Stream),
			x.Pairs, x.Failed, x.Direct.P50, x.Direct.P99, x.Through.P50, x.Through.P99, x.Added.P50, x.Added.P99, x.AddedToEnd.P50)
	}
	if len(r.CPU) > 0 {
		fmt.Fprintf(w, "\nProcessor time per request with %d clients, us (requests/s in parentheses):\n\n", c.Concurrent)
		fmt.Fprintf(w, "%9s  %-7s %18s %8s %18s %7s\n", "body", "answer", "gateway", "MiB", "nginx", "ratio")
	}
	for _, x := range r.CPU {
		fmt.Fprintf(w, "%6d KB  %-7s %9.0f (%6.0f) %8.0f", x.BodyBytes/1000, answerWord(x.Stream), x.Gateway.PerRequest, x.Gateway.Rate, x.RSS)
		if x.Ratio > 0 {
			fmt.Fprintf(w, " %9.0f (%6.0f) %7.2f", x.Nginx.PerRequest, x.Nginx.Rate, x.Ratio)
		}
		fmt.Fprintln(w)
	}
	if r.RSS > 0 {
		fmt.Fprintf(w, "\nResident memory of the gateway, median of the largest cell: %.0f MiB.\n", r.RSS)
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(w, "Skipped: %s.\n", s)
	}
}

func answerWord(stream bool) string {
	if stream {
		return "stream"
	}
	return "whole"
}
