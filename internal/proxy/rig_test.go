package proxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/index"
	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/internal/testkit"
	"github.com/warmroute/warmroute/internal/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a gateway before scripted engines, on a network of pipes.
type rig struct {
	t       testing.TB
	net     *testkit.Network
	engines []*testkit.Engine
	fleet   *fleet.Fleet
	index   *index.Index
	gateway *Gateway
	books   *books
	log     *bytes.Buffer
	client  *http.Client
	setup   setup
}

// books is a Recorder that keeps everything.
type books struct {
	mu      sync.Mutex
	started int
	gaps    int
	records []Record
}

func (b *books) Started(string) { b.mu.Lock(); b.started++; b.mu.Unlock() }

func (b *books) Gap(string, time.Duration) { b.mu.Lock(); b.gaps++; b.mu.Unlock() }

func (b *books) Ended(r *Record) { b.mu.Lock(); b.records = append(b.records, *r); b.mu.Unlock() }

// setup is what a test may change about a rig.
type setup struct {
	proxy     Config
	fleet     fleet.Config
	upstream  upstream.Config
	route     route.Config
	policy    string
	headChars int
	engines   []*testkit.Engine
	instance  func(i int, c *fleet.InstanceConfig)
	pool      func(*fleet.PoolConfig)
	deps      func(*Deps)
	handlers  map[int]http.Handler // in place of engines
	transport func(http.RoundTripper) http.RoundTripper
}

// newRig starts a gateway for model "m" before n engines, or those of the setup.
func newRig(t testing.TB, n int, edit ...func(*setup)) *rig {
	t.Helper()
	s := setup{proxy: Default(), fleet: fleet.Default(), upstream: upstream.Default(), route: route.Default(), policy: route.Cost}
	s.fleet.Health.Interval, s.fleet.Scrape.Interval = 0, 0
	for range n {
		s.engines = append(s.engines, testkit.NewEngine())
	}
	for _, f := range edit {
		f(&s)
	}
	r := &rig{t: t, net: testkit.NewNetwork(), engines: s.engines, books: new(books), log: new(bytes.Buffer), index: index.New(index.Config{})}
	up, err := upstream.New(s.upstream, r.net.DialContext)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(up.Close)
	var gateway *Gateway
	r.fleet, err = fleet.New(s.fleet, fleet.Deps{
		Transport: func(c fleet.InstanceConfig) (http.RoundTripper, error) {
			rt, err := up.Instance(upstream.Target{Name: c.Name, URL: c.URL, Key: upstream.NewSecret("sk-" + c.Name + "-verysecretkey")})
			if err == nil && s.transport != nil {
				rt = s.transport(rt)
			}
			return rt, err
		},
		Watch: func(e fleet.Event) {
			switch e.Kind {
			case fleet.Joined:
				r.index.Join(e.ID, e.Name, 0)
			case fleet.Left:
				r.index.Leave(e.ID)
			case fleet.Restarted:
				r.index.Flush(e.ID)
			default:
			}
			if gateway != nil {
				gateway.Watch(e)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.setup = s
	if err := r.fleet.Apply(r.pools(s)); err != nil {
		t.Fatal(err)
	}
	policy, err := route.New(s.policy, s.route)
	if err != nil {
		t.Fatal(err)
	}
	deps := Deps{
		Fleet: r.fleet, Index: r.index, Recorder: r.books,
		Rule: func(*fleet.Pool) Rule {
			return Rule{Policy: policy, MaxHold: s.route.MaxHold, HeadChars: s.headChars}
		},
		Log: slog.New(slog.NewTextHandler(r.log, nil)),
	}
	if s.deps != nil {
		s.deps(&deps)
	}
	if gateway, err = New(s.proxy, deps); err != nil {
		t.Fatal(err)
	}
	r.gateway = gateway
	for i, e := range r.engines {
		h := s.handlers[i]
		if h == nil {
			h = e
		}
		r.net.Serve(t, fmt.Sprintf("e%d:8000", i), h)
	}
	r.net.Serve(t, "gateway:80", gateway)
	tr := &http.Transport{DialContext: r.net.DialContext, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	r.client = &http.Client{Transport: tr}
	return r
}

func (r *rig) pools(s setup) []fleet.PoolConfig {
	pool := fleet.PoolConfig{Model: "m", Policy: s.policy}
	for i := range r.engines {
		c := fleet.InstanceConfig{Name: fmt.Sprintf("e%d", i), URL: fmt.Sprintf("http://e%d:8000", i), Engine: fleet.VLLM}
		if s.instance != nil {
			s.instance(i, &c)
		}
		pool.Instances = append(pool.Instances, c)
	}
	if s.pool != nil {
		s.pool(&pool)
	}
	return []fleet.PoolConfig{pool}
}

// answer is what a client saw.
type answer struct {
	status  int
	header  http.Header
	body    string
	trailer http.Header
	err     error // of reading the body
}

// post sends a body to a path and reads the whole answer.
func (r *rig) post(path, body string, headers ...string) answer {
	r.t.Helper()
	req := r.request(path, body, headers...)
	resp, err := r.client.Do(req)
	if err != nil {
		r.t.Errorf("post %s: %v", path, err)
		return answer{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(b), resp.Trailer, err}
}

func (r *rig) request(path, body string, headers ...string) *http.Request {
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, "http://gateway"+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return req
}

const chatPath = "/v1/chat/completions"

// chat is a chat request with one message.
func chat(text string, stream bool) string {
	return fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}],"stream":%t}`, text, stream)
}

// last is the record of the request that ended last.
func (r *rig) last() Record {
	r.t.Helper()
	synctest.Wait()
	r.books.mu.Lock()
	defer r.books.mu.Unlock()
	if len(r.books.records) == 0 {
		r.t.Fatal("no record")
	}
	return r.books.records[len(r.books.records)-1]
}

// idle fails the test unless nothing is counted in anywhere.
func (r *rig) idle() {
	r.t.Helper()
	synctest.Wait()
	for v := range r.fleet.All() {
		if v.Load.InFlight != 0 || v.Load.Queued != 0 || v.Load.Context != 0 || v.Load.Used != 0 || v.Load.Decoding != 0 {
			r.t.Errorf("instance %s is left with %+v", v.Name, v.Load)
		}
	}
	if n := r.gateway.Held(); n != 0 {
		r.t.Errorf("%d requests are held; want 0", n)
	}
	r.gateway.running.mu.Lock()
	if n := len(r.gateway.running.attempts); n != 0 {
		r.t.Errorf("%d attempts run; want 0", n)
	}
	r.gateway.running.mu.Unlock()
	r.books.mu.Lock()
	defer r.books.mu.Unlock()
	if r.books.started != len(r.books.records) {
		r.t.Errorf("%d requests started, %d ended", r.books.started, len(r.books.records))
	}
	for i, e := range r.engines {
		if n := e.Active(); n != 0 {
			r.t.Errorf("engine %d has %d requests; want 0", i, n)
		}
	}
}

// errorOf decodes an error answer.
func errorOf(t testing.TB, body string) (e struct{ Message, Type, Param, Code string }) {
	t.Helper()
	var outer struct {
		Error *struct{ Message, Type, Param, Code string }
	}
	if err := json.Unmarshal([]byte(body), &outer); err != nil || outer.Error == nil {
		t.Errorf("no error object in %q: %v", body, err)
		return e
	}
	return *outer.Error
}

// calls counts the requests that engine i got.
func (r *rig) calls(i int) int { return len(r.engines[i].Calls()) }
