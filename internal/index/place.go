package index

import (
	"slices"

	"github.com/warmroute/warmroute/prefix"
)

// Placement is one request on one instance, from [Index.Place] until [Index.Finish] or [Index.TakeBack]. It keeps the chain that was
// placed: its blocks must not change before the end, but more may be appended. The zero Placement is inert. A Placement must not be used
// by two goroutines at a time, nor copied before its end; used again, it keeps its memory.
type Placement struct {
	in              *instance
	chain           prefix.Chain
	seq             uint32 // the touch of the dispatch
	epoch           uint32
	resident, known int32
	state           placementState
	learned         bool
	spans           []span
}

type placementState uint8

const (
	inert placementState = iota
	sent
	confirmed
	ended
)

// span is a part of a placed chain, up to end, as it was before the dispatch.
type span struct {
	end   int32
	known bool // confirmed by an earlier request before the dispatch
	seq   uint32
	reach int // capacity needed beyond the depth of a block, at dispatch
}

// Resident returns how many leading blocks were believed to be cached at dispatch.
func (p *Placement) Resident() int { return int(p.resident) }

// Known returns how many leading blocks the instance was known to have been given before the dispatch.
func (p *Placement) Known() int { return int(p.known) }

// live reports whether the placement's instance is still the one it was placed on.
func (p *Placement) live() bool { return p.in != nil && !p.in.left }

// step is a run on the way of a chain, the depth of its first block, and how many of its blocks the chain has.
type step struct {
	at       ref
	depth, n int
}

type path []step

// find follows a chain through the tree.
func (p path) find(t *tree, c prefix.Chain) path {
	p = p[:0]
	parent := ref(0)
	for depth := 0; depth < len(c); {
		at := t.lookup(parent, c[depth])
		if at == 0 {
			break
		}
		r := t.run(at)
		n := t.common(r, c[depth:])
		p = append(p, step{at, depth, n})
		depth += n
		if n < r.len() {
			break
		}
		parent = at
	}
	return p
}

// end returns how many blocks of the chain the tree has.
func (p path) end() int {
	if len(p) == 0 {
		return 0
	}
	last := p[len(p)-1]
	return last.depth + last.n
}

// Place tells that a request with chain c is being sent to an instance: its blocks are there from now on, unconfirmed until the first
// token. p remembers what was believed before, and is made new by the call. An unknown instance leaves p inert.
func (x *Index) Place(id prefix.InstanceID, c prefix.Chain, p *Placement) {
	*p = Placement{spans: p.spans[:0]}
	x.mu.Lock()
	defer x.mu.Unlock()
	in := x.byIDLocked(id)
	if in == nil {
		return
	}
	in.counts.placed++
	if len(c) == 0 {
		x.short++
	}
	p.in, p.epoch, p.chain, p.state = in, in.epoch, c, sent
	p.seq = x.touchLocked(in, c, p)
}

// Confirm tells that the first token of the placement arrived: its blocks are really there, and a later request that misses them is
// evidence.
func (x *Index) Confirm(p *Placement) {
	if p.state != sent {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	p.state = confirmed
	if !p.live() {
		return
	}
	t := &x.tree
	if !x.roomToSplitLocked(p.chain, len(p.chain)) {
		return
	}
	for _, s := range x.walk {
		r := t.run(s.at)
		h, ok := t.hold(r, p.in.number)
		if !ok || h.confirmed() {
			continue
		}
		if h.len() > s.n {
			r = t.run(x.splitLocked(s.at, s.n))
			h = h.withLen(s.n)
		}
		t.setHold(r, newHolder(h.inst(), h.len(), true, h.touch()))
	}
	x.mergePathLocked(p.chain)
}

// Finish tells that the request ended well. c is its chain with the answer joined, or the one that was placed; nil means the latter.
// Engines free a request's blocks when it ends, so that is when their age begins.
func (x *Index) Finish(p *Placement, c prefix.Chain) {
	if p.state != sent && p.state != confirmed {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	p.state = ended
	if !p.live() {
		return
	}
	if c == nil {
		c = p.chain
	}
	x.unpinLocked(p)
	x.touchLocked(p.in, c, nil)
}

// TakeBack tells that the request failed before its first token: blocks that only it had put there are forgotten, and the others are as
// old as they were, unless a later request touched them. After Confirm the blocks are there, and TakeBack leaves them.
func (x *Index) TakeBack(p *Placement) {
	if p.state != sent && p.state != confirmed {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	undo := p.state == sent
	p.state = ended
	if !p.live() || p.epoch != p.in.epoch {
		return
	}
	if undo && p.seq >= p.in.since {
		x.undoLocked(p)
	}
	x.unpinLocked(p)
	x.settleLocked(p.in)
}

// touchLocked touches a chain on an instance and returns the number of the touch. With a placement, it is a dispatch: what was believed
// before is noted there, and the blocks count as unconfirmed.
func (x *Index) touchLocked(in *instance, c prefix.Chain, p *Placement) uint32 {
	c = c[:min(len(c), maxChain)]
	c = x.roomToGrowLocked(in, c)
	if in.stack.next == ^uint32(0)-1 {
		x.renumberLocked(in)
	}
	seq := in.stack.next
	in.stack.next++
	if len(c) == 0 {
		return seq
	}
	if p != nil {
		p.epoch = in.epoch
		x.noteLocked(in, p)
	}
	x.cutLastLocked(in, len(c))
	for _, s := range x.walk {
		x.touchRunLocked(in, s, seq, p == nil)
	}
	x.growLocked(in, c, seq, p == nil)
	for _, s := range slices.Backward(x.walk) {
		x.tree.use(s.at)
	}
	sl := newSlot(seq)
	sl.setTail(x.walk[len(x.walk)-1].at)
	sl.setWeight(len(c))
	sl.setEnd(len(c))
	in.stack.push(&x.tree.mem, sl)
	x.mergeWalkLocked()
	x.settleLocked(in)
	return seq
}

// noteLocked notes in p what is believed of its chain, and pins the slots that its blocks come from.
func (x *Index) noteLocked(in *instance, p *Placement) {
	t, e := &x.tree, x.edges[in.number]
	for _, s := range x.walk {
		h, ok := t.hold(t.run(s.at), in.number)
		if !ok || h.touch() < in.since {
			break
		}
		end := int32(s.depth + min(s.n, h.len()))
		if h.touch() > e.seq {
			p.resident = end
		} else if h.touch() == e.seq && int(e.depth) > s.depth {
			p.resident = min(end, int32(e.depth))
		}
		p.known = end
		if n := len(p.spans); n > 0 && p.spans[n-1].seq == h.touch() {
			last := &p.spans[n-1]
			if last.known == h.confirmed() {
				last.end = end
			} else {
				p.spans = append(p.spans, span{end: end, known: h.confirmed(), seq: h.touch(), reach: last.reach})
			}
			continue
		}
		if p.spans == nil {
			p.spans = make([]span, 0, 4)
		}
		p.spans = append(p.spans, span{end: end, known: h.confirmed(), seq: h.touch(), reach: in.stack.reach(&t.mem, h.touch())})
		if sl, _ := in.stack.get(&t.mem, h.touch()); sl != nil && sl.pins() < maxPins {
			sl.setPins(sl.pins() + 1)
		}
	}
	in.counts.predicted += uint64(p.resident)
	in.counts.known += uint64(p.known)
}

// unpinLocked lets go of the slots that p's blocks came from.
func (x *Index) unpinLocked(p *Placement) {
	if p.epoch != p.in.epoch {
		return
	}
	s, mem := &p.in.stack, &x.tree.mem
	last := uint32(0)
	for _, sp := range p.spans {
		if sp.seq == last || sp.seq < p.in.since {
			continue
		}
		last = sp.seq
		sl, page := s.get(mem, sp.seq)
		if sl == nil || sl.pins() == 0 || sl.pins() == maxPins {
			continue // the last is a count that has lost count: such a slot stays
		}
		sl.setPins(sl.pins() - 1)
		s.settle(mem, page, sl)
	}
}

// cutLastLocked splits the last run of the walk where a chain of n blocks leaves it, if the chain goes on elsewhere or the instance
// holds more of the run than the chain has.
func (x *Index) cutLastLocked(in *instance, n int) {
	if len(x.walk) == 0 {
		return
	}
	t := &x.tree
	last := &x.walk[len(x.walk)-1]
	r := t.run(last.at)
	if last.n == r.len() {
		return
	}
	h, ok := t.hold(r, in.number)
	if last.depth+last.n < n || ok && h.len() > last.n {
		last.at = x.splitLocked(last.at, last.n)
	}
}

// splitLocked splits a run and tells the slots that end in its upper part.
func (x *Index) splitLocked(at ref, k int) ref {
	t := &x.tree
	up := t.split(at, k)
	below := t.run(at)
	for _, w := range t.holdersOf(t.run(up)) {
		h := holder(w)
		if _, ok := t.hold(below, h.inst()); ok {
			continue
		}
		if sl, _ := x.insts[h.inst()].stack.get(&t.mem, h.touch()); sl != nil {
			sl.setTail(up)
		}
	}
	return up
}

// touchRunLocked makes the chain's part of a run the instance's, touched by seq.
func (x *Index) touchRunLocked(in *instance, s step, seq uint32, sure bool) {
	t := &x.tree
	r := t.run(s.at)
	h, ok := t.hold(r, in.number)
	t.setHold(r, newHolder(in.number, s.n, sure, seq))
	in.held += int64(s.n)
	if !ok {
		return
	}
	in.held -= int64(h.len())
	x.stealLocked(in, s.at, h)
}

// stealLocked takes the blocks of a holder from the slot that they are in.
func (x *Index) stealLocked(in *instance, at ref, h holder) {
	mem := &x.tree.mem
	sl, page := in.stack.get(mem, h.touch())
	if sl == nil {
		return
	}
	in.stack.add(sl, page, -h.len())
	if sl.tail() == at {
		sl.setTail(0)
		in.stack.settle(mem, page, sl)
	}
}

// growLocked adds the blocks of a chain that the tree does not have, and extends the walk by them.
func (x *Index) growLocked(in *instance, c prefix.Chain, seq uint32, sure bool) {
	t := &x.tree
	parent := ref(0)
	if n := len(x.walk); n > 0 {
		parent = x.walk[n-1].at
	}
	for depth := x.walk.end(); depth < len(c); {
		n := min(maxRun, len(c)-depth)
		at := t.add(parent, c[depth:depth+n])
		t.setHold(t.run(at), newHolder(in.number, n, sure, seq))
		in.held += int64(n)
		x.walk = append(x.walk, step{at, depth, n})
		depth += n
		parent = at
	}
}

// mergeWalkLocked joins runs of the walk that have come to have one history.
func (x *Index) mergeWalkLocked() {
	for i := 1; i < len(x.walk); i++ {
		x.tree.merge(x.walk[i-1].at, x.walk[i].at)
	}
}

// mergePathLocked joins the runs of a chain, and the last with its only child, where they have come to have one history.
func (x *Index) mergePathLocked(c prefix.Chain) {
	x.walk = x.walk.find(&x.tree, c)
	x.mergeWalkLocked()
	if n := len(x.walk); n > 0 {
		x.tree.tidy(x.walk[n-1].at)
	}
}

// undoLocked gives the blocks whose last touch is p's back to the slots they came from, and forgets those that came from nowhere.
func (x *Index) undoLocked(p *Placement) {
	in, t := p.in, &x.tree
	x.depths = x.depths[:0]
	for _, sp := range p.spans {
		x.depths = append(x.depths, int(sp.end))
	}
	if !x.roomToSplitLocked(p.chain, x.depths...) {
		return
	}
	mine, page := in.stack.get(&t.mem, p.seq)
	if mine == nil || mine.tail() != 0 && !x.walk.has(mine.tail()) {
		return // the latter only with blocks that collide
	}
	from := mine.end() - mine.weight() // blocks before it were touched by others since
	in.stack.add(mine, page, -mine.weight())
	mine.setTail(0)
	in.stack.settle(&t.mem, page, mine)

	start := 0
	for _, sp := range p.spans {
		x.splitWalkLocked(int(sp.end))
		if n := int(sp.end) - max(start, from); n > 0 && sp.seq >= in.since {
			if sl, page := in.stack.get(&t.mem, sp.seq); sl != nil {
				in.stack.add(sl, page, n)
			}
		}
		start = int(sp.end)
	}
	x.restoreLocked(p)
	x.mergePathLocked(p.chain)
}

// has reports whether a run is on the way.
func (p path) has(at ref) bool {
	return slices.ContainsFunc(p, func(s step) bool { return s.at == at })
}

// splitWalkLocked makes a depth of the walk the border of two runs.
func (x *Index) splitWalkLocked(depth int) {
	for i, s := range x.walk {
		if k := depth - s.depth; k > 0 && k < x.tree.run(s.at).len() && k <= s.n {
			x.walk[i].n = k
			x.walk[i].at = x.splitLocked(s.at, k)
			if k < s.n {
				x.walk = slices.Insert(x.walk, i+1, step{s.at, s.depth + k, s.n - k})
			}
			return
		}
	}
}

// restoreLocked makes the holders of p's walk that p touched last what they were before.
func (x *Index) restoreLocked(p *Placement) {
	in, t := p.in, &x.tree
	drop := len(x.walk) // the first run to forget
	i := 0              // the span of the run
	tail := ref(0)      // the last tail set here
	for j, s := range x.walk {
		h, ok := t.hold(t.run(s.at), in.number)
		if !ok {
			drop = min(drop, j)
			break
		}
		for i < len(p.spans) && int(p.spans[i].end) <= s.depth {
			i++
		}
		if h.touch() != p.seq {
			continue
		}
		if i == len(p.spans) || p.spans[i].seq < in.since {
			drop = min(drop, j)
			continue
		}
		sp := &p.spans[i]
		t.setHold(t.run(s.at), newHolder(in.number, h.len(), sp.known, sp.seq))
		if sl, _ := in.stack.get(&t.mem, sp.seq); sl != nil && (sl.tail() == 0 || sl.tail() == tail) {
			sl.setTail(s.at)
			tail = s.at
		}
	}
	for j := len(x.walk) - 1; j >= drop; j-- {
		at := x.walk[j].at
		if h, ok := t.hold(t.run(at), in.number); ok && h.touch() == p.seq {
			x.dropLocked(in, at, h)
		}
	}
}
