package index

import (
	"math"
	"testing"

	"github.com/warmroute/warmroute/prefix"
)

// settled is how many reports an instance's capacity may take to be learned.
const settled = 500

// wantLearned runs n requests and checks that the index believed to be cached what was, and knows the capacity (in tokens).
func (s *scene) wantLearned(t *testing.T, n, truth int) {
	t.Helper()
	ratio, tokens := s.window(n)
	if math.Abs(ratio-1) > 0.05 {
		t.Errorf("after %d reports the index expects %.3f of what is cached", s.reports, ratio)
	}
	if math.Abs(tokens/float64(truth)-1) > 0.12 {
		t.Errorf("after %d reports capacity is %.3f of the truth", s.reports, tokens/float64(truth))
	}
	checkIndex(t, s.x)
}

func TestLearnCapacity(t *testing.T) {
	f := func(seed uint64, truth int, start float64) {
		t.Helper()
		s := newScene(seed, truth)
		s.x.SetCapacity(0, int(start*float64(truth)/s.w.perBlock))
		s.run(settled)
		s.wantLearned(t, 400, truth)
		if n := s.x.insts[0].counts.flushes; n > 1 || n > 0 && start < 4 {
			t.Errorf("start %g: %d flushes", start, n)
		}
	}
	for _, start := range []float64{0, 0.25, 0.5, 1, 2, 4} {
		f(1, 128_000, start)
		f(2, 256_000, start)
	}
}

func TestLearnChange(t *testing.T) {
	f := func(start int, change func(*scene), truth int) {
		t.Helper()
		s := newScene(3, start)
		s.run(2 * settled)
		s.wantLearned(t, 200, start)
		change(s)
		s.run(settled)
		s.wantLearned(t, 400, truth)
	}
	f(256_000, func(s *scene) { s.e.resize(128_000) }, 128_000)
	f(128_000, func(s *scene) { s.e.resize(256_000) }, 256_000)
	f(192_000, func(s *scene) { s.restart() }, 192_000)
	f(192_000, func(s *scene) { s.x.SetCapacity(0, 192_000/64*2) }, 192_000)
}

// TestLearnRestart restarts an engine that reports, and nobody says so.
func TestLearnRestart(t *testing.T) {
	s := newScene(4, 192_000)
	s.overlap = 0 // every request ends before the next begins
	s.run(2 * settled)
	before := s.capacity()
	flushes := s.x.insts[0].counts.flushes
	s.restart()
	known, n := s.x.insts[0].held, 0
	for ; s.x.insts[0].counts.flushes == flushes && n < 20; n++ {
		s.run(1) // a request for what the index never saw, or takes for evicted, says nothing of a restart
	}
	if s.x.insts[0].counts.flushes == flushes || s.x.insts[0].held > known/10 {
		t.Errorf("after %d reports %d of %d blocks are still known", n, s.x.insts[0].held, known)
	}
	if after := s.capacity(); math.Abs(after/before-1) > 0.1 {
		t.Errorf("the restart changed the capacity from %.0f to %.0f", before, after)
	}
	s.wantLearned(t, 400, 192_000)
}

// TestLearnRestartOneReport has one confirmed young prefix and an engine that lost it.
func TestLearnRestartOneReport(t *testing.T) {
	x := newIndex(1)
	x.SetCapacity(0, 1000)
	serve(x, 0, rising(5000, 60))
	serve(x, 0, rising(0, 40))
	var p, q Placement
	x.Place(0, rising(0, 40), &p)
	x.Confirm(&p)
	x.Place(0, rising(9000, 20), &q) // after the restart
	x.Learn(&p, Report{CachedBlocks: 0})
	wantHeld(t, x, rising(5000, 60), Held{})
	wantHeld(t, x, rising(0, 40), Held{40, 40}) // p brought them back
	wantHeld(t, x, rising(9000, 20), Held{20, 20})
	if got := x.insts[0].learn.capacity; got != 1000 {
		t.Errorf("capacity %g, want 1000", got)
	}
	x.Finish(&p, nil)
	x.TakeBack(&q)
	wantHeld(t, x, rising(9000, 20), Held{})
}

// TestLearnTwins has requests of one new prefix in one step, all of which miss.
func TestLearnTwins(t *testing.T) {
	x := newIndex(1)
	x.SetCapacity(0, 1000)
	serve(x, 0, rising(5000, 60))
	f := func(c prefix.Chain) {
		t.Helper()
		twins := make([]Placement, 5)
		for i := range twins {
			x.Place(0, c, &twins[i])
		}
		for i := range twins {
			x.Confirm(&twins[i])
		}
		for i := range twins {
			x.Learn(&twins[i], Report{CachedBlocks: 0})
			x.Finish(&twins[i], nil)
		}
		if l := x.insts[0].learn; l.capacity != 1000 || x.insts[0].counts.flushes != 0 {
			t.Errorf("learned %+v, %d flushes", l, x.insts[0].counts.flushes)
		}
		wantHeld(t, x, rising(5000, 60), Held{60, 60})
	}
	f(rising(0, 40))
	f(rising(100, 400))
}

// TestLearnEvictedTwins has requests in one step of a prefix that the engine evicted long ago: the first says so, the others nothing.
func TestLearnEvictedTwins(t *testing.T) {
	x := newIndex(1)
	x.SetCapacity(0, 1000)
	serve(x, 0, rising(0, 40))
	for i := range 20 {
		serve(x, 0, rising(1000*(i+1), 40))
	}
	twins := make([]Placement, 3)
	for i := range twins {
		x.Place(0, rising(0, 40), &twins[i])
	}
	for i := range twins {
		x.Confirm(&twins[i])
		x.Finish(&twins[i], nil)
		x.Learn(&twins[i], Report{CachedBlocks: 0})
	}
	l := x.insts[0].learn
	if l.capacity < 900 || l.capacity >= 1000 || x.insts[0].counts.flushes != 0 {
		t.Errorf("learned %+v, %d flushes; want a little less than 1000, none", l, x.insts[0].counts.flushes)
	}
}

// TestLearnSilent has an engine that never reports: everything stays as it was told.
func TestLearnSilent(t *testing.T) {
	f := func(told int, want int) {
		t.Helper()
		s := newScene(5, 128_000)
		s.silent = true
		s.x.SetCapacity(0, told)
		s.run(600)
		checkIndex(t, s.x)
		if got := s.x.insts[0].learn.blocks(); got != want {
			t.Errorf("capacity %d, want %d", got, want)
		}
	}
	f(0, unknown)
	f(2000, 2000)
}

// TestLearnCacheOff has an engine without prefix caching, which always reports 0.
func TestLearnCacheOff(t *testing.T) {
	f := func(told int) {
		t.Helper()
		s := newScene(6, 128_000)
		s.e.off = true
		s.x.SetCapacity(0, told)
		s.run(60)
		s.expected = 0
		s.run(300)
		if mean := s.expected / 300; mean > 1 {
			t.Errorf("told %d: a request is expected to hit %.2f blocks of an engine that caches nothing", told, mean)
		}
		s.e.off = false
		s.run(settled)
		s.wantLearned(t, 400, 128_000)
	}
	f(0)
	f(2000)
	f(20_000)
}

// TestLearnGhost says that what the index takes for evicted is still known, so that a report can prove it wrong.
func TestLearnGhost(t *testing.T) {
	x := newIndex(1)
	x.SetCapacity(0, 50)
	serve(x, 0, rising(0, 40))
	serve(x, 0, rising(1000, 40))
	wantHeld(t, x, rising(0, 40), Held{10, 40})
	var p Placement
	x.Place(0, rising(0, 40), &p)
	x.Confirm(&p)
	x.Learn(&p, Report{CachedBlocks: 40, Slack: 0.1})
	if got := x.insts[0].learn.capacity; got <= 60 || got > 80 {
		t.Errorf("capacity %g after 79 blocks were seen to fit", got)
	}
	x.Learn(&p, Report{CachedBlocks: 0}) // a second report of one placement is no news
	if got := x.insts[0].counts.reports; got != 1 {
		t.Errorf("%d reports, want 1", got)
	}
}

// TestEvidence checks which needs a report proves.
func TestEvidence(t *testing.T) {
	x := newIndex(1)
	serve(x, 0, rising(0, 10)) // needs 1 to 10 by the end: 10 leading blocks last touched by the first request
	serve(x, 0, rising(0, 4))
	var p Placement
	x.Place(0, rising(0, 20), &p)
	f := func(cached, slack float64, alive, dead int) {
		t.Helper()
		a, d, _ := p.evidence(Report{CachedBlocks: cached, Slack: slack}, 0)
		if a != alive || d != dead {
			t.Errorf("%g +- %g: alive %d, dead %d; want %d, %d", cached, slack, a, d, alive, dead)
		}
	}
	f(0, 0.1, 0, 2)
	f(0, 2, 0, 3)
	f(4, 0.1, 3, 6)
	f(4, 1, 3, 6)
	f(6.5, 1, 5, 9)
	f(8, 1.5, 6, 0) // what was not cached is too near to the end of what is known
	f(10, 1, 9, 0)
	f(30, 1, 10, 0)
}

func TestTokenReport(t *testing.T) {
	f := func(cached, prompt int, bytes int64, blocks, slack float64) {
		t.Helper()
		r := TokenReport(cached, prompt, bytes, 256)
		if math.Abs(r.CachedBlocks-blocks) > 0.01 || math.Abs(r.Slack-slack) > 0.01 {
			t.Errorf("%d of %d tokens, %d bytes: %+v; want %g, %g", cached, prompt, bytes, r, blocks, slack)
		}
	}
	f(0, 100, 400, 0, 0)
	f(10, 0, 400, 0, 0)
	f(6400, 6400, 25600, 100, 1.25)
	f(3200, 6400, 25600, 50, 5)
	f(9999, 6400, 25600, 100, 1.25)
}

// TestLearnTold repeats what is known of the capacity, as scrapes do.
func TestLearnTold(t *testing.T) {
	x := newIndex(1)
	f := func(blocks int, want float64) {
		t.Helper()
		x.SetCapacity(0, blocks)
		if got := x.insts[0].learn.capacity; got != want {
			t.Errorf("told %d: capacity %g, want %g", blocks, got, want)
		}
	}
	f(1000, 1000)
	x.insts[0].learn.capacity = 1100
	f(1000, 1100)
	f(1050, 1100) // the bytes per token drifted
	f(0, 1100)
	f(-1, 1100)
	f(1300, 1300)
	f(1000, 1300)
	f(700, 700)
	x.SetCapacity(3, 7)
}
