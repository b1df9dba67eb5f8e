package sim

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type brief struct {
	ID     uint64
	Kind   string
	MS     int
	Tokens int
}

func briefs(events []Event) []brief {
	var bs []brief
	for _, ev := range events {
		bs = append(bs, brief{ev.Req.ID, ev.Kind.String(), int(math.Round(float64(ev.At) / 1e6)), ev.Tokens})
	}
	return bs
}

func TestEngine_EventsOfOneRequest(t *testing.T) {
	r := newRequest(1, 100, 3)
	r.TokenEvery = 1
	got := briefs(drive(t, NewEngine(testProfile(), Options{}), r))
	want := []brief{{1, "first", 11, 1}, {1, "token", 21, 2}, {1, "token", 31, 3}, {1, "done", 31, 3}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// Nothing happens between the first and the last token, and NextEvent knows when that is.
func TestEngine_SkipsDecodeSteps(t *testing.T) {
	p := testProfile()
	p.DecodeAttention = 4000
	e := NewEngine(p, Options{})
	if err := e.Submit(0, newRequest(1, 100, 400)); err != nil {
		t.Fatal(err)
	}
	calls := 0
	for next, ok := e.NextEvent(); ok; next, ok = e.NextEvent() {
		advance(t, e, next)
		calls++
	}
	if s := e.Stats(); calls != 3 || s.Steps != 400 {
		t.Errorf("%d calls for %d steps; want 3 for 400", calls, s.Steps)
	}
}

func TestEngine_ChunkedPrefill(t *testing.T) {
	// 1000 tokens in chunks of 512 and 488; the second shares the step with nothing.
	r := newRequest(1, 1000, 1)
	drive(t, NewEngine(testProfile(), Options{}), r)
	if want := 30 * time.Millisecond; r.First != want || r.Done != want {
		t.Errorf("first %v, done %v; want %v", r.First, r.Done, want)
	}
}

func TestEngine_DecodesGoFirst(t *testing.T) {
	// The second prompt arrives while the first decodes: its chunks are one token shorter than a step.
	var loads []Load
	e := NewEngine(testProfile(), Options{OnStep: func(s Step) { loads = append(loads, Load{Prefill: s.Prefill, Decodes: s.Decodes}) }})
	a, b := newRequest(1, 16, 5), newRequest(2, 1000, 1)
	b.Arrived = 15 * time.Millisecond
	drive(t, e, a, b)
	want := []Load{{Prefill: 16}, {Decodes: 1}, {Prefill: 511, Decodes: 1}, {Prefill: 489, Decodes: 1}, {Decodes: 1}}
	if d := cmp.Diff(want, loads); d != "" {
		t.Error(d)
	}
}

func TestEngine_HitsAfterFinish(t *testing.T) {
	f := func(prompt, want int) {
		t.Helper()
		e := NewEngine(testProfile(), Options{})
		first := newRequest(1, 160, 20)
		drive(t, e, first)
		next := newRequest(1, prompt, 1)
		next.Prompt = first.Chain(nil, 20, BlockTokens)
		for len(next.Prompt) < prompt/BlockTokens {
			next.Prompt = append(next.Prompt, deriveBlock(99, 9, len(next.Prompt)))
		}
		next.Prompt = next.Prompt[:prompt/BlockTokens]
		next.Arrived = time.Second
		if got := e.Cached(next.Prompt, prompt); got != want {
			t.Errorf("prompt of %d: oracle says %d cached; want %d", prompt, got, want)
		}
		drive(t, e, next)
		if next.Cached != want {
			t.Errorf("prompt of %d: %d cached; want %d", prompt, next.Cached, want)
		}
	}
	f(160, 144) // the whole prompt is there, but the last token is computed again
	f(161, 160)
	f(170, 160)
	// 160 + 20 tokens fill 11 blocks, since the last token's KV is never computed: 179 tokens.
	f(180, 176)
	f(400, 176)
	f(15, 0)
}

func TestEngine_LastOutputTokenIsNotCached(t *testing.T) {
	f := func(output, want int) {
		t.Helper()
		e := NewEngine(testProfile(), Options{})
		r := newRequest(1, 160, output)
		drive(t, e, r)
		if got := e.Cached(r.Chain(nil, output, BlockTokens), 1000); got != want {
			t.Errorf("%d output tokens: %d cached; want %d", output, got, want)
		}
	}
	f(16, 160)
	f(17, 176)
	f(32, 176)
	f(33, 192)
}

func TestEngine_Siblings(t *testing.T) {
	f := func(share bool, gap time.Duration, wantCached int) {
		t.Helper()
		e := NewEngine(testProfile(), Options{ShareInStep: share})
		a, b := newRequest(1, 160, 2), newRequest(1, 160, 2)
		b.ID = 2
		b.Arrived = gap
		drive(t, e, a, b)
		if a.Cached != 0 || b.Cached != wantCached {
			t.Errorf("share %v, gap %v: %d and %d cached; want 0 and %d", share, gap, a.Cached, b.Cached, wantCached)
		}
		// Both compute the same blocks: duplicates, of which each can be evicted alone.
		if !share && gap == 0 && e.Stats().CachedBlocks != 20 {
			t.Errorf("%d cached blocks; want 20", e.Stats().CachedBlocks)
		}
	}
	f(false, 0, 0)
	f(false, 5*time.Millisecond, 144) // arrives during the step, starts after it
	f(true, 0, 144)
}

func TestEngine_TailIsEvictedFirst(t *testing.T) {
	// 100 blocks. Two prompts of 40 blocks and a third of 30 that takes the 20 free ones and 10 of the oldest: the first one's tail.
	e := NewEngine(testProfile(), Options{})
	for i := range 3 {
		r := newRequest(uint64(i+1), []int{640, 640, 480}[i], 1)
		r.Arrived = time.Duration(i) * time.Second
		drive(t, e, r)
	}
	f := func(seed uint64, tokens, want int) {
		t.Helper()
		if got := e.Cached(chainOf(seed, tokens/BlockTokens), tokens+1); got != want {
			t.Errorf("prompt %d: %d cached; want %d", seed, got, want)
		}
	}
	f(1, 640, 480)
	f(2, 640, 640)
	f(3, 480, 480)
}

func TestEngine_HitKeepsPrefixAlive(t *testing.T) {
	e := NewEngine(testProfile(), Options{})
	at := time.Duration(0)
	run := func(seed uint64, prompt int) {
		r := newRequest(seed, prompt, 1)
		r.Arrived = at
		drive(t, e, r)
		at += time.Second
	}
	run(1, 640)
	run(2, 640)
	run(1, 640) // makes 2 the oldest
	run(3, 640)
	if got := e.Cached(chainOf(1, 40), 641); got != 640 {
		t.Errorf("refreshed prompt has %d cached; want all", got)
	}
	if got := e.Cached(chainOf(2, 40), 641); got != 320 {
		t.Errorf("older prompt has %d cached; want 320", got)
	}
}

func TestEngine_PromptMustFitBeforeAdmission(t *testing.T) {
	// 1600 tokens of KV: the second prompt of 1000 must wait for the end of the first, and the third may not overtake it.
	e := NewEngine(testProfile(), Options{})
	a, b, c := newRequest(1, 1000, 10), newRequest(2, 1000, 1), newRequest(3, 16, 1)
	drive(t, e, a, b, c)
	if b.Admitted != a.Done || c.Admitted < b.Admitted {
		t.Errorf("first done at %v, second admitted at %v, third at %v", a.Done, b.Admitted, c.Admitted)
	}
	if q := e.Stats().PrefixQueries; q <= 2016 {
		t.Errorf("%d prefix queries; want more, for each look at the waiting one counts", q)
	}
}

func TestEngine_PreemptsYoungest(t *testing.T) {
	p := testProfile()
	p.KVTokens = 160
	e := NewEngine(p, Options{})
	a, b := newRequest(1, 64, 60), newRequest(2, 64, 60)
	events := drive(t, e, a, b)
	if a.Preemptions != 0 || b.Preemptions == 0 {
		t.Fatalf("preempted %d and %d times; want only the youngest", a.Preemptions, b.Preemptions)
	}
	if b.Done < a.Done || b.First > a.Done {
		t.Errorf("first done at %v, second first at %v and done at %v", a.Done, b.First, b.Done)
	}
	if i := slices.IndexFunc(events, func(ev Event) bool { return ev.Kind == Preempted }); events[i].Req != b || events[i].Tokens < 2 {
		t.Errorf("preemption %+v", events[i])
	}
	s := e.Stats()
	if s.Preemptions != int64(b.Preemptions) || s.GenerationTokens != 120 || s.PromptTokens != 128 {
		t.Errorf("stats %+v", s)
	}
}

func TestEngine_PreemptsItself(t *testing.T) {
	p := testProfile()
	p.KVTokens = 96
	e := NewEngine(p, Options{})
	a, b := newRequest(1, 48, 40), newRequest(2, 32, 40)
	drive(t, e, a, b)
	if a.Preemptions != 0 || b.Preemptions == 0 {
		t.Errorf("preempted %d and %d times", a.Preemptions, b.Preemptions)
	}
}

func TestEngine_SeatsLimit(t *testing.T) {
	p := testProfile()
	p.MaxSeqs = 2
	e := NewEngine(p, Options{})
	rs := []*Request{newRequest(1, 16, 3), newRequest(2, 16, 3), newRequest(3, 16, 3)}
	drive(t, e, rs...)
	if rs[2].Admitted != rs[0].Done {
		t.Errorf("third admitted at %v; want %v", rs[2].Admitted, rs[0].Done)
	}
}

func TestEngine_Pooling(t *testing.T) {
	e := NewEngine(testProfile(), Options{})
	r := newRequest(1, 100, 0)
	got := briefs(drive(t, e, r))
	if d := cmp.Diff([]brief{{1, "first", 11, 0}, {1, "done", 11, 0}}, got); d != "" {
		t.Error(d)
	}
	if e.Cached(r.Prompt, 100) != 96 || e.Stats().GenerationTokens != 0 {
		t.Errorf("cached %d, generated %d", e.Cached(r.Prompt, 100), e.Stats().GenerationTokens)
	}
}

func TestEngine_CacheOff(t *testing.T) {
	e := NewEngine(testProfile(), Options{CacheOff: true})
	a, b := newRequest(1, 160, 2), newRequest(1, 160, 2)
	b.Arrived = time.Second
	drive(t, e, a, b)
	if b.Cached != 0 {
		t.Errorf("%d cached", b.Cached)
	}
}

func TestEngine_Refusals(t *testing.T) {
	e := NewEngine(testProfile(), Options{})
	f := func(r *Request, want error) {
		t.Helper()
		err := e.Submit(0, r)
		if err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("submit %+v: %v; want %v", r, err, want)
		}
	}
	f(newRequest(1, 1600, 2), ErrTooLong)
	f(newRequest(1, 1601, 0), ErrTooLong)
	f(newRequest(1, 0, 1), nil)
	f(&Request{PromptTokens: 32, OutputTokens: 1}, nil)
	r := newRequest(1, 1600, 1)
	if err := e.Submit(0, r); err != nil {
		t.Error(err)
	}
	f(r, nil)
	drain(t, e)
	checkAtRest(t, e)
}

// Abort in every state: before the first step, waiting, during prefill, during decode, preempted, and after the end.
func TestEngine_Abort(t *testing.T) {
	f := func(at time.Duration, wantDone time.Duration, wantErr error) {
		t.Helper()
		e := NewEngine(testProfile(), Options{})
		r := newRequest(1, 1000, 3) // steps end at about 15, 30, 40, 50 ms
		var events []Event
		if err := e.Submit(0, r); err != nil {
			t.Fatal(err)
		}
		events = append(events, e.Advance(at)...)
		e.Abort(at, r)
		e.Abort(at, r)
		events = append(events, drain(t, e)...)
		if r.Done.Round(time.Millisecond) != wantDone || !errors.Is(r.Err, wantErr) {
			t.Errorf("abort at %v: done at %v, %v; want %v, %v", at, r.Done, r.Err, wantDone, wantErr)
		}
		checkConserved(t, e, events, []*Request{r})
	}
	ms := time.Millisecond
	f(0, 15*ms, ErrAborted)
	f(10*ms, 15*ms, ErrAborted)
	f(20*ms, 30*ms, ErrAborted)
	f(35*ms, 40*ms, ErrAborted)
	f(45*ms, 50*ms, ErrAborted)
	f(60*ms, 50*ms, nil)
}

func TestEngine_AbortWaiting(t *testing.T) {
	e := NewEngine(testProfile(), Options{})
	a, b, c := newRequest(1, 1000, 10), newRequest(2, 1000, 1), newRequest(3, 500, 1)
	for _, r := range []*Request{a, b, c} {
		if err := e.Submit(0, r); err != nil {
			t.Fatal(err)
		}
	}
	events := slices.Clone(e.Advance(35 * time.Millisecond))
	e.Abort(35*time.Millisecond, b)
	events = append(events, drain(t, e)...)
	if b.Done != 35*time.Millisecond || !errors.Is(b.Err, ErrAborted) {
		t.Errorf("aborted at %v: %v", b.Done, b.Err)
	}
	if c.Admitted >= a.Done {
		t.Errorf("third admitted at %v, after %v: the aborted one still blocks it", c.Admitted, a.Done)
	}
	checkConserved(t, e, events, []*Request{a, b, c})
}

// A request that was blocked in front of the queue and comes back shorter is looked at anew.
func TestEngine_AbortBlockedAndReuse(t *testing.T) {
	e := NewEngine(testProfile(), Options{})
	a, b := newRequest(1, 1000, 10), newRequest(2, 1000, 1)
	for _, r := range []*Request{a, b} {
		if err := e.Submit(0, r); err != nil {
			t.Fatal(err)
		}
	}
	e.Advance(35 * time.Millisecond)
	e.Abort(35*time.Millisecond, b)
	b.Prompt, b.PromptTokens = chainOf(2, 10), 160
	if err := e.Submit(35*time.Millisecond, b); err != nil {
		t.Fatal(err)
	}
	drain(t, e)
	if b.Err != nil || b.Admitted >= a.Done {
		t.Errorf("%v, admitted at %v; the first was done at %v", b.Err, b.Admitted, a.Done)
	}
}

func TestEngine_AbortPreempted(t *testing.T) {
	p := testProfile()
	p.KVTokens = 160
	e := NewEngine(p, Options{})
	a, b := newRequest(1, 64, 60), newRequest(2, 64, 60)
	for _, r := range []*Request{a, b} {
		if err := e.Submit(0, r); err != nil {
			t.Fatal(err)
		}
	}
	var events []Event
	for b.Preemptions == 0 {
		next, _ := e.NextEvent()
		events = append(events, e.Advance(next)...)
	}
	e.Abort(events[len(events)-1].At, b)
	events = append(events, drain(t, e)...)
	if !errors.Is(b.Err, ErrAborted) || a.Err != nil {
		t.Errorf("ended with %v and %v", a.Err, b.Err)
	}
	checkConserved(t, e, events, []*Request{a, b})
}

func TestEngine_Restart(t *testing.T) {
	e := NewEngine(testProfile(), Options{})
	warm := newRequest(1, 160, 1)
	drive(t, e, warm)
	rs := []*Request{newRequest(2, 1000, 10), newRequest(3, 200, 1), newRequest(4, 1000, 1)}
	at := time.Second
	for _, r := range rs {
		if err := e.Submit(at, r); err != nil {
			t.Fatal(err)
		}
	}
	at += 37 * time.Millisecond
	events := slices.Clone(e.Advance(at))
	e.Restart(at)
	events = append(events, drain(t, e)...)
	checkConserved(t, e, events, rs)
	for _, r := range rs {
		if !errors.Is(r.Err, ErrRestarted) || r.Done != at {
			t.Errorf("request %d: %v at %v", r.ID, r.Err, r.Done)
		}
	}
	if got := e.Cached(warm.Prompt, 160); got != 0 {
		t.Errorf("%d tokens cached after restart", got)
	}
	if s := e.Stats(); s != (Stats{TotalBlocks: 100}) {
		t.Errorf("stats after restart: %+v", s)
	}
	again := newRequest(1, 160, 2)
	again.Arrived = at
	drive(t, e, again)
	if again.Cached != 0 || again.Err != nil {
		t.Errorf("after restart: %d cached, %v", again.Cached, again.Err)
	}
}

func TestEngine_HalveCapacity(t *testing.T) {
	e := NewEngine(testProfile(), Options{})
	a, b, c := newRequest(1, 480, 30), newRequest(2, 480, 30), newRequest(3, 480, 30)
	rs := []*Request{a, b, c}
	for _, r := range rs {
		if err := e.Submit(0, r); err != nil {
			t.Fatal(err)
		}
	}
	at := 100 * time.Millisecond
	events := slices.Clone(e.Advance(at))
	e.SetKVTokens(at, 800)
	events = append(events, drain(t, e)...)
	checkConserved(t, e, events, rs)
	if a.Preemptions != 0 || b.Preemptions == 0 || c.Preemptions == 0 {
		t.Errorf("preempted %d, %d, %d times; want the two youngest", a.Preemptions, b.Preemptions, c.Preemptions)
	}
	if s := e.Stats(); s.TotalBlocks != 50 || s.CachedBlocks > 50 {
		t.Errorf("%d of %d blocks cached; want at most 50", s.CachedBlocks, s.TotalBlocks)
	}
	e.SetKVTokens(e.clockTime(), 3200)
	d := newRequest(4, 1600, 1)
	d.Arrived = e.clockTime()
	drive(t, e, d)
	if d.Err != nil {
		t.Error(d.Err)
	}
}

func TestEngine_ShrinkBelowWaiting(t *testing.T) {
	e := NewEngine(testProfile(), Options{})
	a, b := newRequest(1, 800, 10), newRequest(2, 1000, 1)
	for _, r := range []*Request{a, b} {
		if err := e.Submit(0, r); err != nil {
			t.Fatal(err)
		}
	}
	events := slices.Clone(e.Advance(40 * time.Millisecond))
	e.SetKVTokens(40*time.Millisecond, 160)
	events = append(events, drain(t, e)...)
	checkConserved(t, e, events, []*Request{a, b})
	if !errors.Is(a.Err, ErrTooLong) || !errors.Is(b.Err, ErrTooLong) {
		t.Errorf("ended with %v and %v; want %v", a.Err, b.Err, ErrTooLong)
	}
}

func TestEngine_ResumedGap(t *testing.T) {
	p := testProfile()
	p.KVTokens = 160
	var gaps []time.Duration
	e := NewEngine(p, Options{OnStep: func(s Step) { gaps = append(gaps, s.Resumed...) }})
	a, b := newRequest(1, 64, 60), newRequest(2, 64, 60)
	drive(t, e, a, b)
	if len(gaps) != b.Preemptions || gaps[0] < 100*time.Millisecond {
		t.Errorf("gaps %v of %d preemptions", gaps, b.Preemptions)
	}
}

// clockTime returns a time at which the engine accepts calls.
func (e *Engine) clockTime() time.Duration { return toDuration(e.clock) }
