package sim

import (
	"testing"
	"time"
)

// testProfile has easy numbers: a step takes 10 ms, and 1 ms more for each 100 tokens.
func testProfile() Profile {
	return Profile{Name: "test", Weights: 10, OtherToken: 10, KVTokens: 1600, MaxBatchedTokens: 512, MaxSeqs: 8}
}

// newRequest makes a request whose prompt begins like that of any other with the same seed.
func newRequest(seed uint64, prompt, output int) *Request {
	return &Request{ID: seed, Prompt: chainOf(seed, prompt/BlockTokens), PromptTokens: prompt, OutputTokens: output, OutputSeed: seed}
}

func chainOf(seed uint64, n int) []uint64 {
	c := make([]uint64, n)
	for i := range c {
		c[i] = deriveBlock(seed, 7, i)
	}
	return c
}

// drive submits rs at their Arrived times, in order, and runs e until it is idle. It checks that no event is lost.
func drive(t *testing.T, e *Engine, rs ...*Request) []Event {
	t.Helper()
	var all []Event
	for _, r := range rs {
		at := r.Arrived
		for next, ok := e.NextEvent(); ok && next < at; next, ok = e.NextEvent() {
			all = append(all, advance(t, e, next)...)
		}
		if err := e.Submit(at, r); err != nil {
			t.Fatal(err)
		}
	}
	all = append(all, drain(t, e)...)
	checkConserved(t, e, all, rs)
	return all
}

func drain(t *testing.T, e *Engine) []Event {
	t.Helper()
	var all []Event
	for range 1_000_000 {
		next, ok := e.NextEvent()
		if !ok {
			return all
		}
		all = append(all, advance(t, e, next)...)
	}
	t.Fatal("engine does not come to rest")
	return nil
}

// advance goes to the time of NextEvent, which must not be later than what happens.
func advance(t *testing.T, e *Engine, next time.Duration) []Event {
	t.Helper()
	events := e.Advance(next)
	for _, ev := range events {
		if ev.At < next {
			t.Errorf("%v of request %d at %v; the next event was to be at %v", ev.Kind, ev.Req.ID, ev.At, next)
		}
	}
	return events
}

// checkConserved fails unless every request ended exactly once and nothing is held by an idle engine.
func checkConserved(t *testing.T, e *Engine, events []Event, rs []*Request) {
	t.Helper()
	ends := map[*Request]int{}
	last := time.Duration(0)
	for _, ev := range events {
		if ev.At < last {
			t.Errorf("event %v of %d at %v comes after %v", ev.Kind, ev.Req.ID, ev.At, last)
		}
		last = ev.At
		if ev.Kind == Done || ev.Kind == Aborted {
			ends[ev.Req]++
		}
		if ev.Kind == Done && ev.Tokens != ev.Req.OutputTokens {
			t.Errorf("request %d ended with %d tokens; want %d", ev.Req.ID, ev.Tokens, ev.Req.OutputTokens)
		}
	}
	for _, r := range rs {
		if ends[r] != 1 {
			t.Errorf("request %d ended %d times", r.ID, ends[r])
		}
	}
	checkAtRest(t, e)
}

func checkAtRest(t *testing.T, e *Engine) {
	t.Helper()
	s := e.Stats()
	if s.Running != 0 || s.Waiting != 0 || s.UsedBlocks != 0 {
		t.Errorf("idle engine has %d running, %d waiting, %d used blocks", s.Running, s.Waiting, s.UsedBlocks)
	}
	if e.decoders != 0 || e.context != 0 || len(e.finishes) != 0 || len(e.watchers) != 0 || e.aborting != 0 {
		t.Errorf("idle engine counts %d decoders, context %d, %d finishes, %d watchers, %d aborting",
			e.decoders, e.context, len(e.finishes), len(e.watchers), e.aborting)
	}
	checkPool(t, &e.pool)
}

// checkPool fails unless the pool's books agree with each other.
func checkPool(t *testing.T, p *pool) {
	t.Helper()
	free, used, cached := 0, 0, 0
	for id := p.blocks[0].next; id != 0; id = p.blocks[id].next {
		free++
		if p.blocks[id].refs != 0 {
			t.Errorf("block %d is free with %d references", id, p.blocks[id].refs)
		}
	}
	for id := 1; id < len(p.blocks); id++ {
		if p.blocks[id].refs > 0 {
			used++
		}
		if p.blocks[id].cached {
			cached++
			if p.find(p.blocks[id].key) == 0 {
				t.Errorf("cached block %d cannot be found", id)
			}
		}
	}
	if used != p.used || cached != p.cached || free != p.present()-p.used || p.present() > p.capacity {
		t.Errorf("pool has %d used, %d cached, %d free, %d present; its books say %d, %d, %d of %d",
			used, cached, free, p.present(), p.used, p.cached, p.present()-p.used, p.capacity)
	}
}
