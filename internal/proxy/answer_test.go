package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/testkit"
)

func TestOtherStreams(t *testing.T) {
	lines := func(cut bool) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/x-ndjson")
			rc := http.NewResponseController(w)
			for i := range 3 {
				fmt.Fprintf(w, "{\"n\":%d}\n", i)
				_ = rc.Flush()
				time.Sleep(time.Second)
			}
			if cut {
				panic(http.ErrAbortHandler)
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, served(lines(false)))
		a := r.post(chatPath, chat("x", true))
		if a.body != "{\"n\":0}\n{\"n\":1}\n{\"n\":2}\n" || a.header.Get("Content-Type") != "application/x-ndjson" || a.header.Get("X-Accel-Buffering") != "no" {
			t.Errorf("got %q %v", a.body, a.header)
		}
		if rec := r.last(); rec.Outcome() != "served" {
			t.Errorf("recorded %+v", rec)
		}
		r.idle()
	})
	synctest.Test(t, func(t *testing.T) { // packed events are other bytes
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(w, "\x1f\x8bpacked")
		})
		r := newRig(t, 1, served(h))
		if a := r.post(chatPath, chat("x", true)); a.body != "\x1f\x8bpacked" || a.header.Get("Content-Encoding") != "gzip" {
			t.Errorf("got %q %v", a.body, a.header)
		}
		r.idle()
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, served(lines(true)))
		a := r.post(chatPath, chat("x", true))
		if a.err == nil {
			t.Errorf("got %q and a clean end; want a broken connection", a.body)
		}
		if rec := r.last(); rec.Outcome() != "truncated" {
			t.Errorf("recorded %+v", rec)
		}
		r.idle()
	})
}

func TestLongAnswerPassesUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long := `{"data":"` + strings.Repeat("x", 50<<10) + `"}`
		cut := false
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/json")
			if cut {
				w.Header().Set("Content-Length", "100000")
			}
			_, _ = io.WriteString(w, long)
		})
		r := newRig(t, 1, served(h), func(s *setup) { s.proxy.AnswerBytes = 4 << 10 })
		if a := r.post("/v1/embeddings", `{"model":"m","input":"x"}`); a.body != long || a.status != 200 {
			t.Errorf("got %d bytes", len(a.body))
		}
		cut = true
		a := r.post("/v1/embeddings", `{"model":"m","input":"x"}`)
		if a.err == nil {
			t.Error("a cut answer ended cleanly")
		}
		if rec := r.last(); rec.Outcome() != "truncated" {
			t.Errorf("recorded %+v", rec)
		}
		r.idle()
	})
}

func TestAnswerCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		r.engines[0].Play(testkit.Act{Fate: testkit.Cut})
		r.engines[1].Play(testkit.Act{Fate: testkit.Cut})
		a := r.post(chatPath, chat("x", false))
		if e := errorOf(t, a.body); a.status != 502 || e.Code != "upstream_error" {
			t.Errorf("got %d %+v", a.status, e)
		}
		if rec := r.last(); rec.Attempts != 2 {
			t.Errorf("recorded %+v", rec)
		}
		if a = r.post(chatPath, chat("x", false)); a.status != 200 {
			t.Errorf("got %d", a.status)
		}
		r.idle()
	})
}
