package sim

import (
	"container/heap"
	"slices"
	"time"
)

// boundary returns the bucket of the decoding requests whose computed tokens fill their blocks exactly.
func (e *Engine) boundary() int { return int(e.decodes % int64(e.bt)) }

// finishStep takes the results of the step that ends at t: blocks become findable, requests get their tokens, and those that are
// through or were aborted leave.
func (e *Engine) finishStep(t int64) {
	e.decodes++
	e.context += e.decoders
	e.s.Steps++
	e.s.GenerationTokens += int64(e.decoders)
	for _, r := range e.boundaries[e.boundary()] {
		e.registerFull(r, r.computed+int(e.decodes-r.joined))
	}
	for _, c := range e.chunks {
		c.r.computed += c.n
		e.registerFull(c.r, c.r.computed)
	}
	if e.aborting > 0 {
		e.dropAborted(t)
	}
	now := toDuration(t)
	e.reportTokens(now)
	for len(e.finishes) > 0 && e.finishes[0].finishes == e.decodes {
		e.finish(e.finishes[0], now)
	}
	e.resumed = e.resumed[:0]
	for _, c := range e.chunks {
		if c.r.phase == prefilling && c.r.computed == c.r.tokens() {
			e.endPrefill(c.r, now)
		}
	}
	if e.o.OnStep != nil {
		e.o.OnStep(Step{Start: toDuration(e.begin), End: now, Load: e.load, Resumed: e.resumed})
	}
}

// dropAborted removes the running requests that were aborted during the step. Their last token is not counted.
func (e *Engine) dropAborted(t int64) {
	for r := e.running.head; r != nil && e.aborting > 0; {
		next := r.next
		if r.aborting {
			if r.phase == decoding {
				e.s.GenerationTokens--
			}
			e.aborting--
			e.leave(r)
			e.giveUp(r, t, ErrAborted)
		}
		r = next
	}
}

// reportTokens emits the tokens of the requests that want to see them.
func (e *Engine) reportTokens(now time.Duration) {
	for _, r := range e.watchers {
		n := r.generated + int(e.decodes-r.joined)
		if n%r.TokenEvery == 0 {
			e.emit(r, Token, now, n)
		}
	}
}

// endPrefill gives r the token that the end of its prefill yields and makes it decode.
func (e *Engine) endPrefill(r *Request, now time.Duration) {
	if r.OutputTokens > 0 {
		r.generated++
		e.s.GenerationTokens++
	}
	if r.First == 0 {
		r.First = now
		e.s.PromptTokens += int64(r.PromptTokens)
		e.s.CachedTokens += int64(r.Cached)
		if r.Cached+1 == r.PromptTokens {
			e.s.RecomputedTokens++
		}
		e.emit(r, First, now, r.generated)
	} else {
		e.resumed = append(e.resumed, now-r.lastToken)
		if r.TokenEvery > 0 && r.generated%r.TokenEvery == 0 {
			e.emit(r, Token, now, r.generated)
		}
	}
	if r.generated >= r.OutputTokens {
		e.finish(r, now)
		return
	}
	e.join(r)
}

// join makes r one of the decoding requests.
func (e *Engine) join(r *Request) {
	r.phase = decoding
	r.joined = e.decodes
	r.finishes = e.decodes + int64(r.OutputTokens-r.generated)
	e.decoders++
	e.context += r.computed + 1
	heap.Push(&e.finishes, r)
	bt := int64(e.bt)
	r.bucket = int(((e.decodes-int64(r.computed))%bt + bt) % bt)
	e.boundaries[r.bucket] = append(e.boundaries[r.bucket], r)
	if r.TokenEvery > 0 {
		e.watchers = append(e.watchers, r)
	}
}

// leave takes r out of the running requests and releases its blocks.
func (e *Engine) leave(r *Request) {
	if r.phase == decoding {
		e.stopDecoding(r)
	}
	e.running.remove(r)
	e.pool.release(r.blocks)
	e.lists = append(e.lists, r.blocks[:0])
	r.blocks = nil
}

// stopDecoding undoes join, with the tokens that r has by now.
func (e *Engine) stopDecoding(r *Request) {
	n := int(e.decodes - r.joined)
	r.computed += n
	r.generated += n
	e.decoders--
	e.context -= r.computed + 1
	heap.Remove(&e.finishes, r.heapAt)
	// The order of admission is kept: it decides which of two equal blocks is found.
	e.boundaries[r.bucket] = without(e.boundaries[r.bucket], r)
	if r.TokenEvery > 0 {
		e.watchers = without(e.watchers, r)
	}
	r.lastToken = toDuration(e.end)
}

func without(rs []*Request, r *Request) []*Request {
	i := slices.Index(rs, r)
	return slices.Delete(rs, i, i+1)
}

// finish ends a request that has all its tokens.
func (e *Engine) finish(r *Request, now time.Duration) {
	e.leave(r)
	r.phase = outside
	r.engine = nil
	r.Done = now
	e.s.Finished++
	e.emit(r, Done, now, r.generated)
}

// giveUp ends a request that is in no list any more.
func (e *Engine) giveUp(r *Request, t int64, err error) {
	if e.blocked.r == r {
		e.blocked = blockedHead{}
	}
	r.phase = outside
	r.engine = nil
	r.aborting = false
	r.Done = toDuration(t)
	r.Err = err
	e.s.Aborted++
	e.emit(r, Aborted, r.Done, r.generated)
}

// list is an intrusive list of requests. A request is in one list at most.
type list struct {
	head, tail *Request
	n          int
}

func (l *list) pushBack(r *Request) {
	r.prev, r.next = l.tail, nil
	if l.tail == nil {
		l.head = r
	} else {
		l.tail.next = r
	}
	l.tail = r
	l.n++
}

func (l *list) pushFront(r *Request) {
	r.prev, r.next = nil, l.head
	if l.head == nil {
		l.tail = r
	} else {
		l.head.prev = r
	}
	l.head = r
	l.n++
}

func (l *list) remove(r *Request) {
	if r.prev == nil {
		l.head = r.next
	} else {
		r.prev.next = r.next
	}
	if r.next == nil {
		l.tail = r.prev
	} else {
		r.next.prev = r.prev
	}
	r.prev, r.next = nil, nil
	l.n--
}

// finishHeap orders decoding requests by their last step, then by admission.
type finishHeap []*Request

func (h finishHeap) Len() int { return len(h) }

func (h finishHeap) Less(i, j int) bool {
	if h[i].finishes != h[j].finishes {
		return h[i].finishes < h[j].finishes
	}
	return h[i].order < h[j].order
}

func (h finishHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapAt, h[j].heapAt = i, j
}

// Push implements [heap.Interface].
func (h *finishHeap) Push(x any) {
	r := x.(*Request)
	r.heapAt = len(*h)
	*h = append(*h, r)
}

// Pop implements [heap.Interface].
func (h *finishHeap) Pop() any {
	old := *h
	r := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return r
}
