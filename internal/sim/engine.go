package sim

import (
	"errors"
	"fmt"
	"time"
)

// BlockTokens is the default block size of an engine in tokens, as vLLM's.
const BlockTokens = 16

// Options sets up an [Engine]. The zero value takes everything from the profile.
type Options struct {
	// KVTokens is the size of the KV cache in tokens. Zero takes the profile's.
	KVTokens int
	// BlockTokens is the size of a block. Zero means [BlockTokens].
	BlockTokens int
	// CacheOff turns prefix caching off.
	CacheOff bool
	// ShareInStep lets a request hit prompt blocks that another request computes in the same step, as vLLM does since it registers
	// a block when it schedules it. Off, blocks become visible at the end of the step, as in engines that insert after the forward
	// pass: siblings of a new prefix that start together then all miss, which is the harder case for a router.
	ShareInStep bool
	// OnStep is called at the end of each step, in order, while the engine catches up with the time of a call.
	OnStep func(Step)
}

// Step describes a finished step.
type Step struct {
	Start, End time.Duration
	Load
	// Resumed holds the gap since the previous token for requests that were preempted and got a token again in this step. Each
	// stream among Decodes waited End-Start for its token. Valid during the call.
	Resumed []time.Duration
}

// Stats is a view of an engine at one time. The counters run since the start or the last restart.
type Stats struct {
	Running, Waiting int
	// UsedBlocks are referenced by running requests; the others, cached or not, can be taken. CachedBlocks can be found by hash.
	UsedBlocks, CachedBlocks, TotalBlocks int
	// Steps counts finished steps, Preemptions the requests that lost their blocks.
	Steps, Preemptions int64
	// PrefixQueries and PrefixHits count prompt tokens at each lookup, once per step for a request that waits for blocks, as
	// vllm:prefix_cache_queries does: they over-count.
	PrefixQueries, PrefixHits int64
	// PromptTokens, CachedTokens and RecomputedTokens count at the first token: all prompt tokens, those from the cache, and the
	// last tokens of prompts that were cached to the end and had to be computed all the same.
	PromptTokens, CachedTokens, RecomputedTokens int64
	// GenerationTokens counts generated tokens.
	GenerationTokens int64
	// Finished and Aborted count terminal events.
	Finished, Aborted int64
}

// KVUsage returns the share of blocks that running requests hold, 0 to 1.
func (s Stats) KVUsage() float64 {
	if s.TotalBlocks == 0 {
		return 0
	}
	return float64(s.UsedBlocks) / float64(s.TotalBlocks)
}

// Engine simulates one engine process in virtual time: continuous batching with chunked prefill over a block cache with prefix
// reuse, after vLLM's V1 scheduler. Times are since the engine's start and must not decrease from call to call. It is not safe for
// concurrent use.
//
// A driver submits what arrives at a time, then calls [Engine.Advance] for it, then asks [Engine.NextEvent] when to come back.
// Requests that were submitted for the same time start in the same step.
type Engine struct {
	p  Profile
	o  Options
	bt int // tokens per block

	pool    pool
	waiting list // first come, first served; preempted ones in front
	running list // oldest first; all decode, only the last may be prefilling

	// Every running request that decodes gets one token in every step, so the engine keeps sums and touches a request only at a
	// block boundary or at its end.
	decodes    int64        // steps so far
	decoders   int          // decoding requests
	context    int          // sum of their contexts in the next step
	finishes   finishHeap   // decoding requests by their last step
	boundaries [][]*Request // decoding requests by the step, modulo the block size, at which their last block is full
	watchers   []*Request   // decoding requests that want their tokens reported

	clock    int64 // ps: the latest time of a call
	wakes    bool  // an idle engine got work at wakeAt and starts a step then
	wakeAt   int64
	stepping bool // a step is under way
	begin    int64
	end      int64
	load     Load
	chunks   []chunk
	aborting int // running requests that leave at the end of the step
	resumed  []time.Duration
	admitted int64 // requests admitted so far: orders the running ones

	wantBlocks int // capacity to have at the next step
	blocked    blockedHead

	events, returned []Event
	hits             []int32   // scratch of lookup
	lists            [][]int32 // block lists to use again
	s                Stats
}

// chunk is the part of a prompt that a step computes.
type chunk struct {
	r *Request
	n int
}

// blockedHead remembers a lookup in vain: while the same request waits in front and nothing was released, the next one is in vain
// too.
type blockedHead struct {
	r        *Request
	releases int64
	hit      int // tokens
}

// NewEngine returns an idle engine at time 0. A profile without limits gets vLLM's for large GPUs, and a step never has fewer tokens
// than requests.
func NewEngine(p Profile, o Options) *Engine {
	if p.MaxBatchedTokens <= 0 {
		p.MaxBatchedTokens = largeBatchTokens
	}
	if p.MaxSeqs <= 0 {
		p.MaxSeqs = largeSeqs
	}
	p.MaxSeqs = min(p.MaxSeqs, p.MaxBatchedTokens)
	if o.KVTokens <= 0 {
		o.KVTokens = p.KVTokens
	}
	if o.BlockTokens <= 0 {
		o.BlockTokens = BlockTokens
	}
	e := &Engine{p: p, o: o, bt: o.BlockTokens, wantBlocks: o.KVTokens / o.BlockTokens}
	e.boundaries = make([][]*Request, e.bt)
	e.pool = newPool(e.wantBlocks, o.CacheOff)
	return e
}

// Submit puts r into the waiting queue at time now. It refuses a request that is already in an engine, whose hashes do not match
// its length, or that could never finish ([ErrTooLong]).
func (e *Engine) Submit(now time.Duration, r *Request) error {
	if err := e.check(r); err != nil {
		return fmt.Errorf("submit request %d: %w", r.ID, err)
	}
	t := e.catchUp(now)
	r.state = state{engine: e, phase: queued}
	r.Cached, r.Preemptions, r.Err = 0, 0, nil
	r.Arrived, r.Admitted, r.First, r.Done = now, 0, 0, 0
	e.waiting.pushBack(r)
	if !e.stepping && !e.wakes {
		e.wakes, e.wakeAt = true, t
	}
	return nil
}

func (e *Engine) check(r *Request) error {
	switch {
	case r.phase != outside:
		return errors.New("already submitted")
	case r.PromptTokens < 1 || r.OutputTokens < 0:
		return fmt.Errorf("%d prompt and %d output tokens", r.PromptTokens, r.OutputTokens)
	case len(r.Prompt) != r.PromptTokens/e.bt:
		return fmt.Errorf("%d block hashes for %d prompt tokens", len(r.Prompt), r.PromptTokens)
	case e.blocksFor(r.PromptTokens+max(r.OutputTokens-1, 0)) > e.wantBlocks:
		return ErrTooLong
	}
	return nil
}

// Abort takes r back. A waiting request leaves at once, a running one at the end of the step under way, since an engine hears of it
// between steps. A request that is not in this engine is left alone.
func (e *Engine) Abort(now time.Duration, r *Request) {
	t := e.catchUp(now)
	if r.engine != e || r.aborting {
		return
	}
	switch r.phase {
	case queued:
		e.waiting.remove(r)
		e.giveUp(r, t, ErrAborted)
	case prefilling, decoding:
		r.aborting = true
		e.aborting++
	case outside:
	}
}

// Restart ends everything at time now, as the death of the process would: the requests get [Aborted] events with [ErrRestarted], the
// cache is empty and the counters are zero.
func (e *Engine) Restart(now time.Duration) {
	t := e.catchUp(now)
	for r := e.running.head; r != nil; r = e.running.head {
		e.leave(r)
		e.giveUp(r, t, ErrRestarted)
	}
	for r := e.waiting.head; r != nil; r = e.waiting.head {
		e.waiting.remove(r)
		e.giveUp(r, t, ErrRestarted)
	}
	e.stepping, e.wakes = false, false
	e.chunks, e.aborting, e.blocked = e.chunks[:0], 0, blockedHead{}
	e.pool = newPool(e.wantBlocks, e.o.CacheOff)
	e.s = Stats{}
}

// SetKVTokens changes the size of the KV cache at the next step. Shrinking evicts what was used longest ago and preempts the
// youngest requests until the rest fits.
func (e *Engine) SetKVTokens(now time.Duration, n int) {
	e.catchUp(now)
	e.wantBlocks = n / e.bt
	if !e.stepping {
		e.resize(e.clock)
	}
}

// NextEvent returns a time before which nothing will happen without another call, or false when the engine is idle. Advance may
// find nothing to report at that time.
func (e *Engine) NextEvent() (time.Duration, bool) {
	switch {
	case len(e.events) > 0:
		return e.events[0].At, true
	case e.wakes:
		return toDuration(e.wakeAt), true
	case !e.stepping:
		return 0, false
	}
	return toDuration(e.end + e.quiet()), true
}

// quiet returns for how long after the step under way nothing but decoding will happen, in ps.
func (e *Engine) quiet() int64 {
	if len(e.chunks) > 0 || e.waiting.n > 0 || len(e.watchers) > 0 || e.aborting > 0 || e.wantBlocks != e.pool.capacity {
		return 0
	}
	// Until the first request ends, and while a block for each request can be had without preempting.
	n := min(e.finishes[0].finishes-e.decodes-1, int64(e.bt*(e.pool.free()/e.decoders)))
	b := int64(e.decoders)
	same := e.p.basePS(e.decoders) + e.p.decodeBasePS()
	return n*same + e.p.contextPS()*(n*int64(e.load.Context)+b*n*(n+1)/2)
}

// Advance runs the engine up to and including time now and returns what happened since the last call, in order of time. The slice
// is valid until the next call.
func (e *Engine) Advance(now time.Duration) []Event {
	t := e.tick(now)
	e.run(t + 1)
	out := e.events
	e.events, e.returned = e.returned[:0], out
	return out
}

// catchUp runs the engine up to but not including time now: a step that begins at now can still take what the caller brings.
func (e *Engine) catchUp(now time.Duration) int64 {
	t := e.tick(now)
	e.run(t)
	return t
}

// tick moves the clock to now and returns it in ps.
func (e *Engine) tick(now time.Duration) int64 {
	e.clock = max(e.clock, int64(now)*psPerNS)
	return e.clock
}

// run finishes and starts steps until the next change is at limit or later, in ps.
func (e *Engine) run(limit int64) {
	for {
		switch {
		case e.stepping && e.end < limit:
			t := e.end
			e.finishStep(t)
			e.startStep(t)
		case e.wakes && e.wakeAt < limit:
			e.wakes = false
			e.startStep(e.wakeAt)
		default:
			return
		}
	}
}

// Cached returns how many tokens of a prompt a request would find in the cache now: complete leading blocks, and never the last token.
// It is what a router would know if it knew everything.
func (e *Engine) Cached(prompt []uint64, promptTokens int) int {
	n := min(len(prompt), (promptTokens-1)/e.bt)
	for i := range n {
		if e.pool.find(prompt[i]) == 0 {
			return i * e.bt
		}
	}
	return max(n, 0) * e.bt
}

// Stats returns the state as of the latest call.
func (e *Engine) Stats() Stats {
	s := e.s
	s.Running, s.Waiting = e.running.n, e.waiting.n
	s.UsedBlocks, s.CachedBlocks, s.TotalBlocks = e.pool.used, e.pool.cached, e.pool.capacity
	return s
}

// BlockTokens returns the block size in tokens.
func (e *Engine) BlockTokens() int { return e.bt }

// Profile returns the profile, its limits filled in.
func (e *Engine) Profile() Profile { return e.p }

const psPerNS = 1000

// toDuration rounds up, so that an engine advanced to the result has reached t.
func toDuration(t int64) time.Duration { return time.Duration((t + psPerNS - 1) / psPerNS) }

// blocksFor returns how many blocks hold n tokens.
func (e *Engine) blocksFor(n int) int { return (n + e.bt - 1) / e.bt }

func (e *Engine) emit(r *Request, k Kind, at time.Duration, tokens int) {
	e.events = append(e.events, Event{Req: r, Kind: k, At: at, Tokens: tokens})
}
