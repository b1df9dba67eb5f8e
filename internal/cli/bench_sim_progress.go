package cli

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// simProgress tells how far a simulation is: one line that changes, on a
// terminal only, for the numbers are the same whether anybody watches or not.
type simProgress struct {
	out     io.Writer
	shown   bool
	started time.Time
}

func newSimProgress(out io.Writer) *simProgress {
	if f, ok := out.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		out = nil
	}
	return &simProgress{out: out, started: time.Now()}
}

// show tells of a run that is through.
func (p *simProgress) show(done, all int, what string) {
	if p.out == nil {
		return
	}
	p.shown = true
	passed := time.Since(p.started)
	left := time.Duration(float64(passed) / float64(done) * float64(all-done))
	fmt.Fprintf(p.out, "\r\x1b[K%d of %d runs, about %s left: %.40s", done, all, left.Round(time.Second), what)
}

// clear wipes the line.
func (p *simProgress) clear() {
	if p.shown {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.shown = false
	}
}
