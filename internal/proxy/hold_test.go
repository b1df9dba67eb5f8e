package proxy

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/testkit"
)

// timeline sends requests at the given times, in milliseconds, and returns their
// records.
func (r *rig) timeline(bodies map[int]string) map[int]Record {
	var wg sync.WaitGroup
	for at, body := range bodies {
		wg.Go(func() {
			time.Sleep(time.Duration(at) * time.Millisecond)
			r.post(chatPath, body, "X-Request-Id", strconv.Itoa(at))
		})
	}
	wg.Wait()
	synctest.Wait()
	out := make(map[int]Record)
	for _, rec := range r.books.records {
		if at, err := strconv.Atoi(rec.ID); err == nil {
			out[at] = rec
		}
	}
	return out
}

func TestLateBinding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, always(testkit.Act{Before: time.Second, Gap: 0}))
		got := r.timeline(map[int]string{
			0:   chat(long("one", 12_000), true), // fills the step until its first token at 1 s
			100: chat(long("two", 12_000), true), // waits for that, and for the next
			200: chat(long("mid", 4_000), true),  // waits too, but passes: it is shorter
		})
		for at, held := range map[int]time.Duration{0: 0, 100: 1900 * time.Millisecond, 200: 800 * time.Millisecond} {
			if rec := got[at]; rec.Held != held || rec.Attempts != 1 {
				t.Errorf("request %d was held %v; want %v: %+v", at, rec.Held, held, rec)
			}
		}
		if got[100].Overhead != 0 {
			t.Errorf("overhead %v; want none but the time held", got[100].Overhead)
		}
		r.idle()
	})
	// Nothing comes free: the hold ends after two seconds.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, always(testkit.Act{Before: 20 * time.Second}))
		got := r.timeline(map[int]string{0: chat(long("one", 12_000), true), 100: chat(long("two", 12_000), true)})
		if rec := got[100]; rec.Held != 2*time.Second || rec.Status != 200 {
			t.Errorf("held %v; want 2s: %+v", rec.Held, rec)
		}
		r.idle()
	})
	// The choice is made again: what comes free takes it.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		r.engines[0].Then = testkit.Act{Before: time.Second}
		r.engines[1].Then = testkit.Act{Before: 1500 * time.Millisecond}
		got := r.timeline(map[int]string{
			0: chat(long("one", 12_000), true), 1: chat(long("two", 12_000), true), 100: chat(long("three", 12_000), true),
		})
		if rec := got[100]; rec.Held > 901*time.Millisecond || rec.Instance != "e0" {
			t.Errorf("held %v, then on %s; want 900ms on the one that came free: %+v", rec.Held, rec.Instance, rec)
		}
		r.idle()
	})
}

// TestWholeAnswersAreNotPrefillForEver has long answers that do not stream: they
// must not look like prompts that are still being read.
func TestWholeAnswersAreNotPrefillForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, always(testkit.Act{Before: 30 * time.Second}))
		bodies := map[int]string{}
		for i := range 10 {
			bodies[2000*i] = chat(long(fmt.Sprint("document ", i), 6000), false)
		}
		for at, rec := range r.timeline(bodies) {
			if rec.Held > 0 || rec.Status != 200 {
				t.Errorf("request %d: %d, held %v; want it sent at once", at, rec.Status, rec.Held)
			}
		}
		r.idle()
	})
}

// TestFastEnginesAreNotHeldFor has an engine of which nothing is known, and which
// turns out to read prompts in less time than holding one would save.
func TestFastEnginesAreNotHeldFor(t *testing.T) {
	f := func(stream bool) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 1, always(testkit.Act{Before: 4 * time.Millisecond}))
			bodies := map[int]string{}
			for i := range 8 {
				bodies[100*i] = chat(long(fmt.Sprint("document ", i), 12_000), stream)
			}
			for i := range 3 {
				bodies[1000+i] = chat(long(fmt.Sprint("burst ", i), 12_000), stream)
			}
			for at, rec := range r.timeline(bodies) {
				if rec.Held > 0 || rec.Status != 200 {
					t.Errorf("stream %v: request %d: %d, held %v; want it sent at once", stream, at, rec.Status, rec.Held)
				}
			}
			r.idle()
		})
	}
	f(true)
	f(false)
}

func TestQueue(t *testing.T) {
	one := func(s *setup) {
		s.instance = func(_ int, c *fleet.InstanceConfig) { c.MaxInflight = 1 }
		s.proxy.QueueLength = 2
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, one, always(testkit.Act{Before: 3 * time.Second}))
		got := r.timeline(map[int]string{0: chat("a", true), 10: chat("b", true), 20: chat("c", true), 30: chat("d", true)})
		for at, want := range map[int]struct {
			status int
			held   time.Duration
		}{0: {200, 0}, 10: {200, 2990 * time.Millisecond}, 20: {200, 5980 * time.Millisecond}, 30: {429, 0}} {
			if rec := got[at]; rec.Status != want.status || rec.Held != want.held {
				t.Errorf("request %d: %d, held %v; want %d, %v", at, rec.Status, rec.Held, want.status, want.held)
			}
		}
		if rec := got[30]; rec.Outcome() != "capacity" || rec.Reason != "all_full" {
			t.Errorf("recorded %+v", rec)
		}
		r.idle()
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, one, always(testkit.Act{Before: 25 * time.Second}))
		got := r.timeline(map[int]string{0: chat("a", true), 10: chat("b", true)})
		if rec := got[10]; rec.Status != 429 || rec.Held != 10*time.Second {
			t.Errorf("got %d after %v; want 429 after queue_time, 10s", rec.Status, rec.Held)
		}
		r.idle()
	})
}

func TestRefusalAsksToComeBack(t *testing.T) { // T29
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, always(testkit.Act{Before: 25 * time.Second}), func(s *setup) {
			s.instance = func(_ int, c *fleet.InstanceConfig) { c.MaxInflight = 1 }
			s.proxy.QueueTime = 0
		})
		go r.post(chatPath, chat("a", true))
		time.Sleep(time.Second)
		a := r.post(chatPath, chat("b", true))
		if e := errorOf(t, a.body); a.status != 429 || e.Code != "overloaded" || e.Type != "rate_limit_error" || a.header.Get("Retry-After") == "" {
			t.Errorf("got %d %+v, Retry-After %q", a.status, e, a.header.Get("Retry-After"))
		}
		time.Sleep(time.Minute)
	})
}

func TestOverloadIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, always(testkit.Act{Before: time.Minute}), func(s *setup) {
			s.route.TTFTBudget, s.route.MaxHold = time.Second, 0
		})
		go r.post(chatPath, chat(long("a", 30_000), true))
		time.Sleep(time.Second)
		a := r.post(chatPath, chat(long("b", 30_000), true))
		if e := errorOf(t, a.body); a.status != 429 || e.Code != "overloaded" || a.header.Get("Retry-After") == "" {
			t.Errorf("got %d %+v, Retry-After %q", a.status, e, a.header.Get("Retry-After"))
		}
		if rec := r.last(); rec.Reason != "overload" || rec.Outcome() != "capacity" || rec.Attempts != 0 {
			t.Errorf("recorded %+v", rec)
		}
		time.Sleep(2 * time.Minute)
		r.idle()
	})
}

func TestClientGoneWhileHeld(t *testing.T) { // T01
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, always(testkit.Act{Before: 5 * time.Second}), func(s *setup) {
			s.instance = func(_ int, c *fleet.InstanceConfig) { c.MaxInflight = 1 }
		})
		go r.post(chatPath, chat("a", true))
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.client.Do(r.request(chatPath, chat("b", true)).WithContext(ctx)); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
		rec := r.last()
		if rec.Status != StatusClientGone || rec.Held != time.Second || rec.Attempts != 0 || rec.Outcome() != "client_gone" {
			t.Errorf("recorded %+v", rec)
		}
		if n := r.gateway.Held(); n != 0 {
			t.Errorf("%d are held; want 0 at once", n)
		}
		time.Sleep(10 * time.Second)
		if n := r.calls(0); n != 1 {
			t.Errorf("the engine got %d requests; want 1", n)
		}
		r.idle()
	})
}

func TestHeldRequestSeesANewInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, always(testkit.Act{Before: 5 * time.Second}), func(s *setup) {
			s.pool = func(p *fleet.PoolConfig) { p.Instances = p.Instances[:1] }
			s.instance = func(_ int, c *fleet.InstanceConfig) { c.MaxInflight = 1 }
		})
		go r.post(chatPath, chat("a", true))
		time.Sleep(time.Second)
		go r.post(chatPath, chat("b", true), "X-Request-Id", "b")
		time.Sleep(100 * time.Millisecond)
		r.setup.pool = nil
		if err := r.fleet.Apply(r.pools(r.setup)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if rec := r.last(); rec.ID != "b" || rec.Instance != "e1" || rec.Held > 500*time.Millisecond {
			t.Errorf("recorded %+v; want it on the new instance", rec)
		}
		r.idle()
	})
}

func TestPauseEndsByTime(t *testing.T) {
	// One instance is full and one rests: a held request goes to the one that has
	// rested, though nothing happens at that moment.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, func(s *setup) { s.instance = func(_ int, c *fleet.InstanceConfig) { c.MaxInflight = 1 } })
		for _, e := range r.engines {
			e.Play(testkit.Busy("3"))
			e.Then = testkit.Act{Before: 30 * time.Second}
		}
		r.engines[0].Play()
		got := r.timeline(map[int]string{0: chat("a", true), 10: chat("b", true), 20: chat("c", true)})
		for _, at := range []int{0, 10, 20} {
			if rec := got[at]; rec.Status != 200 && rec.Status != 429 {
				t.Errorf("request %d: %+v", at, rec)
			}
		}
		served := 0
		for _, rec := range got {
			if rec.Status == 200 {
				served++
			}
		}
		if served < 2 {
			t.Errorf("%d of 3 were served; want both instances used", served)
		}
		r.idle()
	})
}
