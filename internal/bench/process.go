package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// errNoProc says that the system has no /proc to measure a process by.
var errNoProc = errors.New("this system tells nothing about other processes (no /proc)")

// clockTicks is Linux's USER_HZ, the unit of times in /proc, on every
// architecture that Go runs on.
const clockTicks = 100

// processCPU is the processor time that a process and its threads have used.
func processCPU(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, errNoProc
	}
	// The second field is the name in parentheses and may hold anything, so
	// fields are counted after the last one: utime and stime are 14 and 15.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("read /proc/%d/stat: %d fields", pid, len(fields))
	}
	ticks := 0
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(string(f))
		if err != nil {
			return 0, fmt.Errorf("read /proc/%d/stat: %w", pid, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / clockTicks), nil
}

// processRSS is the memory of a process that is in RAM, in bytes.
func processRSS(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, errNoProc
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("read /proc/%d/status: no VmRSS", pid)
}

// rssWatch samples a process's memory until median is called.
type rssWatch struct {
	stop, stopped chan struct{}
	mib           []float64
}

const rssEvery = 50 * time.Millisecond

func watchRSS(pid int) *rssWatch {
	w := &rssWatch{stop: make(chan struct{}), stopped: make(chan struct{})}
	go func() {
		defer close(w.stopped)
		tick := time.NewTicker(rssEvery)
		defer tick.Stop()
		for {
			if rss, err := processRSS(pid); err == nil {
				w.mib = append(w.mib, float64(rss)/(1<<20))
			}
			select {
			case <-w.stop:
				return
			case <-tick.C:
			}
		}
	}()
	return w
}

// median ends the watch. It is 0 on a system that does not tell.
func (w *rssWatch) median() float64 {
	close(w.stop)
	<-w.stopped
	if len(w.mib) == 0 {
		return 0
	}
	slices.Sort(w.mib)
	return rounded(w.mib[len(w.mib)/2], 1)
}

// child is a server in a process of its own.
type child struct {
	cmd       *exec.Cmd
	url       string
	log       tail
	directory string        // removed when it stops; may be empty
	done      chan struct{} // closed when the process has ended
	err       error         // of its end
}

// startTimeout is how long a child may take until it answers.
const startTimeout = 20 * time.Second

// startChild runs a command that is to listen on addr, and waits until the
// given path answers with 200.
func startChild(ctx context.Context, cmd *exec.Cmd, addr, ready string) (*child, error) {
	c := &child{cmd: cmd, url: "http://" + addr, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &c.log, &c.log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	go func() {
		c.err = cmd.Wait()
		close(c.done)
	}()
	if err := c.await(ctx, ready); err != nil {
		c.stop()
		return nil, fmt.Errorf("start %s: %w; it said:\n%s", cmd.Path, err, c.log.String())
	}
	return c, nil
}

func (c *child) await(ctx context.Context, ready string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+ready, http.NoBody)
		if err != nil {
			return err
		}
		if response, err := http.DefaultClient.Do(request); err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-c.done:
			return fmt.Errorf("it ended: %w", c.err)
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w", ready, ctx.Err())
		}
	}
}

// stopGrace is how long a child may take to end by itself.
const stopGrace = 5 * time.Second

func (c *child) stop() {
	if c.directory != "" {
		defer func() { _ = os.RemoveAll(c.directory) }() // a leftover in the temporary directory
	}
	c.cmd.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it has ended already then
	select {
	case <-c.done:
	case <-time.After(stopGrace):
		c.cmd.Process.Kill() //nolint:errcheck // it has ended already then
		<-c.done
	}
}

// tail keeps the end of what a process prints.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 4096

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if n := len(t.text) - tailBytes; n > 0 {
		t.text = append(t.text[:0], t.text[n:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}

// freeAddress finds a loopback port that nobody uses now.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}
