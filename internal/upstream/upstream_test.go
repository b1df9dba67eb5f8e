package upstream

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/warmroute/warmroute/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testKey = "k-4f9a7c21d0e84b6f"

// dialed returns the RoundTripper of an instance on the network.
func dialed(t testing.TB, n *testkit.Network, change func(*Config), target Target) http.RoundTripper {
	t.Helper()
	cfg := Default()
	if change != nil {
		change(&cfg)
	}
	u, err := New(cfg, n.DialContext)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.Close)
	if target.URL == "" {
		target.URL = "http://e:1"
	}
	if target.Name == "" {
		target.Name = "e"
	}
	rt, err := u.Instance(target)
	if err != nil {
		t.Fatal(err)
	}
	return rt
}

func request(ctx context.Context, body string) *http.Request {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://gateway/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/json")
	return req
}

func TestOutboundHeaders(t *testing.T) {
	f := func(change func(*Config), target Target, in, want http.Header) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			n, e := testkit.NewNetwork(), testkit.NewEngine()
			n.Serve(t, "e:1", e)
			req := request(t.Context(), "{}")
			req.Header = in
			resp, err := dialed(t, n, change, target).RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			got := e.Calls()[0].Header
			got.Del("Content-Length")
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("headers (-want +got):\n%s", diff)
			}
		})
	}
	f(nil, Target{}, http.Header{
		"Authorization":        {"Bearer client"},
		"X-Api-Key":            {"client"},
		"Api-Key":              {"client"},
		"Cookie":               {"session=client"},
		"X-Goog-Api-Key":       {"client"},
		"Proxy-Authorization":  {"Basic Y2xpZW50"},
		"X-Forwarded-For":      {"10.1.2.3"},
		"X-Data-Parallel-Rank": {"3"},
		"Accept-Encoding":      {"br"},
		"Connection":           {"close, X-Request-Id"},
		"Keep-Alive":           {"5"},
		"Te":                   {"trailers"},
		"Upgrade":              {"h2c"},
		"Expect":               {"100-continue"},
		"Idempotency-Key":      {"i"},
		"X-Unheard-Of":         {"1"},
		"X-Request-Id":         {"hop"},
		"Traceparent":          {"00-1-2-01"},
		"Tracestate":           {"a=b"},
		"Content-Type":         {"application/json"},
		"Accept":               {"text/event-stream"},
		"User-Agent":           {"openai-python"},
	}, http.Header{
		"Traceparent":     {"00-1-2-01"},
		"Tracestate":      {"a=b"},
		"Content-Type":    {"application/json"},
		"Accept":          {"text/event-stream"},
		"User-Agent":      {"openai-python"},
		"Accept-Encoding": {"identity"},
	})
	f(nil, Target{Key: NewSecret(testKey + "\n"), Rank: new(2)}, http.Header{
		"x-request-id": {"r1"}, // not canonical, as HTTP/2 servers of others may leave it
	}, http.Header{
		"Authorization":        {"Bearer " + testKey},
		"X-Request-Id":         {"r1"},
		"X-Data-Parallel-Rank": {"2"},
		"User-Agent":           {"warmroute"},
		"Accept-Encoding":      {"identity"},
	})
	f(func(c *Config) { c.ForwardHeaders = []string{"x-tenant", "x-exp-*"} },
		Target{Key: NewSecret(testKey), KeyHeader: "api-key"},
		http.Header{"X-Tenant": {"a"}, "X-Exp-One": {"1"}, "X-Ex": {"no"}, "Api-Key": {"client"}},
		http.Header{
			"X-Tenant": {"a"}, "X-Exp-One": {"1"}, "Api-Key": {testKey},
			"User-Agent": {"warmroute"}, "Accept-Encoding": {"identity"},
		})
}

func TestReturnedHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := testkit.NewNetwork()
		n.Serve(t, "e:1", testkit.NewEngine(testkit.Act{Header: http.Header{
			"Set-Cookie": {"a=b"}, "Server": {"uvicorn"}, "X-Powered-By": {"x"}, "Access-Control-Allow-Origin": {"*"},
			"X-Ratelimit-Remaining": {"9"}, "Openai-Processing-Ms": {"12"}, "X-Request-Id": {"up"}, "X-Mine": {"1"},
		}}))
		rt := dialed(t, n, func(c *Config) { c.ReturnHeaders = []string{"X-Mine"} }, Target{})
		resp, err := rt.RoundTrip(request(t.Context(), "{}"))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		resp.Header.Del("Date")
		resp.Header.Del("Content-Length")
		want := http.Header{
			"Content-Type": {"application/json"}, "X-Ratelimit-Remaining": {"9"},
			"Openai-Processing-Ms": {"12"}, "X-Request-Id": {"up"}, "X-Mine": {"1"},
		}
		if diff := cmp.Diff(want, resp.Header); diff != "" {
			t.Errorf("headers (-want +got):\n%s", diff)
		}
	})
}

func TestAddress(t *testing.T) {
	f := func(base, in, want string) {
		t.Helper()
		b, err := ParseBase(base)
		if err != nil {
			t.Fatal(err)
		}
		req := httptest.NewRequest(http.MethodGet, in, nil)
		if got := (&instance{base: b}).address(req.URL).String(); got != want {
			t.Errorf("%s + %s = %s; want %s", base, in, got, want)
		}
	}
	f("http://e:8000", "/v1/chat/completions", "http://e:8000/v1/chat/completions")
	f("http://e:8000/", "/health", "http://e:8000/health")
	f("http://e:8000/v1", "/v1/models", "http://e:8000/v1/models")
	f("http://e:8000/v1/v1", "/v1/models", "http://e:8000/v1/models")
	f("http://e:8000/v1/", "/health", "http://e:8000/health")
	f("https://api.example.com/openai/v1", "/v1/models", "https://api.example.com/openai/v1/models")
	f("https://api.example.com/engine?api-version=7", "/v1/models?x=1", "https://api.example.com/engine/v1/models?api-version=7&x=1")
	f("http://e", "http://elsewhere/v1/models", "http://e/v1/models")
	f("http://e", "/v1/models?key=sesame&a=1&Api_Key=x&access_token=y&token=z", "http://e/v1/models?a=1")
	f("http://e/b", "/v1/models/org%2Fname", "http://e/b/v1/models/org%2Fname")
}

func TestParseBaseRefuses(t *testing.T) {
	f := func(raw string, want error) {
		t.Helper()
		_, err := ParseBase(raw)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v; want %v", raw, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s: the error tells the password: %v", raw, err)
		}
	}
	f("http://user:sesame@e:1", ErrUserInfo)
	f("ftp://e:1", ErrScheme)
	f("e:8000", ErrScheme)
	f("http://", ErrHost)
	f("http://:8000", ErrHost)
	f("http://e/#x", ErrFragment)
	f("http://user:sesame@e:port", ErrScheme)
}

func TestConfigValidate(t *testing.T) {
	if errs := Default().Validate(); len(errs) > 0 {
		t.Fatal(errs)
	}
	c := Default()
	c.DialTimeout, c.MaxIdlePerInstance, c.MaxHeaderBytes = -1, -1, -1
	c.ForwardHeaders = []string{"X-Ok", "authorization", "Cookie", "Connection", "a b"}
	c.ReturnHeaders = []string{"set-cookie", "Upgrade"}
	var got []string
	for _, err := range c.Validate() {
		field, _, _ := strings.Cut(err.Error(), ": ")
		got = append(got, field)
	}
	want := []string{
		"dial_timeout", "max_idle_per_instance", "max_header_bytes", "forward_headers[1]", "forward_headers[2]",
		"forward_headers[3]", "forward_headers[4]", "return_headers[0]", "return_headers[1]",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
	if _, err := New(c, nil); err == nil {
		t.Error("New took a bad configuration")
	}
}

// staleServer answers the first request of each connection, and treats the
// second one as the script says.
type staleServer struct {
	mu       sync.Mutex
	requests int
	second   func(net.Conn)
}

func (s *staleServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	s.mu.Lock()
	s.requests++
	second := s.requests == 2
	s.mu.Unlock()
	if second {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		s.second(conn)
		return
	}
	_, _ = io.WriteString(w, "{}")
}

// A request that may have arrived is never sent again, whatever the connection
// does then and whatever headers and rewindable body the client sent.
func TestPostIsSentOnce(t *testing.T) {
	f := func(second func(net.Conn)) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			n, s := testkit.NewNetwork(), &staleServer{second: second}
			n.Serve(t, "e:1", s)
			rt := dialed(t, n, func(c *Config) { c.ForwardHeaders = []string{"Idempotency-Key"} }, Target{})
			for i := range 2 {
				req := request(t.Context(), "{}")
				req.Header.Set("Idempotency-Key", "i")
				if req.GetBody == nil {
					t.Fatal("the test wants a body that can be rewound")
				}
				resp, err := rt.RoundTrip(req)
				if i == 0 {
					if err != nil {
						t.Fatal(err)
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					continue
				}
				if fault := FaultOf(err); fault == nil || fault.Class != Transient {
					t.Errorf("second request: %v; want a transient fault", err)
				}
			}
			if s.requests != 2 || n.Dials("e:1") != 1 {
				t.Errorf("server saw %d requests on %d connections; want 2 on 1", s.requests, n.Dials("e:1"))
			}
		})
	}
	f(func(c net.Conn) { c.Close() })
	f(func(c net.Conn) { c.(*testkit.Conn).Reset() })
}

// A kept-alive connection that the server closed before anything was written is
// replaced without anybody noticing.
func TestClosedIdleConnectionIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, e := testkit.NewNetwork(), testkit.NewEngine()
		stop := n.Serve(t, "e:1", e)
		rt := dialed(t, n, nil, Target{})
		for range 2 {
			resp, err := rt.RoundTrip(request(t.Context(), "{}"))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			stop()
			stop = n.Serve(t, "e:1", e)
		}
		if got := len(e.Calls()); got != 2 {
			t.Errorf("calls = %d; want 2", got)
		}
	})
}

// Idle connections are given up before uvicorn's 5 s, so that a POST does not
// meet a connection that is just being closed.
func TestIdleConnectionsEndFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := testkit.NewNetwork()
		n.Serve(t, "e:1", testkit.NewEngine())
		rt := dialed(t, n, nil, Target{})
		for i, wait := range []time.Duration{3 * time.Second, 4500 * time.Millisecond, 0} {
			resp, err := rt.RoundTrip(request(t.Context(), "{}"))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if want := []int{1, 1, 2}[i]; n.Dials("e:1") != want {
				t.Errorf("request %d: %d connections; want %d", i, n.Dials("e:1"), want)
			}
			time.Sleep(wait)
		}
	})
}

func TestH2C(t *testing.T) {
	n := testkit.NewNetwork()
	l := n.Listen("e:1")
	srv := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Proto)
	})}
	srv.Protocols.SetUnencryptedHTTP2(true)
	srv.Protocols.SetHTTP1(true)
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(l) })
	defer wg.Wait()
	defer srv.Close()
	f := func(h2c bool, want string) {
		t.Helper()
		resp, err := dialed(t, n, func(c *Config) { c.H2C = h2c }, Target{}).RoundTrip(request(t.Context(), "{}"))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if b, _ := io.ReadAll(resp.Body); string(b) != want {
			t.Errorf("h2c %t: %s; want %s", h2c, b, want)
		}
	}
	f(true, "HTTP/2.0")
	f(false, "HTTP/1.1")
}

func TestTLS(t *testing.T) {
	srv := httptest.NewUnstartedServer(testkit.NewEngine())
	srv.EnableHTTP2 = true
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	if err := os.WriteFile(ca, block, 0o600); err != nil {
		t.Fatal(err)
	}
	f := func(caFile, wantReason, wantProto string) {
		t.Helper()
		cfg := Default()
		cfg.CAFile = caFile
		u, err := New(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer u.Close()
		rt, err := u.Instance(Target{Name: "e", URL: srv.URL})
		if err != nil {
			t.Fatal(err)
		}
		resp, err := rt.RoundTrip(request(t.Context(), "{}"))
		if wantReason != "" {
			if fault := FaultOf(err); fault == nil || fault.Reason != wantReason {
				t.Errorf("err = %v; want reason %s", err, wantReason)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.Proto != wantProto {
			t.Errorf("proto = %s", resp.Proto)
		}
	}
	f("", "tls", "")
	f(ca, "", "HTTP/2.0")
	cfg := Default()
	cfg.CAFile = filepath.Join(t.TempDir(), "none.pem")
	if _, err := New(cfg, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing ca_file: %v", err)
	}
}

// The proxy environment is for downloads, not for prompts, unless asked for.
func TestNoProxySurprise(t *testing.T) {
	u, err := New(Default(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if u.tcp.Proxy != nil {
		t.Error("a proxy is used without being asked for")
	}
	cfg := Default()
	cfg.UseProxy = true
	if u, err = New(cfg, nil); err != nil || u.tcp.Proxy == nil {
		t.Errorf("use_proxy has no effect: %v", err)
	}
}

// A client that leaves, at any point, ends the exchange with the engine at once.
func TestCancelReachesEngine(t *testing.T) {
	f := func(act testkit.Act, read int) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			n, e := testkit.NewNetwork(), testkit.NewEngine(act)
			n.Serve(t, "e:1", e)
			rt := dialed(t, n, nil, Target{})
			ctx, cancel := context.WithCancel(t.Context())
			errs := make(chan error, 1)
			go func() {
				resp, err := rt.RoundTrip(request(ctx, `{"stream":true}`))
				if err == nil {
					_, err = io.ReadAll(resp.Body)
					resp.Body.Close()
				}
				errs <- err
			}()
			time.Sleep(time.Duration(read) * time.Second)
			synctest.Wait()
			if e.Active() != 1 {
				t.Fatalf("active = %d before the client leaves", e.Active())
			}
			cancel()
			fault := FaultOf(<-errs)
			if fault == nil || fault.Class != ClientGone {
				t.Errorf("fault = %v; want client_gone", fault)
			}
			synctest.Wait()
			if e.Active() != 0 || e.Calls()[0].Gone.IsZero() {
				t.Error("the engine did not notice that the client left")
			}
		})
	}
	f(testkit.Act{Fate: testkit.HangEarly}, 30)
	f(testkit.Act{Before: time.Hour}, 3)
	f(testkit.Act{Fate: testkit.Hang}, 1)
	f(testkit.Act{Tokens: 100, Gap: time.Second}, 10)
}

// Many clients that leave at random moments leave nothing behind: goleak looks
// at the goroutines when the tests end.
func TestRandomCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := testkit.NewNetwork()
		e := &testkit.Engine{Then: testkit.Act{Before: 20 * time.Millisecond, Tokens: 50, Gap: 10 * time.Millisecond}}
		n.Serve(t, "e:1", e)
		rt := dialed(t, n, nil, Target{})
		rng := rand.New(rand.NewPCG(1, 2))
		var wg sync.WaitGroup
		for range 200 {
			life := time.Duration(rng.Int64N(int64(600 * time.Millisecond)))
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), life)
				defer cancel()
				resp, err := rt.RoundTrip(request(ctx, `{"stream":true}`))
				if err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		if e.Active() != 0 {
			t.Errorf("active = %d", e.Active())
		}
	})
}
