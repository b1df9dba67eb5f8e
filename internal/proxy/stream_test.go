package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/testkit"
	"github.com/warmroute/warmroute/internal/upstream"
)

// script is a handler that writes events as they are, flushing each.
func script(events ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		rc := http.NewResponseController(w)
		for _, e := range events {
			_, _ = io.WriteString(w, e)
			_ = rc.Flush()
		}
	}
}

// served replaces engine i by a handler.
func served(handlers ...http.Handler) func(*setup) {
	return func(s *setup) {
		s.handlers = make(map[int]http.Handler)
		for i, h := range handlers {
			if h != nil {
				s.handlers[i] = h
			}
		}
	}
}

// Pieces of a stream.
const (
	roleChunk  = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}` + "\n\n"
	helloChunk = `data: {"choices":[{"index":0,"delta":{"content":"hello"}}]}` + "\n\n"
	worldChunk = `data: {"choices":[{"index":0,"delta":{"content":" world"}}]}` + "\n\n"
	stopChunk  = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	usageChunk = `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}` + "\n\n"
	doneChunk  = "data: [DONE]\n\n"
	errorChunk = `data: {"error":{"message":"boom","type":"internal_error","code":500}}` + "\n\n"
)

func TestStreamIsExact(t *testing.T) { // T11
	synctest.Test(t, func(t *testing.T) {
		stream := "\xEF\xBB\xBF: hi\r\n\r\n" + roleChunk + "event: x\r\ndata: {\"choices\":\r\ndata: [{\"index\":0,\"delta\":{\"content\":\"é\"}}]}\r\n\r\n" +
			": ping\n\n" + helloChunk + "id: 7\nretry: 10\n" + stopChunk + doneChunk
		r := newRig(t, 1, served(script(strings.SplitAfter(stream, "\n\n")...)))
		a := r.post(chatPath, chat("x", true))
		if a.body != stream {
			t.Errorf("got %q; want %q", a.body, stream)
		}
		for name, want := range map[string]string{
			"Content-Type": "text/event-stream", "X-Accel-Buffering": "no",
			"Cache-Control": "no-cache, no-transform", "Content-Encoding": "", "Content-Length": "",
		} {
			if got := a.header.Get(name); got != want {
				t.Errorf("%s: %q; want %q", name, got, want)
			}
		}
		r.idle()
	})
}

func TestEachEventIsFlushed(t *testing.T) { // T11
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, func(s *setup) { s.proxy.TTFTTimeout = 5 * time.Minute })
		r.engines[0].Play(testkit.Act{Before: time.Second, Gap: time.Minute, Tokens: 4})
		began := time.Now()
		resp, err := r.client.Do(r.request(chatPath, chat("x", true)))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		// The role-only chunk waits for the first content: the headers come with it.
		if d := time.Since(began); d != 61*time.Second {
			t.Errorf("headers after %v; want 61s", d)
		}
		lines := bufio.NewScanner(resp.Body)
		n := 0
		for lines.Scan() {
			if !strings.Contains(lines.Text(), `"content":"t`) {
				continue
			}
			n++
			if d, want := time.Since(began), time.Second+time.Duration(n)*time.Minute; d != want {
				t.Errorf("token %d after %v; want %v", n, d, want)
			}
		}
		if n != 4 {
			t.Errorf("got %d tokens; want 4", n)
		}
		rec := r.last()
		if ttft, ok := rec.TTFT(); !ok || ttft != 61*time.Second {
			t.Errorf("TTFT %v %v; want 61s", ttft, ok)
		}
		if r.books.gaps != 3 {
			t.Errorf("%d gaps; want 3", r.books.gaps)
		}
	})
}

func TestLongLine(t *testing.T) { // T07
	synctest.Test(t, func(t *testing.T) {
		long := `data: {"choices":[{"index":0,"delta":{"content":"` + strings.Repeat("x", 5<<20) + `"}}]}` + "\n\n"
		r := newRig(t, 1, served(script(roleChunk, long, stopChunk, doneChunk)))
		a := r.post(chatPath, chat("x", true))
		if want := roleChunk + long + stopChunk + doneChunk; a.body != want {
			t.Errorf("got %d bytes; want the %d of the engine", len(a.body), len(want))
		}
		if rec := r.last(); rec.Outcome() != "served" {
			t.Errorf("recorded %+v", rec)
		}
	})
}

func TestEventTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long := `data: {"choices":[{"index":0,"delta":{"content":"` + strings.Repeat("x", 8<<10) + `"}}]}` + "\n\n"
		small := func(s *setup) { s.proxy.EventBytes = 4 << 10 }
		r := newRig(t, 1, small, served(script(helloChunk, long)))
		a := r.post(chatPath, chat("x", true))
		if !strings.HasPrefix(a.body, helloChunk) || !strings.Contains(a.body, "stream_incomplete") {
			t.Errorf("got %q", a.body)
		}
		if rec := r.last(); rec.Outcome() != "truncated" || rec.Cause != causeEvent {
			t.Errorf("recorded %+v", rec)
		}
		r.idle()
	})
}

func TestTerminalMarkers(t *testing.T) { // T05
	f := func(name, outcome, suffix string, events ...string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 1, served(script(events...)))
			a := r.post(chatPath, chat("x", true))
			if a.status != 200 || !strings.HasPrefix(a.body, strings.Join(events, "")) && suffix == "" {
				t.Errorf("%s: got %d %q", name, a.status, a.body)
			}
			if !strings.HasSuffix(a.body, suffix) {
				t.Errorf("%s: got %q; want it to end in %q", name, a.body, suffix)
			}
			rec := r.last()
			if rec.Outcome() != outcome || rec.Status != 200 {
				t.Errorf("%s: recorded %d %s; want 200 %s", name, rec.Status, rec.Outcome(), outcome)
			}
			for v := range r.fleet.All() {
				if v.Results[outcome] != 1 {
					t.Errorf("%s: the instance counted %v; want one %s", name, v.Results, outcome)
				}
			}
			r.idle()
		})
	}
	const broken = `"code":"stream_incomplete"}}` + "\n\n"
	f("marker", "served", doneChunk, roleChunk, helloChunk, stopChunk, doneChunk)
	f("finish_reason alone", "served", stopChunk, roleChunk, helloChunk, stopChunk)
	f("marker alone", "served", doneChunk, helloChunk, doneChunk)
	f("marker without blank line", "served", doneChunk, helloChunk, "data: [DONE]\n")
	f("finish_reason without blank line", "served", stopChunk, helloChunk, strings.TrimRight(stopChunk, "\n"))
	f("no answer but an end", "served", doneChunk, roleChunk, stopChunk, doneChunk)
	f("nothing after content", "truncated", broken, roleChunk, helloChunk)
	f("half an event", "truncated", helloChunk+string(incompleteEvent), helloChunk, worldChunk[:20])
}

var incompleteEvent = []byte(`data: {"error":{"message":"The stream ended before the answer was complete.","type":"server_error","param":null,"code":"stream_incomplete"}}` + "\n\n")

func TestCutStream(t *testing.T) { // T05
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		r.engines[0].Play(testkit.Act{Fate: testkit.Cut})
		r.engines[1].Play(testkit.Act{Fate: testkit.Cut})
		a := r.post(chatPath, chat("x", true))
		if a.status != 200 || !strings.HasSuffix(a.body, string(incompleteEvent)) || strings.Count(a.body, "t0 ") != 1 {
			t.Errorf("got %d %q", a.status, a.body)
		}
		rec := r.last()
		if rec.Outcome() != "truncated" || rec.Cause != "reset" || rec.Attempts != 1 {
			t.Errorf("recorded %+v", rec)
		}
		if r.calls(0)+r.calls(1) != 1 {
			t.Error("a request was repeated after its commit")
		}
		r.idle()
	})
}

func TestCommitBoundary(t *testing.T) { // T08
	f := func(name string, first http.Handler, invisible bool) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			// The first attempt goes to whichever instance is chosen: the handler is the
			// first to be asked.
			asked := 0
			h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if asked++; asked == 1 {
					first.ServeHTTP(w, r)
					return
				}
				script(roleChunk, worldChunk, stopChunk, doneChunk)(w, r)
			})
			r := newRig(t, 2, served(h, h))
			a := r.post(chatPath, chat("x", true))
			const whole = roleChunk + worldChunk + stopChunk + doneChunk
			if invisible && (a.body != whole || asked != 2) {
				t.Errorf("%s: got %q after %d attempts; want only the second's", name, a.body, asked)
			}
			if !invisible && (strings.Contains(a.body, "world") || asked != 1) {
				t.Errorf("%s: got %q after %d attempts; want no second one", name, a.body, asked)
			}
			rec := r.last()
			if invisible != (rec.Outcome() == "served") || rec.Attempts != asked {
				t.Errorf("%s: recorded %+v", name, rec)
			}
			if invisible && (len(rec.Tries) != 1 || rec.Tries[0].Class != upstream.Transient || rec.Tries[0].Instance == rec.Instance) {
				t.Errorf("%s: recorded tries %+v on %s", name, rec.Tries, rec.Instance)
			}
			r.idle()
		})
	}
	f("an error as first event", script(errorChunk), true) // T10
	f("an error after the role", script(roleChunk, errorChunk), true)
	f("an error event by name", script("event: error\ndata: {\"message\":\"boom\"}\n\n"), true)
	f("llama.cpp's error line", script("error: {\"code\":500,\"message\":\"boom\"}\n\n"), true)
	f("nothing", script(), true)
	f("role and end", script(roleChunk), true)
	f("pings and end", script(": ping\n\n", ": ping\n\n"), true)
	f("half a first event", script(helloChunk[:30]), true)
	f("content", script(roleChunk, helloChunk), false)
	f("content and an error", script(helloChunk, errorChunk), false)
	f("a tool call's beginning", script(`data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":""}}]}}]}`+"\n\n"), false)
	f("reasoning", script(`data: {"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}`+"\n\n"), false)
}

func TestErrorIn200Body(t *testing.T) { // T10
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		for _, e := range r.engines {
			e.Play(testkit.ErrorIn200())
			e.Then = testkit.Act{Tokens: 2}
		}
		a := r.post(chatPath, chat("x", false))
		// Both were told to fail once; the second attempt fails too, and nobody is left.
		if e := errorOf(t, a.body); a.status != 502 || e.Code != "upstream_error" {
			t.Errorf("got %d %+v", a.status, e)
		}
		if a = r.post(chatPath, chat("x", false)); a.status != 200 || !strings.Contains(a.body, "t0 t1") {
			t.Errorf("got %d %s", a.status, a.body)
		}
		for v := range r.fleet.All() {
			if v.Results["transient"] != 1 {
				t.Errorf("%s counted %v; want one transient", v.Name, v.Results)
			}
		}
		r.idle()
	})
}

func TestErrorAfterContent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, served(script(helloChunk, errorChunk, doneChunk)))
		a := r.post(chatPath, chat("x", true))
		if want := helloChunk + errorChunk + doneChunk; a.body != want {
			t.Errorf("got %q; want %q: the engine's own words, and no second error", a.body, want)
		}
		if rec := r.last(); rec.Outcome() != "transient" || rec.Cause != causeError || rec.Status != 200 {
			t.Errorf("recorded %+v", rec)
		}
		r.idle()
	})
}

func TestClientErrorAsFirstEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		event := `data: {"error":{"message":"too long","type":"BadRequestError","code":400}}` + "\n\n"
		r := newRig(t, 2, served(script(event, doneChunk), script(event, doneChunk)))
		a := r.post(chatPath, chat("x", true))
		if a.body != event+doneChunk {
			t.Errorf("got %q", a.body)
		}
		if rec := r.last(); rec.Outcome() != "client" || rec.Attempts != 1 {
			t.Errorf("recorded %+v", rec)
		}
		r.idle()
	})
}

func TestHeldEventsAreBounded(t *testing.T) {
	f := func(name string, edit func(*setup), early ...string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			events := append(early, doneChunk)
			r := newRig(t, 1, edit, served(script(events...)))
			a := r.post(chatPath, chat("x", true))
			if a.body != strings.Join(events, "") {
				t.Errorf("%s: got %q", name, a.body)
			}
			r.idle()
		})
	}
	many := make([]string, 70)
	for i := range many {
		many[i] = fmt.Sprintf(": ping %d\n\n", i)
	}
	f("64 events", func(*setup) {}, many...)
	f("bytes", func(s *setup) { s.proxy.HeldBytes = 100 }, ": "+strings.Repeat("p", 200)+"\n\n", roleChunk)

	// Committed by the bound and then broken off: that is final.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, served(script(many...), script(many...)))
		a := r.post(chatPath, chat("x", true))
		if !strings.HasSuffix(a.body, string(incompleteEvent)) || strings.Count(a.body, ": ping 0\n") != 1 {
			t.Errorf("got %q", a.body)
		}
		if rec := r.last(); rec.Outcome() != "truncated" || rec.Attempts != 1 {
			t.Errorf("recorded %+v", rec)
		}
		r.idle()
	})
}

func TestUsageChunk(t *testing.T) { // T13
	f := func(name, options string, injected, seen bool) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			h := &keeper{Handler: script(roleChunk, helloChunk, stopChunk, usageChunk, doneChunk)}
			r := newRig(t, 1, served(h))
			body := `{"model":"m","messages":[],"stream":true` + options + `}`
			a := r.post(chatPath, body)
			want := roleChunk + helloChunk + stopChunk + doneChunk
			if seen {
				want = roleChunk + helloChunk + stopChunk + usageChunk + doneChunk
			}
			if a.body != want {
				t.Errorf("%s: got %q; want %q", name, a.body, want)
			}
			if injected == (h.body == body) || injected != strings.Contains(h.body, `"include_usage":true`) && !seen {
				t.Errorf("%s: the engine got %s", name, h.body)
			}
			rec := r.last()
			if !rec.UsageKnown || rec.PromptTokens != 9 || rec.OutputTokens != 2 || !rec.CachedKnown || rec.CachedTokens != 4 {
				t.Errorf("%s: recorded %+v", name, rec)
			}
		})
	}
	f("unset", ``, true, false)
	f("empty options", `,"stream_options":{}`, true, false)
	f("wanted", `,"stream_options":{"include_usage":true}`, false, true)
	f("refused", `,"stream_options":{"include_usage":false}`, false, true) // what comes though refused passes

	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		body := chat("x", false)
		r.post(chatPath, body)
		if got := string(r.engines[0].Calls()[0].Body); got != body {
			t.Errorf("not streamed: the engine got %s", got)
		}
		r.gateway.cfg.AskUsage = false
		r.post(chatPath, chat("x", true))
		if got := string(r.engines[0].Calls()[1].Body); got != chat("x", true) {
			t.Errorf("switched off: the engine got %s", got)
		}
	})
}

// keeper keeps the last body.
type keeper struct {
	http.Handler

	body string
}

func (k *keeper) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	k.body = string(b)
	k.Handler.ServeHTTP(w, r)
}

func TestUsageOptionRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			if asked++; bytes.Contains(b, []byte("stream_options")) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(422)
				_, _ = io.WriteString(w, `{"detail":[{"loc":["body","stream_options"],"msg":"extra fields not permitted"}]}`)
				return
			}
			script(helloChunk, stopChunk, doneChunk)(w, r)
		})
		r := newRig(t, 1, served(h))
		for i, want := range []int{2, 3} {
			if a := r.post(chatPath, chat("x", true)); a.status != 200 || a.body != helloChunk+stopChunk+doneChunk {
				t.Errorf("got %d %q", a.status, a.body)
			}
			if asked != want {
				t.Errorf("request %d: the engine was asked %d times; want %d", i, asked, want)
			}
		}
		// The client's own option is not ours to take out.
		if a := r.post(chatPath, `{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true}}`); a.status != 422 {
			t.Errorf("got %d", a.status)
		}
		r.idle()
	})
}

func TestNoChoicesNeverBreaks(t *testing.T) { // T13
	synctest.Test(t, func(t *testing.T) {
		stream := []string{`data: {"choices":[]}` + "\n\n", `data: {"choices":null}` + "\n\n", "data: {}\n\n", "data: 7\n\n", "data: nonsense\n\n", helloChunk, `data: {"choices":[]}` + "\n\n", stopChunk, doneChunk}
		r := newRig(t, 1, served(script(stream...)))
		if a := r.post(chatPath, chat("x", true)); a.body != strings.Join(stream, "") {
			t.Errorf("got %q", a.body)
		}
	})
}
