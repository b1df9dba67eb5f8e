package proxy

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/index"
	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/internal/upstream"
)

// direct is a gateway without a network: each round trip is a call of serve.
func direct(t testing.TB, cfg Config, serve roundTripper) (*Gateway, *books) {
	t.Helper()
	fc := fleet.Default()
	fc.Health.Interval, fc.Scrape.Interval = 0, 0
	fc.Breaker.Consecutive, fc.Breaker.FailureRatio = 0, 0
	x := index.New(index.Config{})
	f, err := fleet.New(fc, fleet.Deps{
		Transport: func(fleet.InstanceConfig) (http.RoundTripper, error) { return serve, nil },
		Watch: func(e fleet.Event) {
			if e.Kind == fleet.Joined {
				x.Join(e.ID, e.Name, 0)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	pool := fleet.PoolConfig{Model: "m"}
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		pool.Instances = append(pool.Instances, fleet.InstanceConfig{Name: name, URL: "http://" + name + ":1"})
	}
	if err := f.Apply([]fleet.PoolConfig{pool}); err != nil {
		t.Fatal(err)
	}
	policy, err := route.New(route.Cost, route.Default())
	if err != nil {
		t.Fatal(err)
	}
	b := new(books)
	g, err := New(cfg, Deps{Fleet: f, Index: x, Recorder: b, Rule: func(*fleet.Pool) Rule { return Rule{Policy: policy} }})
	if err != nil {
		t.Fatal(err)
	}
	return g, b
}

// answering is a round trip that answers with a body, read in pieces of step
// bytes, and then err.
func answering(contentType, body string, step int, err error) roundTripper {
	return func(req *http.Request) (*http.Response, error) {
		_, _ = io.Copy(io.Discard, req.Body)
		req.Body.Close()
		return &http.Response{
			StatusCode: 200, ContentLength: -1, Request: req,
			Header: http.Header{"Content-Type": {contentType}},
			Body:   io.NopCloser(&pieces{rest: body, step: step, err: err, ctx: req.Context()}),
		}, nil
	}
}

type pieces struct {
	rest string
	step int
	err  error
	ctx  context.Context
}

func (p *pieces) Read(b []byte) (int, error) {
	if err := p.ctx.Err(); err != nil {
		return 0, err
	}
	if p.rest == "" {
		return 0, p.err
	}
	n := copy(b[:min(len(b), p.step)], p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

var cutStream = "\xEF\xBB\xBF: ping\n\n" + roleChunk + "event: x\r\ndata: {\"choices\":\r\ndata: [{\"index\":0,\"delta\":{\"content\":\"é\"}}]}\r\n\r\n" +
	helloChunk + stopChunk + usageChunk + doneChunk

// checkCut checks what a client saw of cutStream that was cut after n bytes.
func checkCut(t testing.TB, n, status int, got string) {
	t.Helper()
	asIs := strings.ReplaceAll(cutStream, usageChunk, "") // what the client did not ask for
	contentEnd := strings.Index(cutStream, helloChunk)    // the first content is complete here
	stopEnd := strings.Index(cutStream, stopChunk) + len(stopChunk)
	switch {
	case status == 502:
		// The last line may lack its ends.
		if n >= contentEnd {
			t.Errorf("cut at %d: the content was there, and yet the answer was %d %q", n, status, got)
		}
		if strings.Contains(got, "é") || !strings.Contains(got, `"upstream_error"`) {
			t.Errorf("cut at %d: got %d %q", n, status, got)
		}
	case status != 200:
		t.Errorf("cut at %d: got %d %q", n, status, got)
	case strings.HasSuffix(got, string(incompleteEvent)):
		text := strings.TrimSuffix(got, string(incompleteEvent))
		if n >= stopEnd {
			t.Errorf("cut at %d: a complete answer was called incomplete: %q", n, got)
		}
		if !strings.HasPrefix(asIs, strings.TrimRight(text, "\r\n")) || text != "" && !strings.HasSuffix(text, "\n\n") && !strings.HasSuffix(text, "\n\r\n") {
			t.Errorf("cut at %d: got %q", n, got)
		}
	default:
		if n < stopEnd-2 {
			t.Errorf("cut at %d: an answer without its end passed as complete: %q", n, got)
		}
		if !strings.HasPrefix(asIs, strings.TrimRight(got, "\n")) {
			t.Errorf("cut at %d: got %q", n, got)
		}
	}
}

// FuzzCutStream cuts a stream after any number of bytes, delivered in pieces of
// any size, by a clean end or a broken connection.
func FuzzCutStream(f *testing.F) {
	for n := range len(cutStream) + 1 {
		f.Add(n, 1+n%7, n%2 == 0)
	}
	f.Add(100, 4096, true)
	f.Fuzz(func(t *testing.T, n, step int, clean bool) {
		if n < 0 || n > len(cutStream) || step < 1 {
			t.Skip()
		}
		err := error(io.EOF)
		if !clean {
			err = upstream.NewFault(upstream.Transient, "reset", "")
		}
		g, b := direct(t, Default(), answering("text/event-stream", cutStream[:n], step, err))
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, chatPath, strings.NewReader(chat("x", true)))
		g.ServeHTTP(w, r)
		checkCut(t, n, w.Code, w.Body.String())
		for v := range g.deps.Fleet.All() {
			if v.Leases != 0 || v.Load.InFlight != 0 || v.Load.Context != 0 {
				t.Errorf("cut at %d: %s is left with %d leases, %+v", n, v.Name, v.Leases, v.Load)
			}
		}
		if len(b.records) != 1 || b.started != 1 {
			t.Errorf("cut at %d: %d records, %d started", n, len(b.records), b.started)
		}
	})
}

// FuzzStream feeds whatever bytes as a stream: nothing may break, and the client
// sees the same bytes, less at most what is held back or cut off.
func FuzzStream(f *testing.F) {
	f.Add(cutStream, 5)
	f.Add("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n\n\ndata: [DONE]", 3)
	f.Add("event: error\ndata: {}\n\n", 9)
	f.Add(":\n\n:\r\r\n\n", 1)
	f.Add("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},\"finish_reason\":\"abort\"}]}\n\n", 50)
	f.Fuzz(func(t *testing.T, stream string, step int) {
		if step < 1 {
			t.Skip()
		}
		cfg := Default()
		cfg.AskUsage = false
		g, _ := direct(t, cfg, answering("text/event-stream", stream, step, io.EOF))
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, chatPath, strings.NewReader(chat("x", true)))
		g.ServeHTTP(w, r)
		if w.Code != 200 {
			return
		}
		got := strings.TrimRight(strings.TrimSuffix(w.Body.String(), string(incompleteEvent)), "\r\n")
		if !strings.HasPrefix(stream, got) {
			t.Errorf("got %q of %q", got, stream)
		}
		for v := range g.deps.Fleet.All() {
			if v.Leases != 0 {
				t.Errorf("%s is left with %d leases", v.Name, v.Leases)
			}
		}
	})
}

// TestMarkerEndsTheStream makes sure that the end of a stream that does
// not end after its marker is not waited for.
func TestMarkerEndsTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body, w := io.Pipe()
		defer w.Close()
		go func() { _, _ = io.WriteString(w, helloChunk+stopChunk+doneChunk) }() // and then silence
		g, b := direct(t, Default(), func(req *http.Request) (*http.Response, error) {
			context.AfterFunc(req.Context(), func() { body.CloseWithError(context.Canceled) })
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: body, Request: req}, nil
		})
		rec := httptest.NewRecorder()
		g.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodPost, chatPath, strings.NewReader(chat("x", true))))
		if rec.Body.String() != helloChunk+stopChunk+doneChunk {
			t.Errorf("got %q", rec.Body)
		}
		if d := b.records[0].End.Sub(b.records[0].Read); d != linger || b.records[0].Outcome() != "served" {
			t.Errorf("over after %v, %s; want %v, served", d, b.records[0].Outcome(), linger)
		}
	})
}
