package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/warmroute/warmroute/internal/bench"
)

// liveProgress tells how far a benchmark is: one line that changes when the
// output is a terminal, else a plain line now and then.
type liveProgress struct {
	out      io.Writer
	terminal bool
	width    int           // of the terminal in columns; 0 when it does not tell
	total    int           // requests of all targets; 0 when nobody knows before the end
	length   time.Duration // of arrivals in wall time
	speed    float64
	begun    time.Time

	mu           sync.Mutex // guards below
	done, failed int
	ttft         bench.Sample
}

const livePlainTick = 10 * time.Second

func newLiveProgress(out io.Writer, c *BenchLiveCmd, l *bench.Live) *liveProgress {
	p := &liveProgress{
		out: out, speed: c.Speed, total: bench.Planned(l.Workload) * len(l.Targets),
		length: time.Duration(float64(c.WarmUp+c.Duration) / c.Speed),
	}
	if f, ok := out.(*os.File); ok {
		p.terminal = term.IsTerminal(int(f.Fd()))
		p.width, _, _ = term.GetSize(int(f.Fd())) // 0 for what is no terminal
	}
	return p
}

func (p *liveProgress) answered(_ int, r *bench.Reply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
	if r.Err != nil {
		p.failed++
		return
	}
	p.ttft.Add(time.Duration(float64(r.First-r.Sent) * p.speed))
}

// start reports until the returned function is called.
func (p *liveProgress) start() (stop func()) {
	p.begun = time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	every := livePlainTick
	if p.terminal {
		every = demoTick
	}
	go func() {
		defer close(ended)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				p.show(p.line(time.Since(p.begun)))
			}
		}
	}()
	return func() {
		cancel()
		<-ended
		if p.terminal {
			fmt.Fprint(p.out, "\r\x1b[K")
		}
	}
}

// line tells the state after some time. What is left is guessed from the pace
// so far.
func (p *liveProgress) line(after time.Duration) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	part, left, of := after.Seconds()/max(p.length.Seconds(), 1e-9), p.length-after, ""
	if p.total > 0 {
		part = float64(p.done) / float64(p.total)
		of = fmt.Sprintf(" of %d", p.total)
		left = time.Duration(float64(after) * (1/max(part, 1e-9) - 1))
	}
	remaining := "?"
	if p.done > 0 {
		remaining = max(left, 0).Round(time.Second).String()
	}
	const width = 20
	filled := min(int(width*part), width)
	return fmt.Sprintf("[%s%s] %d%s   %d failed   TTFT P50 %.0f ms   %s left", strings.Repeat("=", filled), strings.Repeat(" ", width-filled),
		p.done, of, p.failed, float64(p.ttft.Quantile(0.5).Microseconds())/1000, remaining)
}

func (p *liveProgress) show(line string) {
	if !p.terminal {
		fmt.Fprintln(p.out, line)
		return
	}
	if p.width > 0 && len(line) >= p.width {
		line = line[:p.width-1] // a line that wraps cannot be wiped
	}
	fmt.Fprintf(p.out, "\r\x1b[K%s", line)
}

// printLive writes the report for people.
func printLive(w io.Writer, r *bench.LiveReport, page string) {
	fmt.Fprintf(w, "%s, %s; model %s", r.Setup.Workload, r.Setup.Arrivals, r.Setup.Model)
	if r.Setup.Speed != 1 {
		fmt.Fprintf(w, "; times in simulated milliseconds, %g to a real one", r.Setup.Speed)
	}
	fmt.Fprintln(w)
	for _, cell := range r.Cells {
		printLiveLatencies(w, cell.Targets)
		printLiveRates(w, cell.Targets)
		printLiveInstances(w, cell.Targets)
	}
	fmt.Fprintln(w, "\nDefinitions (other tools' differ):")
	for _, name := range []string{"ttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "hit_rate", "ceiling", "goodput", "imbalance"} {
		fmt.Fprintf(w, "  %-9s = %s\n", strings.TrimSuffix(name, "_ms"), r.Formulas[name])
	}
	for _, text := range r.Warnings {
		fmt.Fprintln(w, "WARNING:", text)
	}
	if page != "" {
		fmt.Fprintf(w, "Charts: %s\n", page)
	}
}

func printLiveLatencies(w io.Writer, targets []*bench.LiveResult) {
	fmt.Fprintf(w, "\n%-20s %-5s %10s %10s %10s %10s\n", "ms", "", "P50", "P90", "P99", "mean")
	for _, t := range targets {
		name := t.Name
		for _, row := range []struct {
			what string
			s    bench.Summary
		}{{"TTFT", t.TTFT}, {"ITL", t.ITL}, {"TPOT", t.TPOT}, {"E2E", t.E2E}} {
			fmt.Fprintf(w, "%-20s %-5s %10.1f %10.1f %10.1f %10.1f\n", name, row.what, row.s.P50, row.s.P90, row.s.P99, row.s.Mean)
			name = ""
		}
	}
}

func printLiveRates(w io.Writer, targets []*bench.LiveResult) {
	fmt.Fprintf(w, "\n%-20s %8s %9s %8s %9s %8s   %8s %9s %9s   %s\n",
		"", "hit %", "predicted", "ceiling", "success %", "requests", "req/s", "in tok/s", "out tok/s", "goodput/s (share)")
	for _, t := range targets {
		fmt.Fprintf(w, "%-20s %8s %9s %8.1f %9.4g %8d   %8.2f %9.0f %9.0f   ", t.Name,
			percentOrUnknown(t.HitRate.Actual), percentOrUnknown(t.HitRate.Predicted), 100*t.HitRate.Ceiling, 100*t.SuccessRate, t.Requests,
			t.Rates.Requests, t.Rates.Input, t.Rates.Output)
		if t.Goodput != nil {
			fmt.Fprintf(w, "%.2f (%.1f %%)", t.Goodput.Rate, 100*t.Goodput.Share)
		} else {
			fmt.Fprint(w, "no objective")
		}
		fmt.Fprintln(w)
	}
	for _, t := range targets {
		for _, class := range sortedNames(t.Errors) {
			fmt.Fprintf(w, "%s: %d x %s\n", t.Name, t.Errors[class], class)
		}
		if t.Example != "" {
			fmt.Fprintf(w, "%s: such as: %s\n", t.Name, t.Example)
		}
		if t.Interrupted > 0 {
			fmt.Fprintf(w, "%s: %d requests were broken off and count for nothing\n", t.Name, t.Interrupted)
		}
	}
}

func percentOrUnknown(x *float64) string {
	if x == nil {
		return "unknown"
	}
	return fmt.Sprintf("%.1f", 100**x)
}

// printLiveInstances writes the spread over instances, where headers tell.
func printLiveInstances(w io.Writer, targets []*bench.LiveResult) {
	for _, t := range targets {
		if len(t.Instances) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%-20s %8s %12s %12s %7s   imbalance %.2f\n", t.Name, "requests", "prompt tok", "prefilled", "hit %", *t.Imbalance)
		for _, name := range sortedNames(t.Instances) {
			in := t.Instances[name]
			fmt.Fprintf(w, "  %-18s %8d %12d %12d %7.1f\n", name, in.Requests, in.PromptTokens, in.PromptTokens-in.CachedTokens,
				100*float64(in.CachedTokens)/float64(max(in.PromptTokens, 1)))
		}
	}
}

func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
