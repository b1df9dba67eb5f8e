package proxy

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/prefix"
)

// sink is a ResponseWriter that throws away.
type sink struct {
	header http.Header
	status int
}

func (s *sink) Header() http.Header               { return s.header }
func (s *sink) WriteHeader(status int)            { s.status = status }
func (s *sink) Write(p []byte) (int, error)       { return len(p), nil }
func (s *sink) Flush()                            {}
func (s *sink) SetWriteDeadline(time.Time) error  { return nil }
func (s *sink) SetReadDeadline(_ time.Time) error { return nil }

// BenchmarkOverhead is everything that the gateway does for a request, with an
// instance that answers at once and no network: the first token's way.
func BenchmarkOverhead(b *testing.B) { // A46
	run := func(name string, size int, stream bool) {
		b.Run(name, func(b *testing.B) {
			answer := answering("application/json", `{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2}}`, 4096, io.EOF)
			if stream {
				answer = answering("text/event-stream", roleChunk+helloChunk+stopChunk+usageChunk+doneChunk, 4096, io.EOF)
			}
			g, _ := direct(b, Default(), answer)
			g.deps.Recorder = noRecorder{}
			// Conversations of one beginning and many ends, as agents have.
			beginning := strings.Repeat("The quick brown fox jumps over the lazy dog. ", size/45)
			texts := make([]string, 64)
			for i := range texts {
				texts[i] = conversation(stream, beginning, "ok", fmt.Sprint("question ", i))
			}
			header := http.Header{
				"Content-Type": {"application/json"}, "User-Agent": {"OpenAI/Python 1.0"}, "Accept": {"application/json"},
				"Authorization": {"Bearer x"}, "X-Stainless-Lang": {"python"}, "Accept-Encoding": {"gzip"},
			}
			body := strings.NewReader("")
			r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, chatPath, nil)
			r.Header = header
			w := &sink{header: make(http.Header)}
			var took []time.Duration
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				text := texts[i%len(texts)]
				i++
				body.Reset(text)
				r.Body, r.ContentLength = io.NopCloser(body), int64(len(text))
				clear(w.header)
				began := time.Now()
				g.ServeHTTP(w, r)
				took = append(took, time.Since(began))
				if w.status != 200 {
					b.Fatalf("status %d", w.status)
				}
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-us")
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-us")
		})
	}
	run("10KB", 10_000, false)
	run("10KB-stream", 10_000, true)
	run("200KB", 200_000, false)
	run("200KB-stream", 200_000, true)
}

// BenchmarkPlace is the one step under a pool's lock: 64 instances, a prompt of
// 32,000 tokens that several of them hold.
func BenchmarkPlace(b *testing.B) {
	g, _ := direct(b, Default(), nil)
	pool := fleet.PoolConfig{Model: "m"}
	for i := range 64 {
		pool.Instances = append(pool.Instances, fleet.InstanceConfig{URL: fmt.Sprintf("http://i%d:1", i)})
	}
	if err := g.deps.Fleet.Apply([]fleet.PoolConfig{pool}); err != nil {
		b.Fatal(err)
	}
	p, _ := g.deps.Fleet.Pool("m")
	d := g.desk(p)
	var h prefix.Hasher
	h.Reset(0)
	_, _ = h.Write(bytes.Repeat([]byte("a prompt of some length "), 128_000/24))
	o := &order{
		rule: g.deps.Rule(p), chain: h.Chain(), perTok: 4, indexed: true,
		req: route.Request{Tokens: 32_000},
	}
	b.ReportAllocs()
	for b.Loop() {
		o.seat, o.since = seat{}, time.Now()
		if d.step(o); o.seat.lease == nil {
			b.Fatal("no seat")
		}
		now := time.Now()
		o.seat.lease.FirstToken(now)
		g.deps.Index.Confirm(&o.seat.placement)
		d.release(o.seat.lease, fleet.Outcome{Result: fleet.Served})
		g.deps.Index.Finish(&o.seat.placement, o.chain)
	}
}

// BenchmarkToken is what one more event of a stream costs.
func BenchmarkToken(b *testing.B) {
	r, w := io.Pipe()
	defer r.Close()
	g, _ := direct(b, Default(), func(req *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: r, Request: req}, nil
	})
	g.deps.Recorder = noRecorder{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		req := httptest.NewRequestWithContext(b.Context(), http.MethodPost, chatPath, strings.NewReader(chat("x", true)))
		req.Header.Set("Content-Type", "application/json")
		g.ServeHTTP(&sink{header: make(http.Header)}, req)
	}()
	event := []byte(helloChunk)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.Write(event); err != nil {
			b.Fatal(err)
		}
	}
	w.Close()
	<-done
}

// TestTokenAllocatesNothing holds for the events in the middle of a stream.
func TestTokenAllocatesNothing(t *testing.T) {
	r, w := io.Pipe()
	defer r.Close()
	cfg := Default()
	cfg.LearnBytes = 0 // the collected text grows
	g, _ := direct(t, cfg, func(req *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: r, Request: req}, nil
	})
	g.deps.Recorder = noRecorder{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, chatPath, strings.NewReader(chat("x", true)))
		g.ServeHTTP(&sink{header: make(http.Header)}, req)
	}()
	event := []byte(helloChunk)
	if n := testing.AllocsPerRun(1000, func() { _, _ = w.Write(event) }); n > 0 {
		t.Errorf("an event allocates %v times; want 0", n)
	}
	w.Close()
	<-done
}
