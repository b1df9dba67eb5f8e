package index

import (
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/warmroute/warmroute/prefix"
)

// MaxInstances is the number of instances that an index can tell apart, those of a loaded snapshot that have not joined included.
const MaxInstances = 4096

// Index knows which blocks each instance of the gateway holds.
type Index struct {
	cfg Config // set once by New

	change sync.Mutex // serialises Join, Leave, Flush, Load and DropAbsent; taken before mu
	saving sync.Mutex // one save at a time; taken before mu

	mu     sync.RWMutex // guards all below
	tree   tree
	insts  []*instance // by number; nil is free
	edges  []edge      // by number: what Match needs of an instance
	byID   []int32     // by InstanceID: 1 + number; 0 is nobody
	uids   uint32      // given out so far
	short  uint64
	full   uint64 // joins refused because MaxInstances was reached
	gone   uint64 // runs forgotten for want of memory
	cutOf  uint64 // placements stored in part for want of memory
	walk   path   // scratch of the writers
	depths []int  // likewise
}

// instance is what the index keeps of one instance. Index.mu guards it.
type instance struct {
	number  int
	id      prefix.InstanceID
	name    string
	joined  bool   // false: loaded from a snapshot, or leaving
	left    bool   // its placements mean nothing any more
	uid     uint32 // never used twice, changed by a flush: names the instance's content in a snapshot
	epoch   uint32 // changed when touches are renumbered: older placements can't be taken back
	since   uint32 // touches before it were flushed
	noticed uint32 // the next touch when a report showed the last flush
	stack   stack
	learn   learner
	held    int64 // blocks known
	used    int   // blocks believed to be resident, forgotten ones included
	counts  counts
}

// edge is where an instance's residency ends: blocks with a newer touch than seq are resident, those of seq itself above depth.
type edge struct {
	seq, depth uint32
	id         uint32 // InstanceID; nobody while it has not joined
}

const nobody = ^uint32(0)

// Held is what one instance holds of a chain.
type Held struct {
	Resident int32 // leading blocks believed to be in the cache
	Known    int32 // leading blocks that it was given at some time; those beyond Resident are believed to be evicted
}

// New returns an empty index. Zero settings take their defaults, impossible ones are brought into range.
func New(cfg Config) *Index {
	x := &Index{cfg: cfg.withDefaults()}
	x.reset()
	return x
}

// reset empties the tree.
func (x *Index) reset() {
	x.tree = tree{}
	x.tree.table.secret = rand.Uint64() | 1
	x.limit()
}

// limit shares the memory between the arena and what lives beside it.
func (x *Index) limit() {
	const (
		listed = 40 // a page's share of the arena's lists, with room for growth
		shares = 64 // the part of all memory that is kept for the stacks' lists of pages and for lists being copied as they grow
	)
	beside := x.besideLocked() + x.cfg.Memory/shares
	x.tree.mem.limit = int(max(0, x.cfg.Memory-beside) / (pageBytes + listed))
}

// Join tells that an instance takes requests from now on, under an id that must be free or its own. capacityBlocks is what is known of
// its cache's size; 0 means nothing. When a snapshot holds an instance of that name, its blocks and what was learned are taken over.
// An instance beyond [MaxInstances] is refused and counted: the index knows nothing of it.
func (x *Index) Join(id prefix.InstanceID, name string, capacityBlocks int) {
	x.change.Lock()
	defer x.change.Unlock()
	x.mu.Lock()
	in := x.byIDLocked(id)
	x.mu.Unlock()
	if in != nil && in.name != name {
		x.leave(in)
		in = nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if in == nil {
		if in = x.enterLocked(id, name); in == nil {
			return
		}
	}
	x.setCapacityLocked(in, capacityBlocks)
}

// enterLocked binds id to the instance that a snapshot holds under the name, or to a new one. It returns nil when there are too many.
func (x *Index) enterLocked(id prefix.InstanceID, name string) *instance {
	in := x.absentLocked(name)
	if in == nil {
		if in = x.newInstanceLocked(name); in == nil {
			x.full++
			return nil
		}
	}
	in.id, in.joined = id, true
	if n := int(id) + 1; n > len(x.byID) {
		x.byID = append(x.byID, make([]int32, n-len(x.byID))...)
	}
	x.byID[id] = int32(in.number) + 1
	x.edges[in.number].id = uint32(id)
	return in
}

// newInstanceLocked returns a new instance that has not joined, or nil when there are too many.
func (x *Index) newInstanceLocked(name string) *instance {
	n := slices.Index(x.insts, nil)
	if n < 0 {
		if n = len(x.insts); n == MaxInstances {
			return nil
		}
		x.insts, x.edges = append(x.insts, nil), append(x.edges, edge{})
	}
	x.uids++
	in := &instance{number: n, name: name, uid: x.uids, since: 1}
	in.stack.next = 1
	x.insts[n], x.edges[n] = in, edge{id: nobody}
	x.limit()
	return in
}

// absentLocked returns the instance that a snapshot holds under a name and that has not joined, or nil.
func (x *Index) absentLocked(name string) *instance {
	for _, in := range x.insts {
		if in != nil && !in.joined && !in.left && in.name == name {
			return in
		}
	}
	return nil
}

// byIDLocked returns the instance of an id, or nil.
func (x *Index) byIDLocked(id prefix.InstanceID) *instance {
	if int64(id) >= int64(len(x.byID)) || x.byID[id] == 0 {
		return nil
	}
	return x.insts[x.byID[id]-1]
}

// Leave forgets an instance. It costs the instance's own entries only, and lets other calls through in between.
func (x *Index) Leave(id prefix.InstanceID) {
	x.change.Lock()
	defer x.change.Unlock()
	x.mu.RLock()
	in := x.byIDLocked(id)
	x.mu.RUnlock()
	if in != nil {
		x.leave(in)
	}
}

// DropAbsent forgets the instances of a snapshot that have not joined, and returns their number. Call it when those that live have
// had time to join.
func (x *Index) DropAbsent() int {
	x.change.Lock()
	defer x.change.Unlock()
	x.mu.RLock()
	var absent []*instance
	for _, in := range x.insts {
		if in != nil && !in.joined {
			absent = append(absent, in)
		}
	}
	x.mu.RUnlock()
	for _, in := range absent {
		x.leave(in)
	}
	return len(absent)
}

// leave removes an instance. x.change is held.
func (x *Index) leave(in *instance) {
	x.mu.Lock()
	in.left = true
	if in.joined {
		x.byID[in.id] = 0
		x.edges[in.number].id = nobody
		in.joined = false
	}
	x.mu.Unlock()
	x.sweep(in)
	x.mu.Lock()
	defer x.mu.Unlock()
	in.stack.clear(&x.tree.mem)
	x.insts[in.number] = nil
}

// Flush forgets what an instance held so far, because it restarted or its cache was reset. What was learned of its size stays.
func (x *Index) Flush(id prefix.InstanceID) {
	x.change.Lock()
	defer x.change.Unlock()
	x.mu.Lock()
	in := x.byIDLocked(id)
	if in == nil {
		x.mu.Unlock()
		return
	}
	x.flushLocked(in, in.stack.next)
	x.mu.Unlock()
	x.sweep(in)
}

// flushLocked makes the touches before one void at once. The caller sweeps them out afterwards.
func (x *Index) flushLocked(in *instance, before uint32) {
	x.uids++
	in.uid = x.uids
	in.since = before
	in.counts.flushes++
	x.settleLocked(in)
}

// sweepSlots bounds how long a sweep keeps other calls waiting: some 100 microseconds.
const sweepSlots = 256

// sweep removes what was flushed, or everything of an instance that left, a few slots at a time.
func (x *Index) sweep(in *instance) {
	for done := false; !done; {
		x.mu.Lock()
		done = x.sweepLocked(in, sweepSlots)
		x.mu.Unlock()
	}
}

// sweepLocked removes up to n slots, oldest first, and reports whether that was all. Blocks touched earlier are deeper, so what is
// removed is always the end of what the instance holds.
func (x *Index) sweepLocked(in *instance, n int) bool {
	s, mem := &in.stack, &x.tree.mem
	before := in.since
	if in.left {
		before = ^uint32(0)
	}
	for len(s.dir) > 0 && n > 0 {
		i := 0
		for ; i < int(s.dir[0].n); i++ {
			sl := s.slot(mem, 0, i)
			if sl.seq() >= before {
				break
			}
			x.forgetLocked(in, sl)
		}
		n -= i
		last := i < int(s.dir[0].n)
		s.dropFirst(mem, i)
		if last {
			n = 0
		}
		if last || len(s.dir) == 0 {
			x.settleLocked(in)
			return true
		}
	}
	x.settleLocked(in)
	return len(s.dir) == 0
}

// forgetLocked removes an instance from the blocks of one of its slots.
func (x *Index) forgetLocked(in *instance, sl *slot) {
	t := &x.tree
	at := sl.tail()
	for at != 0 {
		r := t.run(at)
		h, ok := t.hold(r, in.number)
		if !ok || h.touch() != sl.seq() {
			t.tidy(at)
			break
		}
		at = x.dropLocked(in, at, h)
	}
	sl.setTail(0)
}

// dropLocked removes an instance from a run, and the run with it when nobody else holds it. It returns the parent.
func (x *Index) dropLocked(in *instance, at ref, h holder) ref {
	t := &x.tree
	r := t.run(at)
	parent := r.parent()
	t.dropHold(r, in.number)
	in.held -= int64(h.len())
	if r.count() == 0 {
		t.remove(at)
		return parent
	}
	t.trim(r)
	t.shrinkHolders(r)
	t.tidy(at)
	return parent
}

// settleLocked finds where the instance's residency ends, after its touches or its capacity changed.
func (x *Index) settleLocked(in *instance) {
	e := &x.edges[in.number]
	seq, depth, used := in.stack.cut(&x.tree.mem, in.learn.blocks())
	if seq+1 < in.since {
		seq, depth = in.since-1, 0
	}
	e.seq, e.depth, in.used = seq, uint32(depth), used
}

// SetCapacity tells an instance's cache size in blocks, as its configuration or a scrape says it. It is where learning starts from;
// telling about the same again (within a quarter) changes nothing.
func (x *Index) SetCapacity(id prefix.InstanceID, blocks int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if in := x.byIDLocked(id); in != nil {
		x.setCapacityLocked(in, blocks)
	}
}

func (x *Index) setCapacityLocked(in *instance, blocks int) {
	if in.learn.tell(blocks) {
		x.settleLocked(in)
	}
}

// Match returns what every instance holds of a chain, by InstanceID, in dst's memory when it is large enough. Ids that never joined
// have zeros.
func (x *Index) Match(c prefix.Chain, dst []Held) []Held {
	x.mu.RLock()
	defer x.mu.RUnlock()
	dst = slices.Grow(dst[:0], len(x.byID))[:len(x.byID)]
	clear(dst)
	t := &x.tree
	s := step{} // the deepest run of the chain
	for end := 0; end < len(c); {
		at := t.lookup(s.at, c[end])
		if at == 0 {
			break
		}
		r := t.run(at)
		s = step{at, end, t.common(r, c[end:])}
		end += s.n
		if s.n < r.len() {
			break
		}
	}
	m := matcher{x: x, dst: dst}
	for s.at != 0 {
		r := t.run(s.at)
		if r.count() > m.settled {
			m.run(r, s)
		}
		if s.at = r.parent(); s.at != 0 {
			s.n = t.run(s.at).len()
			s.depth -= s.n
		}
	}
	return dst
}

// matcher goes over the runs of a chain from its end to its beginning. Who holds a run holds all runs above it, so a run with no more
// holders than were settled below has nothing to add.
type matcher struct {
	x       *Index
	dst     []Held
	settled int                       // instances whose Held is final
	is      [MaxInstances / 64]uint64 // which they are, a bit for each number
}

// run enters the holders of a run.
func (m *matcher) run(r *run, s step) {
	edges := m.x.edges
	for _, w := range m.x.tree.holdersOf(r) {
		h := holder(w)
		n := h.inst()
		if m.is[n/64&(len(m.is)-1)]>>(n%64)&1 != 0 {
			continue
		}
		e := &edges[n]
		if uint64(e.id) >= uint64(len(m.dst)) {
			m.settle(n) // has not joined
			continue
		}
		d := &m.dst[e.id]
		end := int32(s.depth + min(s.n, h.len()))
		d.Known = max(d.Known, end)
		switch touch := h.touch(); {
		case touch > e.seq:
			d.Resident = end
			m.settle(n)
		case touch == e.seq && int(e.depth) > s.depth:
			d.Resident = min(end, int32(e.depth))
			m.settle(n)
		}
	}
}

func (m *matcher) settle(n int) {
	m.settled++
	m.is[n/64&(len(m.is)-1)] |= 1 << (n % 64)
}

// renumberLocked numbers an instance's touches anew, from 1. It is needed once in four billion touches.
func (x *Index) renumberLocked(in *instance) {
	s, t := &in.stack, &x.tree
	next, since := uint32(1), uint32(0)
	for page := range s.dir {
		p := &s.dir[page]
		for i := range int(p.n) {
			sl := s.slot(&t.mem, page, i)
			if since == 0 && sl.seq() >= in.since {
				since = next
			}
			x.renumberSlot(in, sl, next)
			if i == 0 {
				p.first = next
			}
			next++
		}
	}
	if since == 0 {
		since = next
	}
	in.since, in.noticed, s.next = since, next, next
	in.epoch++
	x.settleLocked(in)
}

// renumberSlot gives a slot, and the blocks that it touched last, a new number. Numbers only fall, and slots are renumbered oldest
// first, so no two are the same in between.
func (x *Index) renumberSlot(in *instance, sl *slot, seq uint32) {
	t := &x.tree
	for at := sl.tail(); at != 0; {
		r := t.run(at)
		h, ok := t.hold(r, in.number)
		if !ok || h.touch() != sl.seq() {
			break
		}
		t.setHold(r, newHolder(h.inst(), h.len(), h.confirmed(), seq))
		at = r.parent()
	}
	setLow(&sl[0], seq)
	sl.setPins(0)
}
