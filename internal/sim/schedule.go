package sim

// startStep decides what the step that begins at t computes: first the running requests, one token or the next chunk each, then
// the waiting ones in order while tokens, seats and blocks last, unless a running one was preempted for another. With nothing to
// do the engine goes idle.
func (e *Engine) startStep(t int64) {
	e.stepping = false
	e.chunks = e.chunks[:0]
	e.load = Load{}
	e.resize(t)
	if e.continueRunning(t) || e.running.n == 0 {
		e.admit(t)
	}
	if e.running.n == 0 {
		return
	}
	e.load.Decodes, e.load.Context = e.decoders, e.context
	e.stepping, e.begin = true, t
	e.end = t + e.p.stepPS(e.load)
}

// resize brings the pool to the wanted size.
func (e *Engine) resize(t int64) {
	if e.wantBlocks == e.pool.capacity {
		return
	}
	for !e.pool.setCapacity(e.wantBlocks) {
		e.preempt(e.running.tail, t)
	}
}

// continueRunning gives every running request the blocks that its part of the step needs, and reports whether nothing had to be
// preempted for it.
func (e *Engine) continueRunning(t int64) bool {
	full := e.boundaries[e.boundary()]
	need := len(full)
	last := e.running.tail
	n := 0
	if last != nil && last.phase == prefilling {
		n = min(last.tokens()-last.computed, e.p.MaxBatchedTokens-e.decoders)
		need += e.blocksFor(last.computed+n) - len(last.blocks)
	}
	if need > e.pool.free() {
		return e.squeeze(t)
	}
	for _, r := range full {
		r.blocks = append(r.blocks, e.pool.take())
	}
	if n > 0 {
		e.compute(last, n)
	}
	return true
}

// squeeze is continueRunning when blocks are short: in the order of admission each request takes what it needs, at the cost of the
// youngest, which may be itself.
func (e *Engine) squeeze(t int64) (calm bool) {
	calm = true
	for r := e.running.head; r != nil; r = r.next {
		n, need := 0, 0
		if r.phase == prefilling {
			n = min(r.tokens()-r.computed, e.p.MaxBatchedTokens-e.decoders)
			need = e.blocksFor(r.computed+n) - len(r.blocks)
		} else if r.bucket == e.boundary() {
			need = 1
		}
		for need > e.pool.free() && r.phase != queued {
			e.preempt(e.running.tail, t)
			calm = false
		}
		switch {
		case r.phase == queued:
			return false
		case n > 0:
			e.compute(r, n)
		case need > 0:
			r.blocks = append(r.blocks, e.pool.take())
		}
	}
	return calm
}

// preempt sends r back to the front of the queue without its blocks. It is computed again, tokens generated so far included.
func (e *Engine) preempt(r *Request, t int64) {
	e.leave(r)
	r.computed, r.registered = 0, 0
	r.phase = queued
	r.Preemptions++
	e.s.Preemptions++
	e.waiting.pushFront(r)
	e.emit(r, Preempted, toDuration(t), r.generated)
}

// admit takes waiting requests into the step, first come, first served.
func (e *Engine) admit(t int64) {
	for e.waiting.n > 0 && e.running.n < e.p.MaxSeqs {
		budget := e.p.MaxBatchedTokens - e.decoders - e.load.Prefill
		if budget <= 0 {
			return
		}
		r := e.waiting.head
		if e.blocksFor(r.tokens()) > e.pool.capacity {
			e.waiting.remove(r)
			e.giveUp(r, t, ErrTooLong)
			continue
		}
		if !e.enter(r, t) {
			return
		}
		e.compute(r, min(r.tokens()-r.computed, budget))
	}
}

// enter moves r from the queue to the running requests with the blocks that the cache has of it. It refuses while the rest of the
// prompt does not fit: a prompt that is let in can be computed to its end.
func (e *Engine) enter(r *Request, t int64) bool {
	if e.blocked.r == r && e.blocked.releases == e.pool.releases {
		e.countLookup(r, e.blocked.hit)
		return false
	}
	pinned := e.lookUp(r)
	hit := len(e.hits) * e.bt
	e.countLookup(r, hit)
	if e.blocksFor(r.tokens())-pinned > e.pool.free() {
		e.blocked = blockedHead{r: r, releases: e.pool.releases, hit: hit}
		return false
	}
	e.blocked = blockedHead{}
	e.pool.awaited = 0
	e.waiting.remove(r)
	r.blocks = e.blockList(e.blocksFor(r.tokens() + 1))
	for _, id := range e.hits {
		e.pool.share(id)
		r.blocks = append(r.blocks, id)
	}
	r.computed, r.registered = hit, len(e.hits)
	r.phase = prefilling
	r.order = e.admitted
	e.admitted++
	e.running.pushBack(r)
	if !r.started {
		r.started = true
		r.Cached = hit
		r.Admitted = toDuration(t)
	}
	return true
}

// lookUp leaves the cached leading blocks of r in e.hits and returns how many of them are referenced. The last token is never
// taken from the cache: computing it gives the next one.
func (e *Engine) lookUp(r *Request) (pinned int) {
	e.hits = e.hits[:0]
	n := (r.tokens() - 1) / e.bt
	for i := range n {
		key := r.Block(i, e.bt)
		id := e.pool.find(key)
		if id == 0 {
			e.pool.awaited = key
			return pinned
		}
		if e.pool.blocks[id].refs > 0 {
			pinned++
		}
		e.hits = append(e.hits, id)
	}
	e.pool.awaited = 0
	return pinned
}

func (e *Engine) countLookup(r *Request, hit int) {
	if r.started {
		return // vLLM counts preempted requests apart
	}
	e.s.PrefixQueries += int64(r.tokens())
	e.s.PrefixHits += int64(hit)
}

// compute puts the next n tokens of r into the step. The caller has seen that their blocks can be had.
func (e *Engine) compute(r *Request, n int) {
	for range e.blocksFor(r.computed+n) - len(r.blocks) {
		r.blocks = append(r.blocks, e.pool.take())
	}
	e.chunks = append(e.chunks, chunk{r, n})
	e.load.Prefill += n
	e.load.PrefillPairs += float64(n) * (float64(r.computed) + float64(n)/2)
	if e.o.ShareInStep {
		e.registerFull(r, r.computed+n)
	}
}

// registerFull makes the complete blocks of the first n tokens of r findable.
func (e *Engine) registerFull(r *Request, n int) {
	for ; r.registered < n/e.bt; r.registered++ {
		e.pool.register(r.blocks[r.registered], r.Block(r.registered, e.bt))
	}
}

// blockList returns an empty list, one that was used before if there is one.
func (e *Engine) blockList(size int) []int32 {
	if n := len(e.lists); n > 0 {
		l := e.lists[n-1]
		e.lists = e.lists[:n-1]
		return l
	}
	return make([]int32, 0, size)
}
