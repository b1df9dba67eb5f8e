package index

import "github.com/warmroute/warmroute/prefix"

// maxRun is the number of blocks of the longest run. It bounds what a split copies; a 32k-token prompt is four runs.
const maxRun = 128

// run is a piece of a chain whose blocks have one history: for each instance, its leading blocks were last touched together. Its
// children are the runs that continue it, its parent is the run that it continues.
//
//	word 0  hash of the first block, the key of the table
//	word 1  parent | next run of the same bucket
//	word 2  newer | older neighbour in the order of use
//	word 3  number of children | their refs, xored (which names the only one)
//	word 4  ref of the other hashes | number of blocks (8 bits) | their size class (8) | number of holders (16)
//	word 5  the holder when there is one, else ref of the holders | their size class
type run [runWords]uint64

const (
	runWords = 6
	runClass = class(runWords - 1)
)

func low(w uint64) uint32  { return uint32(w) }
func high(w uint64) uint32 { return uint32(w >> 32) }

func setLow(w *uint64, v uint32)  { *w = *w&^0xffffffff | uint64(v) }
func setHigh(w *uint64, v uint32) { *w = *w&0xffffffff | uint64(v)<<32 }

func (r *run) first() prefix.Block     { return prefix.Block(r[0]) }
func (r *run) setFirst(b prefix.Block) { r[0] = uint64(b) }
func (r *run) parent() ref             { return ref(low(r[1])) }
func (r *run) setParent(p ref)         { setLow(&r[1], uint32(p)) }
func (r *run) chained() ref            { return ref(high(r[1])) }
func (r *run) setChained(n ref)        { setHigh(&r[1], uint32(n)) }
func (r *run) newer() ref              { return ref(low(r[2])) }
func (r *run) setNewer(n ref)          { setLow(&r[2], uint32(n)) }
func (r *run) older() ref              { return ref(high(r[2])) }
func (r *run) setOlder(o ref)          { setHigh(&r[2], uint32(o)) }
func (r *run) kids() int               { return int(low(r[3])) }
func (r *run) onlyKid() ref            { return ref(high(r[3])) }
func (r *run) len() int                { return int(uint8(r[4] >> 32)) }
func (r *run) setLen(n int)            { r[4] = r[4]&^(0xff<<32) | uint64(n)<<32 }
func (r *run) rest() ref               { return ref(low(r[4])) }
func (r *run) restClass() class        { return class(r[4] >> 40) }
func (r *run) count() int              { return int(r[4] >> 48) }
func (r *run) setCount(n int)          { r[4] = r[4]&^(0xffff<<48) | uint64(n)<<48 }

func (r *run) setRest(at ref, c class) {
	r[4] = r[4]&^(0xff<<40|0xffffffff) | uint64(c)<<40 | uint64(at)
}

func (r *run) addKid(k ref)  { r[3] = uint64(low(r[3])+1) | uint64(high(r[3])^uint32(k))<<32 }
func (r *run) dropKid(k ref) { r[3] = uint64(low(r[3])-1) | uint64(high(r[3])^uint32(k))<<32 }

// holder says which leading blocks of a run an instance holds and when it touched them: instance (16 bits), number of blocks (8),
// confirmed (8), touch (32). In a run, holders are sorted by instance.
type holder uint64

func newHolder(inst, blocks int, confirmed bool, touch uint32) holder {
	h := holder(inst)<<48 | holder(blocks)<<40 | holder(touch)
	if confirmed {
		h |= 1 << 32
	}
	return h
}

func (h holder) inst() int       { return int(h >> 48) }
func (h holder) len() int        { return int(uint8(h >> 40)) }
func (h holder) confirmed() bool { return h>>32&1 != 0 }
func (h holder) touch() uint32   { return uint32(h) }

// same reports whether two holders are of one instance and one history.
func (h holder) same(o holder) bool { return (h^o)&^(0xff<<40) == 0 }

func (h holder) withLen(n int) holder { return h&^(0xff<<40) | holder(n)<<40 }

// tree is the compressed tree of runs with its table and its order of use. The order is newest first, and a parent is always newer
// than its children, so that the oldest run is a leaf.
type tree struct {
	mem            arena
	table          table
	newest, oldest ref
	cursor         ref // the next run that a save visits; moved on when that run moves
	runs           int
	blocks         int64
	holders        int64 // pairs of run and instance
}

func (t *tree) run(r ref) *run { return (*run)(t.mem.at(r)) }

// block returns block i of a run.
func (t *tree) block(r *run, i int) prefix.Block {
	if i == 0 {
		return r.first()
	}
	return prefix.Block(t.mem.at(r.rest())[i-1])
}

// common returns how many leading blocks of the run c begins with. The first is known to be equal. Each hash depends on all before it,
// so one equal hash means that everything before is equal too.
func (t *tree) common(r *run, c prefix.Chain) int {
	n := min(r.len(), len(c))
	if n == 1 {
		return 1
	}
	rest := t.mem.at(r.rest())
	if prefix.Block(rest[n-2]) == c[n-1] {
		return n
	}
	lo, hi := 1, n-1 // c[:lo] is common, c[hi] differs
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if prefix.Block(rest[mid-1]) == c[mid] {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// holdersOf returns the holders of a run, to read and to overwrite.
func (t *tree) holdersOf(r *run) []uint64 {
	n := r.count()
	if n == 1 {
		return r[5:6]
	}
	if n == 0 {
		return nil
	}
	return t.mem.at(ref(low(r[5])))[:n]
}

// find returns the position of an instance among holders, or where it belongs.
func find(hs []uint64, inst int) (int, bool) {
	key := uint64(inst) << 48
	lo, hi := 0, len(hs)
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if hs[mid] < key {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, lo < len(hs) && holder(hs[lo]).inst() == inst
}

// hold returns what an instance holds of a run.
func (t *tree) hold(r *run, inst int) (holder, bool) {
	hs := t.holdersOf(r)
	if i, ok := find(hs, inst); ok {
		return holder(hs[i]), true
	}
	return 0, false
}

// holdersClass returns the class of the list of n holders; growth leaves room for a quarter more.
func holdersClass(n int) class { return classOf(min(n+n/4, pageWords)) }

// setHold sets what the holder's instance holds of the run. There must be memory for it.
func (t *tree) setHold(r *run, h holder) {
	hs := t.holdersOf(r)
	i, ok := find(hs, h.inst())
	if ok {
		hs[i] = uint64(h)
		return
	}
	t.holders++
	n := len(hs)
	r.setCount(n + 1)
	if n == 0 {
		r[5] = uint64(h)
		return
	}
	if n == 1 || n == sizes[class(high(r[5]))] {
		c := holdersClass(n + 1)
		at := t.mem.alloc(c)
		grown := t.mem.at(at)[:n+1]
		copy(grown, hs)
		if n > 1 {
			t.mem.free(ref(low(r[5])), class(high(r[5])))
		}
		r[5] = uint64(at) | uint64(c)<<32
	}
	hs = t.holdersOf(r)
	copy(hs[i+1:], hs[i:n])
	hs[i] = uint64(h)
}

// dropHold removes an instance from a run.
func (t *tree) dropHold(r *run, inst int) {
	hs := t.holdersOf(r)
	i, ok := find(hs, inst)
	if !ok {
		return
	}
	t.holders--
	n := len(hs)
	copy(hs[i:], hs[i+1:])
	r.setCount(n - 1)
	if n == 2 {
		last := hs[0]
		t.mem.free(ref(low(r[5])), class(high(r[5])))
		r[5] = last
	}
}

// shrinkHolders moves a list that has become much too large to a smaller object when one is to be had.
func (t *tree) shrinkHolders(r *run) {
	if r.count() < 2 || 4*r.count() >= sizes[class(high(r[5]))] {
		return
	}
	c := holdersClass(r.count())
	to := t.mem.alloc(c)
	if to == 0 {
		return
	}
	copy(t.mem.at(to), t.holdersOf(r))
	t.mem.free(ref(low(r[5])), class(high(r[5])))
	r[5] = uint64(to) | uint64(c)<<32
}

// freeHolders gives back the list of holders.
func (t *tree) freeHolders(r *run) {
	t.holders -= int64(r.count())
	if r.count() > 1 {
		t.mem.free(ref(low(r[5])), class(high(r[5])))
	}
	r.setCount(0)
}

// add makes a run of blocks without holders, as the newest, under parent. There must be memory for it.
func (t *tree) add(parent ref, blocks prefix.Chain) ref {
	at := t.mem.alloc(runClass)
	r := t.run(at)
	*r = run{}
	r.setFirst(blocks[0])
	r.setLen(len(blocks))
	r.setParent(parent)
	if n := len(blocks) - 1; n > 0 {
		c := classOf(n)
		rest := t.mem.alloc(c)
		r.setRest(rest, c)
		words := t.mem.at(rest)
		for i, b := range blocks[1:] {
			words[i] = uint64(b)
		}
	}
	if parent != 0 {
		t.run(parent).addKid(at)
	}
	t.insert(at, r)
	t.pushNewest(at, r)
	t.runs++
	t.blocks += int64(len(blocks))
	return at
}

// remove takes a leaf out of the tree. Its holders' instances are the caller's business.
func (t *tree) remove(at ref) {
	r := t.run(at)
	if p := r.parent(); p != 0 {
		t.run(p).dropKid(at)
	}
	t.delete(at, r)
	t.unlink(at, r)
	t.runs--
	t.blocks -= int64(r.len())
	t.freeHolders(r)
	t.discard(at, r)
}

// discard gives back the memory of a run that nothing refers to.
func (t *tree) discard(at ref, r *run) {
	if r.len() > 1 {
		t.mem.free(r.rest(), r.restClass())
	}
	t.mem.free(at, runClass)
}

// split cuts a run after its first k blocks. The lower part keeps its ref, because its children know it; the upper part is new and is
// returned. There must be memory for it.
func (t *tree) split(at ref, k int) ref {
	up := t.mem.alloc(runClass)
	r, u := t.run(at), t.run(up)
	*u = run{}
	u.setFirst(r.first())
	u.setLen(k)
	u.setParent(r.parent())
	rest := t.mem.at(r.rest())
	if k > 1 {
		c := classOf(k - 1)
		to := t.mem.alloc(c)
		u.setRest(to, c)
		copy(t.mem.at(to)[:k-1], rest)
	}
	t.delete(at, r)
	if p := r.parent(); p != 0 {
		t.run(p).dropKid(at)
		t.run(p).addKid(up)
	}
	u.addKid(at)
	t.insert(up, u)

	n := r.len() - k
	r.setFirst(prefix.Block(rest[k-1]))
	r.setParent(up)
	r.setLen(n)
	if n > 1 {
		copy(rest[:n-1], rest[k:])
		t.shrinkRest(r)
	} else {
		t.mem.free(r.rest(), r.restClass())
	}
	t.insert(at, r)
	t.linkBefore(up, u, at, r)
	t.runs++
	t.splitHolders(r, u, k)
	return up
}

// splitHolders gives the upper part u the list of holders, and the lower part r a new one of those that held more than k blocks.
func (t *tree) splitHolders(r, u *run, k int) {
	u.setCount(r.count())
	u[5] = r[5]
	all, below := t.holdersOf(u), 0
	for _, w := range all {
		if holder(w).len() > k {
			below++
		}
	}
	t.holders += int64(below)
	r.setCount(below)
	if below > 1 {
		c := holdersClass(below)
		r[5] = uint64(t.mem.alloc(c)) | uint64(c)<<32
	}
	hs := t.holdersOf(r)
	n := 0
	for i, w := range all {
		if h := holder(w); h.len() > k {
			hs[n] = uint64(h.withLen(h.len() - k))
			all[i] = uint64(h.withLen(k))
			n++
		}
	}
}

// shrinkRest moves the hashes of a run to a smaller object when one is to be had.
func (t *tree) shrinkRest(r *run) {
	n := r.len() - 1
	c := classOf(n)
	if c == r.restClass() {
		return
	}
	to := t.mem.alloc(c)
	if to == 0 {
		return
	}
	copy(t.mem.at(to)[:n], t.mem.at(r.rest()))
	t.mem.free(r.rest(), r.restClass())
	r.setRest(to, c)
}

// trim cuts the blocks that nobody holds off the end of a run that has holders. It can have no children then.
func (t *tree) trim(r *run) {
	most := 0
	for _, w := range t.holdersOf(r) {
		if most = max(most, holder(w).len()); most == r.len() {
			return
		}
	}
	t.blocks -= int64(r.len() - most)
	r.setLen(most)
	if most > 1 {
		t.shrinkRest(r)
	} else {
		t.mem.free(r.rest(), r.restClass())
	}
}

// mergeable reports whether the child continues the run with the same holders and the same history.
func (t *tree) mergeable(r, kid *run) bool {
	n := r.len() + kid.len()
	if r.kids() != 1 || r.count() != kid.count() || n > maxRun {
		return false
	}
	ks := t.holdersOf(kid)
	for i, w := range t.holdersOf(r) {
		if !holder(w).same(holder(ks[i])) {
			return false
		}
	}
	return true
}

// merge joins a run with its only child when their histories are the same, and reports whether it did. The child keeps its ref, the
// run's own is gone. Merging saves memory but may need some first; without any it waits for another occasion.
func (t *tree) merge(at, kidAt ref) bool {
	r, kid := t.run(at), t.run(kidAt)
	if !t.mergeable(r, kid) {
		return false
	}
	n, m := r.len(), kid.len()
	c := classOf(n + m - 1)
	to := t.mem.alloc(c)
	if to == 0 {
		return false
	}
	words := t.mem.at(to)
	if n > 1 {
		copy(words[:n-1], t.mem.at(r.rest()))
	}
	words[n-1] = uint64(kid.first())
	if m > 1 {
		copy(words[n:n+m-1], t.mem.at(kid.rest()))
		t.mem.free(kid.rest(), kid.restClass())
	}
	t.delete(at, r)
	t.delete(kidAt, kid)
	kid.setRest(to, c)
	kid.setLen(n + m)
	kid.setFirst(r.first())
	kid.setParent(r.parent())
	if p := r.parent(); p != 0 {
		t.run(p).dropKid(at)
		t.run(p).addKid(kidAt)
	}
	t.insert(kidAt, kid)
	for i, w := range t.holdersOf(kid) {
		t.holdersOf(kid)[i] = uint64(holder(w).withLen(n + holder(w).len()))
	}
	t.unlink(kidAt, kid)
	t.linkBefore(kidAt, kid, at, r)
	t.unlink(at, r)
	t.runs--
	t.freeHolders(r)
	t.discard(at, r)
	return true
}

// tidy joins a run with its only child if it can.
func (t *tree) tidy(at ref) {
	if r := t.run(at); r.kids() == 1 {
		t.merge(at, r.onlyKid())
	}
}
