package sim

import "slices"

// naive is the engine again, as slow and plain as possible: it walks every request in every step, keeps its blocks in maps and
// slices, skips nothing and remembers nothing.
type naive struct {
	p        Profile
	bt       int
	share    bool
	capacity int
	want     int

	free   []int            // block numbers, least recently freed first; fresh ones in the beginning
	refs   map[int]int      // references of blocks in use
	keys   map[int]uint64   // hash of blocks that can be found
	byKey  map[uint64][]int // blocks by hash, oldest registration first
	unborn int

	waiting, running []*twin
	stepping         bool
	wakes            bool
	at               int64 // ps: end of the step, or time to wake
	plan             map[*twin]int
	events           []Event
}

// twin is the naive engine's view of a request.
type twin struct {
	r         *Request
	computed  int
	generated int
	blocks    []int
	cached    int
	seen      bool
	first     bool
	decoding  bool
	aborting  bool
}

func newNaive(p Profile, o Options) *naive {
	n := &naive{p: p, bt: BlockTokens, share: o.ShareInStep, want: p.KVTokens / BlockTokens}
	n.reset()
	return n
}

func (n *naive) reset() {
	n.refs, n.keys, n.byKey = map[int]int{}, map[int]uint64{}, map[uint64][]int{}
	n.free, n.capacity = nil, n.want
	for range n.capacity {
		n.unborn++
		n.free = append(n.free, n.unborn)
	}
	n.waiting, n.running, n.stepping, n.wakes = nil, nil, false, false
}

func (n *naive) emit(w *twin, k Kind, at int64) {
	n.events = append(n.events, Event{Req: w.r, Kind: k, At: toDuration(at), Tokens: w.generated})
}

func (n *naive) submit(at int64, r *Request) {
	n.run(at)
	n.waiting = append(n.waiting, &twin{r: r})
	if !n.stepping && !n.wakes {
		n.wakes, n.at = true, at
	}
}

func (n *naive) abort(at int64, r *Request) {
	n.run(at)
	if i := slices.IndexFunc(n.waiting, func(w *twin) bool { return w.r == r }); i >= 0 {
		n.emit(n.waiting[i], Aborted, at)
		n.waiting = slices.Delete(n.waiting, i, i+1)
	}
	for _, w := range n.running {
		w.aborting = w.aborting || w.r == r
	}
}

func (n *naive) restart(at int64) {
	n.run(at)
	for _, w := range slices.Concat(n.running, n.waiting) {
		n.emit(w, Aborted, at)
	}
	n.reset()
}

func (n *naive) resize(at int64, tokens int) {
	n.run(at)
	n.want = tokens / n.bt
	if !n.stepping {
		n.fit(at)
	}
}

// run finishes steps before limit, in ps.
func (n *naive) run(limit int64) {
	for (n.stepping || n.wakes) && n.at < limit {
		t := n.at
		if n.stepping {
			n.finish(t)
		}
		n.stepping, n.wakes = false, false
		n.start(t)
	}
}

func (n *naive) fit(t int64) {
	for n.want > n.capacity {
		n.capacity++
		n.unborn++
		n.free = slices.Insert(n.free, 0, n.unborn)
	}
	for n.want < n.capacity {
		if len(n.free) == 0 {
			n.preempt(t)
			continue
		}
		n.take()
		n.capacity--
	}
}

func (n *naive) take() int {
	id := n.free[0]
	n.free = n.free[1:]
	if key, ok := n.keys[id]; ok {
		delete(n.keys, id)
		n.byKey[key] = slices.DeleteFunc(n.byKey[key], func(o int) bool { return o == id })
	}
	return id
}

func (n *naive) grow(w *twin, tokens int) {
	for len(w.blocks)*n.bt < tokens {
		id := n.take()
		n.refs[id] = 1
		w.blocks = append(w.blocks, id)
	}
}

func (n *naive) release(w *twin) {
	for _, id := range slices.Backward(w.blocks) {
		n.refs[id]--
		if n.refs[id] == 0 {
			delete(n.refs, id)
			n.free = append(n.free, id)
		}
	}
	w.blocks = nil
}

func (n *naive) register(w *twin, tokens int) {
	for i := range tokens / n.bt {
		id := w.blocks[i]
		if _, ok := n.keys[id]; !ok {
			key := w.r.Block(i, n.bt)
			n.keys[id] = key
			n.byKey[key] = append(n.byKey[key], id)
		}
	}
}

func (n *naive) preempt(t int64) {
	w := n.running[len(n.running)-1]
	n.running = n.running[:len(n.running)-1]
	n.release(w)
	delete(n.plan, w)
	w.computed, w.decoding = 0, false
	n.waiting = slices.Insert(n.waiting, 0, w)
	n.emit(w, Preempted, t)
}

func (n *naive) start(t int64) {
	n.plan = map[*twin]int{}
	budget := n.p.MaxBatchedTokens
	n.fit(t)
	calm := true
	for i := 0; i < len(n.running); i++ {
		w := n.running[i]
		k := min(w.r.PromptTokens+w.generated-w.computed, budget)
		for i < len(n.running) && (w.computed+k+n.bt-1)/n.bt-len(w.blocks) > len(n.free) {
			n.preempt(t)
			calm = false
		}
		if i >= len(n.running) {
			break
		}
		n.grow(w, w.computed+k)
		n.plan[w] = k
		budget -= k
		if n.share && !w.decoding {
			n.register(w, w.computed+k)
		}
	}
	calm = calm || len(n.running) == 0
	for calm && len(n.waiting) > 0 && budget > 0 && len(n.running) < n.p.MaxSeqs {
		w := n.waiting[0]
		k := n.enter(w, budget)
		if k == 0 {
			break
		}
		n.waiting = n.waiting[1:]
		if k < 0 {
			n.emit(w, Aborted, t)
			continue
		}
		budget -= k
	}
	if len(n.running) > 0 {
		n.stepping = true
		n.at = t + n.p.stepPS(n.load())
	}
}

// enter admits w and returns how many tokens it computes, 0 when it must wait and -1 when it can never fit.
func (n *naive) enter(w *twin, budget int) int {
	total := w.r.PromptTokens + w.generated
	blocks := (total + n.bt - 1) / n.bt
	if blocks > n.capacity {
		return -1
	}
	var hits []int
	need := blocks
	for i := range (total - 1) / n.bt {
		same := n.byKey[w.r.Block(i, n.bt)]
		if len(same) == 0 {
			break
		}
		hits = append(hits, same[0])
		if n.refs[same[0]] > 0 {
			need--
		}
	}
	if need > len(n.free) {
		return 0
	}
	for _, id := range hits {
		n.free = slices.DeleteFunc(n.free, func(o int) bool { return o == id })
		n.refs[id]++
	}
	w.blocks = hits
	w.computed = len(hits) * n.bt
	if !w.seen {
		w.seen, w.cached = true, w.computed
	}
	n.running = append(n.running, w)
	k := min(total-w.computed, budget)
	n.grow(w, w.computed+k)
	n.plan[w] = k
	if n.share {
		n.register(w, w.computed+k)
	}
	return k
}

func (n *naive) load() Load {
	var l Load
	for _, w := range n.running {
		k := n.plan[w]
		if w.decoding {
			l.Decodes++
			l.Context += w.computed + 1
		} else {
			l.Prefill += k
			l.PrefillPairs += float64(k) * (float64(w.computed) + float64(k)/2)
		}
	}
	return l
}

func (n *naive) finish(t int64) {
	for _, w := range n.running {
		w.computed += n.plan[w]
		n.register(w, w.computed)
	}
	n.sweep(func(w *twin) bool { return n.dropAborted(w, t) })
	n.sweep(func(w *twin) bool { return n.settle(w, t) })
}

// sweep releases the running requests for which stays is false, in order.
func (n *naive) sweep(stays func(*twin) bool) {
	var stay []*twin
	for _, w := range n.running {
		if stays(w) {
			stay = append(stay, w)
		} else {
			n.release(w)
		}
	}
	n.running = stay
}

func (n *naive) dropAborted(w *twin, t int64) bool {
	if !w.aborting {
		return true
	}
	if w.decoding {
		w.generated++
	}
	n.emit(w, Aborted, t)
	return false
}

// settle gives w what the step brought it and reports whether it stays.
func (n *naive) settle(w *twin, t int64) bool {
	if w.computed < w.r.PromptTokens+w.generated {
		return true
	}
	w.decoding = true
	if w.r.OutputTokens > 0 {
		w.generated++
	}
	switch {
	case !w.first:
		w.first = true
		n.emit(w, First, t)
	case w.r.TokenEvery > 0 && w.generated%w.r.TokenEvery == 0:
		n.emit(w, Token, t)
	}
	if w.generated < w.r.OutputTokens {
		return true
	}
	n.emit(w, Done, t)
	return false
}

// look returns what the cache holds of a prompt.
func (n *naive) look(r *Request) int {
	hit := 0
	for i := range (r.PromptTokens - 1) / n.bt {
		if len(n.byKey[r.Prompt[i]]) == 0 {
			break
		}
		hit += n.bt
	}
	return hit
}
