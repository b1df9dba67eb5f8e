package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/testkit"
)

// exchange sends one request and reads the answer to its end.
func exchange(ctx context.Context, rt http.RoundTripper) (string, error) {
	resp, err := rt.RoundTrip(request(ctx, `{"stream":true}`))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func TestFaultsOfConnections(t *testing.T) {
	f := func(act testkit.Act, change func(*Config), wantReason string, wantAfter time.Duration) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			n := testkit.NewNetwork()
			n.Serve(t, "e:1", testkit.NewEngine(act))
			began := time.Now()
			_, err := exchange(t.Context(), dialed(t, n, change, Target{Name: "gpu-7"}))
			fault := FaultOf(err)
			if fault == nil {
				t.Fatalf("err = %v; want a fault", err)
			}
			if fault.Class != Transient || fault.Reason != wantReason || fault.Instance != "gpu-7" {
				t.Errorf("fault = %+v; want transient, %s", fault, wantReason)
			}
			if d := time.Since(began); d != wantAfter {
				t.Errorf("after %v; want %v", d, wantAfter)
			}
		})
	}
	f(testkit.Act{Fate: testkit.ResetNow}, nil, "reset", 0)
	f(testkit.Act{Fate: testkit.Cut}, nil, "reset", 0)
	// Accepting and never answering is the header timeout's business, silence in a
	// stream that of the idle timeout: two knobs.
	f(testkit.Act{Fate: testkit.HangEarly}, func(c *Config) { c.HeaderTimeout = 40 * time.Second }, "timeout", 40*time.Second)
	f(testkit.Act{Fate: testkit.Hang}, func(c *Config) { c.BodyIdleTimeout = 30 * time.Second }, "idle", 30*time.Second)
	f(testkit.Act{Tokens: 5, Gap: 20 * time.Second, Fate: testkit.Hang}, func(c *Config) { c.BodyIdleTimeout = 30 * time.Second }, "idle", 130*time.Second)
}

// The bare connection that an unasked-for change of protocol leaves would hold
// the request for ever, whoever gives it up.
func TestSwitchedProtocolIsAFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := testkit.NewNetwork()
		l := n.Listen("e:1")
		closed := make(chan error, 1)
		go func() {
			conn, err := l.Accept()
			if err != nil {
				closed <- err
				return
			}
			_, err = http.ReadRequest(bufio.NewReader(conn))
			if err == nil {
				_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
			}
			if err == nil {
				_, err = conn.Read(make([]byte, 1))
			}
			closed <- err
		}()
		_, err := exchange(t.Context(), dialed(t, n, nil, Target{Name: "gpu-7"}))
		fault := FaultOf(err)
		if fault == nil || fault.Class != Transient || fault.Reason != "protocol" || fault.Status != 101 || fault.Instance != "gpu-7" {
			t.Errorf("err = %v; want a transient fault of gpu-7, status 101, protocol", err)
		}
		if err := <-closed; !errors.Is(err, io.EOF) {
			t.Errorf("the instance reads %v; want EOF", err)
		}
	})
}

func TestFaultRefusedAndSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := testkit.NewNetwork()
		rt := dialed(t, n, nil, Target{})
		_, err := exchange(t.Context(), rt)
		if fault := FaultOf(err); fault == nil || fault.Reason != "refused" || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("nobody listens: %v", err)
		}
		n.Silence("e:1")
		began := time.Now()
		_, err = exchange(t.Context(), rt)
		if fault := FaultOf(err); fault == nil || fault.Reason != "timeout" || time.Since(began) != Default().DialTimeout {
			t.Errorf("silent host: %v after %v", err, time.Since(began))
		}
	})
}

// A client that reads slowly is not an instance that is silent.
func TestSlowReaderIsNotIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := testkit.NewNetwork()
		n.Serve(t, "e:1", testkit.NewEngine(testkit.Act{Tokens: 3}))
		rt := dialed(t, n, func(c *Config) { c.BodyIdleTimeout = time.Second }, Target{})
		resp, err := rt.RoundTrip(request(t.Context(), `{"stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var text strings.Builder
		buf := make([]byte, 16)
		for {
			time.Sleep(time.Minute)
			k, err := resp.Body.Read(buf)
			text.Write(buf[:k])
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if !strings.HasSuffix(text.String(), "[DONE]\n\n") {
			t.Errorf("got %q", text.String())
		}
	})
}

// The caller's own reason for ending an exchange is the exchange's fault.
func TestFaultByContext(t *testing.T) {
	f := func(end func(context.CancelCauseFunc), deadline time.Duration, wantClass Class, wantReason string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			n := testkit.NewNetwork()
			n.Serve(t, "e:1", testkit.NewEngine(testkit.Act{Fate: testkit.HangEarly}))
			ctx, stop := context.WithTimeout(t.Context(), deadline)
			defer stop()
			ctx, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			time.AfterFunc(time.Second, func() { end(cancel) })
			_, err := exchange(ctx, dialed(t, n, nil, Target{}))
			if fault := FaultOf(err); fault == nil || fault.Class != wantClass || fault.Reason != wantReason {
				t.Errorf("fault = %+v; want %s, %s", fault, wantClass, wantReason)
			}
		})
	}
	never := time.Hour
	f(func(c context.CancelCauseFunc) { c(nil) }, never, ClientGone, "canceled")
	f(func(c context.CancelCauseFunc) { c(NewFault(Transient, "ttft", "no token within 20s")) }, never, Transient, "ttft")
	f(func(c context.CancelCauseFunc) { c(fmt.Errorf("stop: %w", NewFault(Truncated, "drain", ""))) }, never, Truncated, "drain")
	f(func(context.CancelCauseFunc) {}, 5*time.Second, Transient, "deadline")
}

func TestClassify(t *testing.T) {
	f := func(status int, header http.Header, body string, want Class, wantRetry time.Duration) {
		t.Helper()
		resp := &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(body))}
		fault := Classify(resp, time.Unix(1_700_000_000, 0))
		switch {
		case fault == nil:
			if want != 0 {
				t.Errorf("%d: no fault; want %s", status, want)
			}
		case fault.Class != want || fault.RetryAfter != wantRetry || fault.Status != status:
			t.Errorf("%d: %+v; want %s after %v", status, fault, want, wantRetry)
		}
		if got, err := io.ReadAll(resp.Body); string(got) != body || err != nil {
			t.Errorf("%d: body afterwards is %q, %v; want %q", status, got, err, body)
		}
	}
	f(200, nil, `{"error":"the dialect sees to this"}`, 0, 0)
	f(204, nil, "", 0, 0)
	f(301, nil, "", Transient, 0)
	for _, status := range []int{400, 404, 405, 409, 413, 415, 422, 431, 501} {
		f(status, nil, `{"error":{"message":"no"}}`, Client, 0)
	}
	for _, status := range []int{401, 402, 403} {
		f(status, nil, "who are you", Credential, 0)
	}
	f(429, nil, "", Capacity, 0)
	f(429, http.Header{"Retry-After": {"7"}}, "", Capacity, 7*time.Second)
	f(529, nil, "overloaded", Capacity, 0)
	f(503, http.Header{"Retry-After": {"2"}}, "", Capacity, 2*time.Second)
	f(503, http.Header{"Retry-After": {"0"}}, "", Capacity, 0)
	f(503, nil, "dead engine", Transient, 0)
	f(503, nil, `{"code":503,"type":"WlmError","message":"..."}`, Capacity, 0)
	f(503, nil, `{"error":"server busy, please try again. maximum pending requests exceeded"}`, Capacity, 0)
	f(503, nil, strings.Repeat("x", 3*maxPeek), Transient, 0)
	f(400, http.Header{"X-Amzn-Errortype": {"ThrottlingException:http://x"}}, "{}", Capacity, 0)
	for _, status := range []int{408, 425, 500, 502, 504, 520, 524} {
		f(status, nil, "boom", Transient, 0)
	}
}

func TestClassWords(t *testing.T) {
	f := func(c Class, word string, retryable bool) {
		t.Helper()
		if c.String() != word || c.Retryable() != retryable {
			t.Errorf("%s, retryable %t; want %s, %t", c, c.Retryable(), word, retryable)
		}
	}
	f(0, "none", false)
	f(Client, "client", false)
	f(Credential, "credential", true)
	f(Capacity, "capacity", true)
	f(Transient, "transient", true)
	f(Truncated, "truncated", false)
	f(ClientGone, "client_gone", false)
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f := func(h http.Header, want time.Duration) {
		t.Helper()
		if got := RetryAfter(h, now); got != want {
			t.Errorf("%v: %v; want %v", h, got, want)
		}
	}
	f(nil, 0)
	f(http.Header{"Retry-After": {"30"}}, 30*time.Second)
	f(http.Header{"Retry-After": {" 1.5 "}}, 1500*time.Millisecond)
	f(http.Header{"Retry-After": {"-3"}}, 0)
	f(http.Header{"Retry-After": {"soon"}}, 0)
	f(http.Header{"Retry-After": {"NaN"}}, 0)
	f(http.Header{"Retry-After": {"1e300"}}, MaxRetryAfter)
	f(http.Header{"Retry-After": {"+Inf"}}, MaxRetryAfter)
	f(http.Header{"Retry-After-Ms": {"250"}, "Retry-After": {"9"}}, 250*time.Millisecond)
	f(http.Header{"X-Ms-Retry-After-Ms": {"40"}}, 40*time.Millisecond)
	f(http.Header{"Retry-After-Ms": {"x"}, "Retry-After": {"9"}}, 9*time.Second)
	f(http.Header{"Retry-After": {"Sun, 01 Mar 2026 12:00:20 GMT"}}, 20*time.Second)
	f(http.Header{"Retry-After": {"Sunday, 01-Mar-26 12:00:20 GMT"}}, 20*time.Second)
	f(http.Header{"Retry-After": {"Sun Mar  1 12:00:20 2026"}}, 20*time.Second)
	f(http.Header{"Retry-After": {"Sun, 01 Mar 2026 11:00:00 GMT"}}, 0)
	f(http.Header{"Retry-After": {"Mon, 01 Mar 2027 12:00:00 GMT"}}, MaxRetryAfter)
	// The instance's clock is a day ahead; its own Date says by how much.
	f(http.Header{"Retry-After": {"Mon, 02 Mar 2026 12:00:20 GMT"}, "Date": {"Mon, 02 Mar 2026 12:00:15 GMT"}}, 5*time.Second)
}

func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"", "1", "1.5", "-1", "1e9", "Sun, 01 Mar 2026 12:00:20 GMT"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, seconds, ms string) {
		h := http.Header{"Retry-After": {seconds}, "Retry-After-Ms": {ms}}
		if d := RetryAfter(h, time.Unix(1_700_000_000, 0)); d < 0 || d > MaxRetryAfter {
			t.Errorf("%v: %v", h, d)
		}
	})
}
