package proxy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/route"
)

func TestConfig(t *testing.T) {
	if faults := Default().Validate(); len(faults) != 0 {
		t.Errorf("the defaults have faults: %v", faults)
	}
	f := func(edit func(*Config), want string) {
		t.Helper()
		c := Default()
		edit(&c)
		faults := c.Validate()
		if len(faults) != 1 || !strings.HasPrefix(faults[0].Error(), want+": ") {
			t.Errorf("got %v; want one about %s", faults, want)
		}
		if _, err := New(c, Deps{}); err == nil {
			t.Errorf("New takes a bad %s", want)
		}
	}
	f(func(c *Config) { c.BodyBytes = 0 }, "body_bytes")
	f(func(c *Config) { c.AnswerBytes = 1 << 31 }, "answer_bytes")
	f(func(c *Config) { c.EventBytes = -1 }, "event_bytes")
	f(func(c *Config) { c.HeldEvents = 0 }, "held_events")
	f(func(c *Config) { c.HeldBytes = 0 }, "held_bytes")
	f(func(c *Config) { c.LearnBytes = -1 }, "learn_bytes")
	f(func(c *Config) { c.Retries = 11 }, "retries")
	f(func(c *Config) { c.RetryShare = 1.5 }, "retry_share")
	f(func(c *Config) { c.RetryFloor = -1 }, "retry_floor")
	f(func(c *Config) { c.TTFTTimeout = 0 }, "ttft_timeout")
	f(func(c *Config) { c.TTFTPer1K = -1 }, "ttft_per_1k")
	f(func(c *Config) { c.Deadline = -1 }, "deadline")
	f(func(c *Config) { c.ReadTimeout = -1 }, "read_timeout")
	f(func(c *Config) { c.WriteTimeout = -1 }, "write_timeout")
	f(func(c *Config) { c.Heartbeat = time.Millisecond }, "heartbeat")
	f(func(c *Config) { c.QueueLength = -1 }, "queue_length")
	f(func(c *Config) { c.QueueTime = -1 }, "queue_time")
	c := Default()
	c.Retries, c.BodyBytes, c.Deadline = -1, -1, -1
	if faults := c.Validate(); len(faults) != 3 {
		t.Errorf("got %v; want all three faults", faults)
	}
}

func TestBudget(t *testing.T) {
	now := time.Unix(0, 0)
	b := newBudget(0.2, 0)
	spend := func() (n int) {
		for b.spend(now) {
			n++
		}
		return n
	}
	if n := spend(); n != retryBurst {
		t.Errorf("%d retries at the start; want %d", n, retryBurst)
	}
	for range 25 {
		b.earn()
	}
	if n := spend(); n != 5 {
		t.Errorf("%d retries for 25 requests; want 5", n)
	}
	for range 1000 {
		b.earn()
	}
	if n := spend(); n != retryBurst {
		t.Errorf("%d retries saved up; want at most %d", n, retryBurst)
	}
	b.floor = 2
	now = now.Add(3 * time.Second)
	if n := spend(); n != 6 {
		t.Errorf("%d retries after 3 s at 2 a second; want 6", n)
	}
}

func TestSessionKey(t *testing.T) {
	f := func(want, body string, headers ...string) {
		t.Helper()
		h := http.Header{}
		for i := 0; i+1 < len(headers); i += 2 {
			h.Set(headers[i], headers[i+1])
		}
		wanted := uint64(0)
		if want != "" {
			wanted = route.Hash(want)
		}
		if got := sessionKey(h, body); got != wanted {
			t.Errorf("headers %v, body %q: got %x; want that of %q", headers, body, got, want)
		}
	}
	f("", "")
	f("b", "b")
	for _, name := range []string{
		"X-SMG-Routing-Key", "X-Session-Affinity", "X-Dynamo-Session-ID", "X-Session-ID", "x-session-token",
		"X-Amzn-SageMaker-Session-Id", "x-grok-conv-id", "X-Correlation-ID",
	} {
		f("h", "b", name, "h")
	}
	f("routing", "", "X-Correlation-ID", "c", "X-SMG-Routing-Key", "routing")
	f("b", "b", "X-Session-ID", "")
	f("", "", "X-Request-Id", "r")
}

func TestThreads(t *testing.T) {
	var th threads
	th.put("r1", "e1")
	th.put("", "e9")
	if got := th.get("r1"); got != route.Hash("e1") {
		t.Errorf("got %x", got)
	}
	if th.get("r2") != 0 || th.get("") != 0 {
		t.Error("an unknown response has an instance")
	}
	for i := range maxThreads {
		th.put(fmt.Sprint("x", i), "e2")
	}
	if th.get("r1") == 0 { // asked for: young again
		t.Error("forgotten too soon")
	}
	for i := range maxThreads - 10 {
		th.put(fmt.Sprint("y", i), "e2")
	}
	if th.get("r1") == 0 {
		t.Error("forgotten though it was asked for")
	}
	for i := range 3 * maxThreads {
		th.put(fmt.Sprint("z", i), "e2")
	}
	if th.get("r1") != 0 {
		t.Error("never forgotten")
	}
	if n := len(th.young) + len(th.old); n > 2*maxThreads {
		t.Errorf("%d kept; want at most %d", n, 2*maxThreads)
	}
}

func TestPayloadOutlivesItsReaders(t *testing.T) {
	p := newPayload()
	p.buf.WriteString("hello")
	r := p.reader(p.bytes())
	p.release()
	if n := p.refs.Load(); n != 1 {
		t.Fatalf("%d references; want the reader's", n)
	}
	b, err := io.ReadAll(r)
	if string(b) != "hello" || err != nil {
		t.Errorf("read %q, %v", b, err)
	}
	for range 2 {
		if err := r.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if n := p.refs.Load(); n != 0 {
		t.Errorf("%d references after Close; want 0", n)
	}
	if _, err := r.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("a closed reader reads: %v", err)
	}
}

func TestSaneID(t *testing.T) {
	f := func(id string, want bool) {
		t.Helper()
		if got := saneID(id); got != want {
			t.Errorf("saneID(%q) = %t; want %t", id, got, want)
		}
	}
	f("", false)
	f("550e8400-e29b-41d4-a716-446655440000", true)
	f("Root=1-67891233-abcdef012345678912345678", true)
	f("a b", false)
	f("a\nb", false)
	f("a\"b", false)
	f("é", false)
	f(strings.Repeat("x", 128), true)
	f(strings.Repeat("x", 129), false)
}

func TestHeld(t *testing.T) {
	h := held{maxEvents: 2, maxBytes: 10}
	for i, want := range []bool{true, true, false} {
		if got := h.add([]byte("abc")); got != want {
			t.Errorf("event %d kept: %t; want %t", i, got, want)
		}
	}
	if got := string(h.take()); got != "abcabc" || !h.over {
		t.Errorf("took %q", got)
	}
	h = held{maxEvents: 9, maxBytes: 10}
	if h.add(make([]byte, 11)) {
		t.Error("kept more than its bytes")
	}
}
