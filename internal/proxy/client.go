package proxy

import (
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/warmroute/warmroute/internal/dialect"
)

// client is the way back to the client of one request. Every write has a
// deadline, every event a flush, and nothing else writes to the ResponseWriter.
type client struct {
	w       http.ResponseWriter
	ctl     *http.ResponseController
	timeout time.Duration // of one write; 0 means none

	mu      sync.Mutex // guards below, and w, against the heartbeat
	until   time.Time  // the deadline in force; zero: none
	status  int        // what the client saw; 0: nothing yet
	stream  bool       // the status was sent by a heartbeat: only events may follow
	sent    int64
	tail    byte  // the last one sent
	err     error // of the first write that failed
	pulse   *time.Timer
	pause   time.Duration
	stopped bool // no more heartbeats
}

func (c *client) reset(w http.ResponseWriter, timeout time.Duration) {
	c.w, c.ctl, c.timeout = w, http.NewResponseController(w), timeout
}

// slack is the share of the timeout by which a deadline may come too early.
// Moving one costs about a tenth of writing an event, so one serves for all the
// writes of an eighth of its time.
const slack = 8

// deadline bounds the next write.
func (c *client) deadline() {
	if c.timeout <= 0 {
		return
	}
	now := time.Now()
	if c.until.Sub(now) > c.timeout-c.timeout/slack {
		return
	}
	c.until = now.Add(c.timeout)
	// A writer without deadlines is one of a test or has its own.
	_ = c.ctl.SetWriteDeadline(c.until)
}

// begin sends status and header, once. After a heartbeat there is no header left
// to send.
func (c *client) begin(status int, fill func(http.Header)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopPulseLocked()
	if c.status != 0 {
		return
	}
	fill(c.w.Header())
	c.status = status
	c.deadline()
	c.w.WriteHeader(status)
}

// write sends p. An error means that the client is gone or does not read.
func (c *client) write(p []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writeLocked(p)
}

func (c *client) writeLocked(p []byte) error {
	if c.err != nil {
		return c.err
	}
	c.deadline()
	n, err := c.w.Write(p)
	c.sent += int64(n)
	if n > 0 {
		c.tail = p[n-1]
	}
	c.err = err
	return err
}

// event sends p and flushes it, so that it does not wait for the next one.
func (c *client) event(p []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.eventLocked(p)
}

func (c *client) eventLocked(p []byte) error {
	if err := c.writeLocked(p); err != nil {
		return err
	}
	if err := c.ctl.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		c.err = err
	}
	return c.err
}

// insert sends an event or comment of ours between two of the instance's.
func (c *client) insert(p []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.insertLocked(p)
}

func (c *client) insertLocked(p []byte) error {
	if c.tail == '\r' {
		// The LF that belongs to it has not come, or not yet.
		p = append([]byte{'\n'}, p...)
	}
	return c.eventLocked(p)
}

// seen is the status that the client has seen; 0 when it has seen none.
func (c *client) seen() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

// failure is the error of the first write that failed.
func (c *client) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// trailer sets a header that comes behind the body, if it was announced.
func (c *client) trailer(name, value string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.w.Header()[name] = []string{value}
}

// fail tells the client what went wrong: an answer with e's status, or, when a
// status has been sent for a stream, an error event. It reports false when
// neither is possible any more, so that only cutting the connection can tell.
func (c *client) fail(kind dialect.Kind, e *dialect.Error, streaming bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopPulseLocked()
	if c.status == 0 {
		c.status = e.Status
		c.deadline()
		dialect.WriteError(&counted{c}, e)
		return true
	}
	if !streaming && !c.stream {
		return false
	}
	_ = c.insertLocked(dialect.EventError(kind, e)) // a client that is gone needs no answer
	return true
}

// counted lets an error answer pass the client's counters.
type counted struct{ c *client }

func (w *counted) Header() http.Header         { return w.c.w.Header() }
func (w *counted) WriteHeader(status int)      { w.c.w.WriteHeader(status) }
func (w *counted) Write(p []byte) (int, error) { return len(p), w.c.writeLocked(p) }

// heartbeat is the comment that keeps idle connections open. A comment is no
// event: no client sees it, and it is no content.
const heartbeat = ": waiting\n\n"

// startPulse sends a heartbeat after each pause until an answer begins.
func (c *client) startPulse(pause time.Duration, fill func(http.Header)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pause = pause
	c.pulse = time.AfterFunc(pause, func() { c.beat(fill) })
}

func (c *client) beat(fill func(http.Header)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return
	}
	if c.status == 0 {
		fill(c.w.Header())
		c.status, c.stream = http.StatusOK, true
		c.deadline()
		c.w.WriteHeader(c.status)
	}
	if c.eventLocked([]byte(heartbeat)) == nil {
		c.pulse.Reset(c.pause)
	}
}

// hush ends the heartbeats and reports whether one was sent, so that only events
// may follow.
func (c *client) hush() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopPulseLocked()
	return c.stream
}

func (c *client) stopPulseLocked() {
	c.stopped = true
	if c.pulse != nil {
		c.pulse.Stop()
	}
}

// end stops the heartbeat and takes the deadline off the connection, which may
// serve other requests next.
func (c *client) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopPulseLocked()
	if !c.until.IsZero() {
		_ = c.ctl.SetWriteDeadline(time.Time{})
	}
}
