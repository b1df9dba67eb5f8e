package proxy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/testkit"
)

func TestHeartbeat(t *testing.T) { // T03, T04
	beating := func(s *setup) { s.proxy.Heartbeat = 10 * time.Second; s.proxy.TTFTTimeout = 5 * time.Minute }
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, beating)
		r.engines[0].Play(testkit.Act{Before: 25 * time.Second, Gap: 30 * time.Second, Tokens: 2})
		a := r.post(chatPath, chat("x", true))
		// At 10, 20, ... 50 s; the first token comes at 55 s, and then no more.
		if n := strings.Count(a.body, heartbeat); n != 5 || !strings.HasPrefix(a.body, strings.Repeat(heartbeat, 5)+"data: ") {
			t.Errorf("%d heartbeats in %q", n, a.body)
		}
		if !strings.HasSuffix(a.body, doneChunk) {
			t.Errorf("got %q", a.body)
		}
		if ttft, _ := new(r.last()).TTFT(); ttft != 55*time.Second {
			t.Errorf("TTFT %v; want 55s", ttft)
		}
		r.idle()
	})
	// A failure after a ping is an error event under 200; before it, it has its
	// status.
	f := func(name string, act testkit.Act, code string, status int) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 1, beating)
			r.engines[0].Play(act)
			a := r.post(chatPath, chat("x", true))
			if a.status != status {
				t.Errorf("%s: got %d; want %d", name, a.status, status)
			}
			text := a.body
			if status == 200 {
				rest, ok := strings.CutPrefix(text, heartbeat)
				if !ok || !strings.HasSuffix(rest, "\n\n") {
					t.Errorf("%s: got %q", name, text)
				}
				text = strings.TrimPrefix(strings.TrimSpace(rest), "data: ")
			}
			if e := errorOf(t, text); e.Code != code {
				t.Errorf("%s: got %+v; want code %q", name, e, code)
			}
			r.idle()
		})
	}
	broken, refused := testkit.Broken(), testkit.Act{Status: 400, Body: `{"error":{"message":"too long","type":"BadRequestError","code":"context"}}`}
	f("at once", broken, "upstream_error", 502)
	f("client's fault at once", refused, "context", 400)
	broken.Before, refused.Before = 15*time.Second, 15*time.Second
	f("late", broken, "upstream_error", 200)
	f("client's fault late", refused, "context", 200)

	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, beating)
		r.engines[0].Play(testkit.Act{Before: 15 * time.Second, Body: "{\n\"choices\":[]}\n"})
		a := r.post(chatPath, chat("x", true))
		if want := heartbeat + "data: {\ndata: \"choices\":[]}\n\ndata: [DONE]\n\n"; a.body != want {
			t.Errorf("a whole answer after a heartbeat: got %q; want %q", a.body, want)
		}
	})
}

func TestClientDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		r.engines[0].Play(testkit.Act{Tokens: 1000, Gap: 10 * time.Millisecond})
		conn, err := r.net.DialContext(t.Context(), "tcp", "gateway:80")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		body := chat("x", true)
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(body), body)
		began := time.Now()
		for r.engines[0].Active() == 0 {
			time.Sleep(time.Millisecond)
		}
		for r.engines[0].Active() != 0 {
			time.Sleep(time.Second)
		}
		if d := time.Since(began); d < Default().WriteTimeout || d > Default().WriteTimeout+2*time.Second {
			t.Errorf("given up after %v; want %v", d, Default().WriteTimeout)
		}
		if rec := r.last(); rec.Outcome() != "client_gone" || rec.Status != StatusClientGone || rec.Cause != "unread" {
			t.Errorf("recorded %+v", rec)
		}
		r.idle()
	})
}

// TestDeadlineDoesNotOutliveTheRequest keeps a connection beyond the write
// deadline of its first request.
func TestDeadlineDoesNotOutliveTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		for range 3 {
			if a := r.post(chatPath, chat("x", true)); a.err != nil || !strings.HasSuffix(a.body, doneChunk) {
				t.Errorf("got %q, %v", a.body, a.err)
			}
			time.Sleep(10 * time.Minute)
		}
		if n := r.net.Dials("gateway:80"); n != 1 {
			t.Errorf("%d connections; want 1", n)
		}
	})
}

func TestPanic(t *testing.T) {
	f := func(name string, panics *panicky, want func(answer) bool) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 1, func(s *setup) {
				s.deps = func(d *Deps) {
					panics.Recorder = d.Recorder
					d.Recorder = panics
				}
			})
			r.engines[0].Play(testkit.Act{Tokens: 5})
			if a := r.post(chatPath, chat("x", true)); !want(a) {
				t.Errorf("%s: got %d %q %v", name, a.status, a.body, a.err)
			}
			rec := r.last()
			if rec.Outcome() != "transient" || rec.Cause != "panic" {
				t.Errorf("%s: recorded %+v", name, rec)
			}
			if !strings.Contains(r.log.String(), "BUG: panic in a request") {
				t.Errorf("%s: nothing in the log: %s", name, r.log)
			}
			for v := range r.fleet.All() {
				if v.Results["transient"] != 0 {
					t.Errorf("%s: the instance was blamed", name)
				}
			}
			r.idle()
			panics.off = true
			if a := r.post(chatPath, chat("x", true)); a.status != 200 {
				t.Errorf("%s: afterwards: %d", name, a.status)
			}
		})
	}
	f("before anything", &panicky{inStarted: true}, func(a answer) bool {
		return a.status == 500 && strings.Contains(a.body, `"code":"internal_error"`)
	})
	f("in a stream", &panicky{}, func(a answer) bool {
		return a.status == 200 && strings.Contains(a.body, "t0 ") && strings.Contains(a.body, `"code":"internal_error"`)
	})
}

type panicky struct {
	Recorder

	inStarted, off bool
}

func (p *panicky) Started(m string) {
	p.Recorder.Started(m)
	if p.inStarted && !p.off {
		panic(errors.New("started"))
	}
}

func (p *panicky) Gap(m string, d time.Duration) {
	if !p.inStarted && !p.off {
		panic("gap")
	}
	p.Recorder.Gap(m, d)
}
