package testkit

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newClient(t *testing.T, n *Network) *http.Client {
	tr := &http.Transport{DialContext: n.DialContext}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func post(t *testing.T, c *http.Client, body string) (*http.Response, error) {
	t.Helper()
	return c.Post("http://e:1/v1/chat/completions", "application/json", strings.NewReader(body))
}

const streaming = `{"stream":true,"stream_options":{"include_usage":true}}`

func TestEngineFates(t *testing.T) {
	f := func(act Act, request string, wantErr error, wantParts ...string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			n := NewNetwork()
			e := NewEngine(act)
			n.Serve(t, "e:1", e)
			c := newClient(t, n)
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://e:1/v1/chat/completions", strings.NewReader(request))
			resp, err := c.Do(req)
			text := ""
			if err == nil {
				var b []byte
				b, err = io.ReadAll(resp.Body)
				resp.Body.Close()
				text = string(b)
			}
			if !errors.Is(err, wantErr) {
				t.Errorf("err = %v; want %v", err, wantErr)
			}
			for _, part := range wantParts {
				if !strings.Contains(text, part) {
					t.Errorf("no %q in %q", part, text)
				}
			}
			cancel()
			synctest.Wait()
			if n := e.Active(); n != 0 {
				t.Errorf("active = %d", n)
			}
		})
	}
	f(Act{}, `{}`, nil, `"content":"t0 t1 t2 "`, `"cached_tokens":0`)
	f(Act{Tokens: 2, Cached: 7}, streaming, nil, `"t1 "`, `"cached_tokens":7`, "data: [DONE]\n\n")
	f(Act{Usage: `{"prompt_tokens":-1}`}, streaming, nil, `"usage":{"prompt_tokens":-1}`)
	f(Act{Fate: ResetNow}, `{}`, syscall.ECONNRESET)
	f(Act{Fate: HangEarly}, `{}`, context.DeadlineExceeded)
	f(Act{Fate: Hang}, streaming, context.DeadlineExceeded, `"t2 "`)
	f(Act{Fate: Cut}, streaming, syscall.ECONNRESET, `"t2 "`)
	f(Act{Fate: Cut}, `{}`, syscall.ECONNRESET, `"id"`)
	f(ErrorIn200(), streaming, nil, `data: {"error"`)
	f(ErrorIn200(), `{}`, nil, `{"error"`)
	f(Busy("3"), streaming, nil, "too many requests")
}

func TestEngineNoMarker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork()
		n.Serve(t, "e:1", NewEngine(Act{Fate: NoMarker}))
		resp, err := post(t, newClient(t, n), streaming)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil || strings.Contains(string(b), "[DONE]") || strings.Contains(string(b), `"stop"`) {
			t.Errorf("got %q, %v; want a clean end without a marker", b, err)
		}
	})
}

func TestEngineDrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork()
		n.Serve(t, "e:1", NewEngine(Act{Before: time.Minute, Gap: 10 * time.Second, Tokens: 4}))
		began := time.Now()
		resp, err := post(t, newClient(t, n), streaming)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if d := time.Since(began); d != time.Minute {
			t.Errorf("headers after %v; want 1m", d)
		}
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			if strings.Contains(lines.Text(), `"t3 "`) {
				break
			}
		}
		if d := time.Since(began); d != 100*time.Second {
			t.Errorf("fourth token after %v; want 100s", d)
		}
	})
}

func TestNetworkRefusesAndStaysSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork()
		c := newClient(t, n)
		if _, err := post(t, c, "{}"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("nobody listens: %v", err)
		}
		stop := n.Serve(t, "e:1", NewEngine())
		resp, err := post(t, c, "{}")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		stop()
		if _, err := post(t, c, "{}"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("after stop: %v", err)
		}
		n.Silence("e:1")
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		_, err = n.DialContext(ctx, "tcp", "e:1")
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 3*time.Second {
			t.Errorf("silent: %v after %v", err, time.Since(began))
		}
		if got := n.Dials("e:1"); got < 3 {
			t.Errorf("dials = %d", got)
		}
	})
}

func TestGolden(t *testing.T) {
	Golden(t, "golden.txt", []byte("one\ntwo\n"))
	probe := &recorder{TB: t}
	Golden(probe, "golden.txt", []byte("one\nthree\n"))
	if !probe.failed && !*update {
		t.Error("a difference went unnoticed")
	}
}

type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Errorf(string, ...any) { r.failed = true }
