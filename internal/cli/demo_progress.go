package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/warmroute/warmroute/internal/bench"
)

// demoProgress tells how far the demo is: one line that changes when the output
// is a terminal, else a plain line now and then.
type demoProgress struct {
	out      io.Writer
	terminal bool
	width    int // of the terminal in columns; 0 when it does not tell
	calls    int
	policies int
	speed    float64
	length   time.Duration // of one policy, about

	mu             sync.Mutex // guards below
	policy         string
	number         int
	started        time.Time
	done, failed   int
	prompt, cached int
	ttft           bench.Sample
}

// Pauses between two reports of progress.
const (
	demoTick      = 200 * time.Millisecond
	demoPlainTick = 5 * time.Second
)

func newDemoProgress(out io.Writer, d *demo) *demoProgress {
	p := &demoProgress{out: out, calls: len(d.calls), policies: len(d.Policies), speed: d.Speed}
	if f, ok := out.(*os.File); ok {
		p.terminal = term.IsTerminal(int(f.Fd()))
		p.width, _, _ = term.GetSize(int(f.Fd())) // 0 for what is no terminal
	}
	if n := len(d.calls); n > 0 {
		p.length = d.calls[n-1].At
	}
	fmt.Fprintf(out, "%d simulated Llama-3.1-70B engines behind the real gateway; %d requests with each of %d policies, about %s.\n",
		d.Instances, p.calls, p.policies, (time.Duration(p.policies) * (p.length + time.Second)).Round(time.Second))
	fmt.Fprintf(out, "Meanwhile the gateway answers you too:\n\n    %s\n\n", curl(reachable(d.address)))
	return p
}

// curl is a command that the reader may paste.
func curl(address string) string {
	return fmt.Sprintf(`curl http://%s/v1/chat/completions -H 'Content-Type: application/json' -d '{"model":"%s","messages":[{"role":"user","content":"hello"}]}'`,
		address, demoModel)
}

func (p *demoProgress) begin(policy string, number int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.policy, p.number, p.started = policy, number, time.Now()
	p.done, p.failed, p.prompt, p.cached, p.ttft = 0, 0, 0, 0, bench.Sample{}
}

// answered counts an answer.
func (p *demoProgress) answered(a *bench.Answer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
	if a.Err != nil {
		p.failed++
		return
	}
	p.prompt += a.Usage.Prompt
	p.cached += a.Usage.Cached
	p.ttft.Add(time.Duration(float64(a.First-a.Sent) * p.speed))
}

// run reports until ctx ends.
func (p *demoProgress) run(ctx context.Context) {
	every := demoPlainTick
	if p.terminal {
		every = demoTick
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p.show(p.line())
		}
	}
}

func (p *demoProgress) line() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	hit := 0.0
	if p.prompt > 0 {
		hit = 100 * float64(p.cached) / float64(p.prompt)
	}
	left := max(p.length-time.Since(p.started), 0) + time.Duration(p.policies-1-p.number)*(p.length+time.Second)
	return fmt.Sprintf("[%d/%d] %-15s %4d of %d   hit rate %3.0f %%   TTFT P50 %4.0f ms   %s left",
		p.number+1, p.policies, p.policy, p.done, p.calls, hit, float64(p.ttft.Quantile(0.5).Milliseconds()), left.Round(time.Second))
}

// end reports a policy's result.
func (p *demoProgress) end(r bench.PolicyResult) {
	p.clear()
	fmt.Fprintf(p.out, "[%d/%d] %-15s hit rate %3.0f %%   TTFT P50 %4.0f ms   success %.4g %%\n",
		p.number+1, p.policies, r.Name, 100*r.HitRate.Actual, r.TTFT.P50, 100*r.SuccessRate)
}

func (p *demoProgress) show(line string) {
	if p.terminal {
		if p.width > 0 && len(line) >= p.width {
			line = line[:p.width-1] // a line that wraps cannot be wiped
		}
		fmt.Fprintf(p.out, "\r\x1b[K%s", line)
		return
	}
	fmt.Fprintln(p.out, line)
}

// clear wipes the line that changes.
func (p *demoProgress) clear() {
	if p.terminal {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
