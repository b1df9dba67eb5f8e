package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/index"
	"github.com/warmroute/warmroute/internal/testkit"
	"github.com/warmroute/warmroute/internal/upstream"
)

// leave sends a request and gives it up after a while.
func (r *rig) leave(body string, after time.Duration) {
	ctx, cancel := context.WithTimeout(r.t.Context(), after)
	defer cancel()
	resp, err := r.client.Do(r.request(chatPath, body).WithContext(ctx))
	if err != nil {
		if !errors.Is(err, context.DeadlineExceeded) {
			r.t.Errorf("post: %v", err)
		}
		return
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
}

func TestClientGoneBeforeFirstByte(t *testing.T) { // T01, A40
	f := func(name string, act testkit.Act, stream bool) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 2)
			for _, e := range r.engines {
				e.Play(act)
			}
			left := time.Now().Add(3 * time.Second)
			r.leave(chat(strings.Repeat("x", 3000), stream), 3*time.Second)
			rec := r.last()
			if rec.Status != StatusClientGone || rec.Outcome() != "client_gone" || rec.Attempts != 1 {
				t.Errorf("%s: recorded %+v", name, rec)
			}
			calls := append(r.engines[0].Calls(), r.engines[1].Calls()...)
			if len(calls) != 1 {
				t.Fatalf("%s: %d requests reached engines; want 1", name, len(calls))
			}
			if late := calls[0].Gone.Sub(left); calls[0].Gone.IsZero() || late > time.Second {
				t.Errorf("%s: the engine saw the client leave %v late", name, late)
			}
			for v := range r.fleet.All() {
				if n := v.Results["transient"] + v.Results["truncated"] + v.Results["served"]; n != 0 || v.Breaker != "closed" {
					t.Errorf("%s: %s counted %v", name, v.Name, v.Results)
				}
			}
			if s := r.index.Stats(); s.Blocks != 0 {
				t.Errorf("%s: the index keeps %d blocks of a prompt that was never prefilled", name, s.Blocks)
			}
			r.idle()
		})
	}
	f("before the headers", testkit.Act{Fate: testkit.HangEarly}, true)
	f("before the headers, whole", testkit.Act{Fate: testkit.HangEarly}, false)
	f("after the headers", testkit.Act{Gap: time.Hour}, true)
	f("in the middle of a whole answer", testkit.Act{Fate: testkit.Hang}, false)
}

func TestClientGoneMidStream(t *testing.T) { // A40
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		r.engines[0].Play(testkit.Act{Tokens: 100, Gap: time.Second})
		left := time.Now().Add(10*time.Second + time.Millisecond)
		r.leave(chat(strings.Repeat("x", 3000), true), 10*time.Second+time.Millisecond)
		rec := r.last()
		if rec.Status != StatusClientGone || rec.OutputTokens != 10 || rec.Outcome() != "client_gone" {
			t.Errorf("recorded %+v", rec)
		}
		if late := r.engines[0].Calls()[0].Gone.Sub(left); late > time.Second {
			t.Errorf("the engine saw the client leave %v late", late)
		}
		if s := r.index.Stats(); s.Blocks == 0 {
			t.Error("the index forgot a prompt that is there")
		}
		r.idle()
	})
}

// TestThousandKilledClients has clients that leave at every moment of a request;
// nothing may be left of them.
func TestThousandKilledClients(t *testing.T) { // A13, T02
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, func(s *setup) {
			s.instance = func(_ int, c *fleet.InstanceConfig) { c.MaxInflight = 50 } // so that some are killed in the queue
		})
		for _, e := range r.engines {
			e.Then = testkit.Act{Before: 2 * time.Second, Gap: 100 * time.Millisecond, Tokens: 50}
		}
		prompt := strings.Repeat("shared beginning ", 100)
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 7 * time.Millisecond)
				r.leave(chat(prompt+strings.Repeat("y", i), i%5 != 0), time.Duration(i%83)*97*time.Millisecond)
			})
		}
		wg.Wait()
		r.idle()
		if n := len(r.books.records); n < 900 || n > 1000 {
			t.Errorf("%d records; want one for each request that arrived, nearly 1000", n)
		}
		for _, rec := range r.books.records {
			if o := rec.Outcome(); o != "client_gone" && o != "served" {
				t.Errorf("recorded %+v", rec)
				break
			}
		}
		for v := range r.fleet.All() {
			if v.Leases != 0 || v.Breaker != "closed" {
				t.Errorf("%s: %d leases, breaker %s", v.Name, v.Leases, v.Breaker)
			}
		}
	})
}

// TestClientGoneOnSockets has the kernel between client, gateway and engine.
func TestClientGoneOnSockets(t *testing.T) { // T01, A40
	gone := make(chan time.Time, 1)
	arrived := make(chan struct{}, 1)
	engine := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		arrived <- struct{}{}
		<-r.Context().Done()
		gone <- time.Now()
	}))
	defer engine.Close()
	up, err := upstream.New(upstream.Default(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	rt, err := up.Instance(upstream.Target{Name: "e", URL: engine.URL})
	if err != nil {
		t.Fatal(err)
	}
	g, _ := direct(t, Default(), rt.RoundTrip)
	gateway := httptest.NewServer(g)
	defer gateway.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway.URL+chatPath, strings.NewReader(chat("x", false)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	var left time.Time
	go func() {
		<-arrived
		left = time.Now()
		cancel()
	}()
	resp, err := gateway.Client().Do(req)
	if err == nil {
		resp.Body.Close()
		t.Fatal("an answer, though the client left")
	}
	if late := (<-gone).Sub(left); late > time.Second {
		t.Errorf("the engine saw the client leave %v late", late)
	}
}

func TestRemovedInstanceEndsWhatRunsThere(t *testing.T) { // A19, A44
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, func(s *setup) { s.fleet.DrainGrace = time.Minute })
		r.engines[0].Play(testkit.Act{Tokens: 100, Gap: 10 * time.Second})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() { _ = r.fleet.Run(ctx) })
		resp, err := r.client.Do(r.request(chatPath, chat(strings.Repeat("x", 3000), true)))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		lines.Scan()
		if err := r.fleet.Apply(nil); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if a := r.post(chatPath, chat("x", true)); a.status != 404 {
			t.Errorf("a request for the removed pool: %d", a.status)
		}
		var tail strings.Builder
		for lines.Scan() {
			tail.WriteString(lines.Text())
		}
		if d := time.Since(began); d < time.Minute || d > time.Minute+time.Second {
			t.Errorf("the stream ended after %v; want the drain grace, 1m", d)
		}
		if !strings.Contains(tail.String(), "stream_incomplete") {
			t.Errorf("the stream ended in %q", tail.String())
		}
		synctest.Wait()
		if s := r.index.Stats(); s.Blocks != 0 {
			t.Errorf("the index keeps %d blocks of an instance that has left", s.Blocks)
		}
		if held := r.index.Match(nil, nil); len(held) > 1 || len(held) == 1 && held[0] != (index.Held{}) {
			t.Errorf("a ghost holds %v", held)
		}
		r.idle()
		cancel()
		wg.Wait()
	})
}
