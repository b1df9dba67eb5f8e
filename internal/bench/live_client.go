package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/warmroute/warmroute/internal/dialect"
)

// Target is one endpoint that is measured.
type Target struct {
	Name string
	URL  string // base, with or without /v1
	Key  string // sent as a bearer token when not empty
}

// chatURL is where the target takes chat completions.
func (t Target) chatURL() string {
	base := strings.TrimRight(t.URL, "/")
	if !strings.HasSuffix(base, "/v1") {
		base += "/v1"
	}
	return base + "/chat/completions"
}

// Failure classes of [Reply.Class] beside status_NNN, which is an answer of that
// status.
const (
	FailedConnect     = "connect"      // no connection, or it broke before an answer
	FailedTimeout     = "timeout"      // the request took longer than it may
	FailedStream      = "stream_error" // an error in place of content
	FailedTruncated   = "truncated"    // the stream ended before its end mark
	FailedEmpty       = "no_content"   // a complete stream without content
	FailedCompose     = "compose"      // the request could not be written
	FailedInterrupted = "interrupted"  // broken off by whoever runs the benchmark
)

// Reply is what came back for one request.
type Reply struct {
	Answer

	Due     time.Duration   // when it should have been sent, since the run's start
	Gaps    []time.Duration // between events with content
	Class   string          // of failure; empty when the answer came in full
	Planned int             // output tokens that were asked for
	Session uint64
	matched bool    // Match is known
	ceiling float64 // share of the prompt that an infinite cache would hold
	text    string  // the answer's words; kept for conversations only
}

// Header names of the instance that answered, in the order in which they are
// believed.
var instanceHeaders = []string{"X-Warmroute-Instance", "X-Sim-Replica"}

// maxCollected bounds the answer text that a conversation feeds back, in bytes.
const maxCollected = 1 << 20

// errTimeout is the cause of requests that took too long.
var errTimeout = errors.New("the request took longer than --timeout")

// sender sends requests of one target.
type sender struct {
	target  Target
	http    *http.Client
	start   time.Time
	timeout time.Duration
}

// send sends one request and reads all of its answer.
func (s *sender) send(ctx context.Context, body []byte, r *Reply) {
	if s.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, s.timeout, errTimeout)
		defer cancel()
	}
	err := s.exchange(ctx, body, r)
	r.Done = time.Since(s.start)
	if err == nil {
		return
	}
	r.Err = err
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errTimeout):
		r.Class, r.Err = FailedTimeout, cause
	case cause != nil:
		r.Class, r.Err = FailedInterrupted, cause
	case r.Class == "":
		r.Class = classify(err)
	}
}

func (s *sender) exchange(ctx context.Context, body []byte, r *Reply) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.target.chatURL(), bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	if s.target.Key != "" {
		request.Header.Set("Authorization", "Bearer "+s.target.Key)
	}
	if r.Session != 0 {
		request.Header.Set("X-Session-Id", strconv.FormatUint(r.Session, 16))
	}
	r.Sent = time.Since(s.start)
	response, err := s.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	for _, name := range instanceHeaders {
		if r.Instance = response.Header.Get(name); r.Instance != "" {
			break
		}
	}
	r.Match, r.matched = match(response.Header)
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 512)) // only to be shown
		r.Class = "status_" + strconv.Itoa(response.StatusCode)
		return fmt.Errorf("status %d: %s", response.StatusCode, bytes.TrimSpace(text))
	}
	return s.read(response.Body, r)
}

// read follows a stream to its end.
func (s *sender) read(body io.Reader, r *Reply) error {
	limit := 0
	if r.Session != 0 {
		limit = maxCollected
	}
	events := dialect.NewReader(body, maxEvent)
	stream := dialect.NewStream(dialect.Chat, limit)
	last := time.Duration(0)
	for {
		event, err := events.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read stream: %w", err)
		}
		if stream.Observe(event) != dialect.Content {
			continue
		}
		now := time.Since(s.start)
		if last == 0 {
			r.First = now
		} else {
			r.Gaps = append(r.Gaps, now-last)
		}
		last = now
	}
	r.Usage = stream.Usage()
	if !r.Usage.HasUsage {
		r.Usage.Output = stream.Tokens() // about one token an event
	}
	if message, ok := stream.Answer(); ok {
		r.text = message.Text()
	}
	switch fault := stream.Fault(); {
	case fault != nil:
		r.Class = FailedStream
		return fault
	case !stream.Complete():
		r.Class = FailedTruncated
		return errIncomplete
	case r.First == 0:
		r.Class = FailedEmpty
		return errors.New("the stream has no content")
	}
	return nil
}

// match is the prompt tokens that a Warmroute believed to be cached.
func match(h http.Header) (int, bool) {
	n, err := strconv.Atoi(h.Get("X-Warmroute-Match"))
	return n, err == nil
}

// classify names a failure that came without an answer.
func classify(err error) string {
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return FailedTimeout
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return FailedTruncated
	}
	return FailedConnect
}
