package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/warmroute/warmroute/internal/dialect"
	"github.com/warmroute/warmroute/internal/prompt"
	"github.com/warmroute/warmroute/prefix"
)

// Call is one chat completion to send. Streams that ask for usage tell the
// most.
type Call struct {
	At   time.Duration // after the start of the load
	Body []byte
}

// Answer is what came back.
type Answer struct {
	Sent     time.Duration // since the start of the load: just before the request went out
	First    time.Duration // first event with content
	Done     time.Duration // end of the answer
	Instance string        // X-Warmroute-Instance; empty when the server names none
	Match    int           // X-Warmroute-Match: prompt tokens that the gateway believed to be cached
	Usage    dialect.Usage
	Err      error // nil when the answer came in full
}

// Load sends calls over HTTP at their times, whether or not earlier ones have
// been answered.
type Load struct {
	URL  string // of the chat completions
	HTTP *http.Client
	// Answered, when set, hears of each answer in turn, in order of their ends.
	Answered func(*Answer)
}

// maxEvent bounds one event of a stream that Load reads, in bytes.
const maxEvent = 16 << 20

// Run sends all calls, waits for all answers, and returns them in the calls'
// order. When ctx ends it sends no more, and breaks off what is open: those
// answers, and those of calls that were never sent, carry the cause.
func (l *Load) Run(ctx context.Context, calls []Call) []Answer {
	answers := make([]Answer, len(calls))
	start := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var wg sync.WaitGroup
	var mu sync.Mutex // serialises Answered
	for i := range calls {
		timer.Reset(calls[i].At - time.Since(start))
		select {
		case <-timer.C:
		case <-ctx.Done():
			answers[i].Err = context.Cause(ctx)
			continue
		}
		wg.Go(func() {
			a := &answers[i]
			l.send(ctx, &calls[i], a, start)
			if l.Answered != nil {
				mu.Lock()
				defer mu.Unlock()
				l.Answered(a)
			}
		})
	}
	wg.Wait()
	return answers
}

func (l *Load) send(ctx context.Context, c *Call, a *Answer, start time.Time) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, l.URL, bytes.NewReader(c.Body))
	if err != nil {
		a.Err = fmt.Errorf("make request: %w", err)
		return
	}
	request.Header.Set("Content-Type", "application/json")
	a.Sent = time.Since(start)
	response, err := l.HTTP.Do(request)
	if err != nil {
		a.Err = err
		return
	}
	defer response.Body.Close()
	a.Instance = response.Header.Get("X-Warmroute-Instance")
	a.Match, _ = strconv.Atoi(response.Header.Get("X-Warmroute-Match")) // absent from other servers
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 512)) // only to be shown
		a.Err = fmt.Errorf("status %d: %s", response.StatusCode, bytes.TrimSpace(text))
		return
	}
	a.Err = l.read(response.Body, a, start)
	a.Done = time.Since(start)
}

var errIncomplete = errors.New("the stream ended before its end mark")

func (l *Load) read(body io.Reader, a *Answer, start time.Time) error {
	events := dialect.NewReader(body, maxEvent)
	stream := dialect.NewStream(dialect.Chat, 0)
	for {
		event, err := events.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read stream: %w", err)
		}
		if class := stream.Observe(event); class == dialect.Content && a.First == 0 {
			a.First = time.Since(start)
		}
	}
	a.Usage = stream.Usage()
	if fault := stream.Fault(); fault != nil {
		return fault
	}
	if !stream.Complete() || a.First == 0 {
		return errIncomplete
	}
	return nil
}

// ceilingBlockBytes is the block size of [Ceilings]: about one block of an
// engine.
const ceilingBlockBytes = 64

// Ceilings tells for each call which share of its prompt, from 0 to 1, one
// cache without limits would hold when it has seen the calls before. It counts
// bytes of the canonical prompt, since tokens are known to the engines only.
func Ceilings(calls []Call) ([]float64, error) {
	var seen ceiling
	var h prefix.Hasher
	var blocks []uint64
	shares := make([]float64, len(calls))
	for i := range calls {
		call, err := dialect.Decode(dialect.Chat, calls[i].Body)
		if err != nil {
			return nil, fmt.Errorf("read call %d: %w", i, err)
		}
		h.Reset(ceilingBlockBytes)
		prompt.Write(&h, &call.Prompt)
		blocks = blocks[:0]
		for _, b := range h.Chain() {
			blocks = append(blocks, uint64(b))
		}
		known := seen.lookup(blocks)
		seen.add(blocks, known)
		shares[i] = ratio(float64(known*ceilingBlockBytes), float64(h.Bytes()))
	}
	return shares, nil
}
