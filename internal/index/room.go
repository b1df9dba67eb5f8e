package index

import (
	"slices"

	"github.com/warmroute/warmroute/prefix"
)

// Memory is made before an operation changes anything: it counts what it may allocate at most, and the runs used longest ago are forgotten
// until that fits. So an operation never fails half-way, and never forgets what it stands on.

// roomToGrowLocked finds the way of a chain, in x.walk, and makes room to touch it. It returns as much of the chain as there can be room
// for.
func (x *Index) roomToGrowLocked(in *instance, c prefix.Chain) prefix.Chain {
	for len(c) > 0 {
		x.walk = x.walk.find(&x.tree, c)
		n := need{}
		x.countGrowth(&n, in, c)
		if x.tree.mem.fits(&n) {
			return c
		}
		if !x.evictFor(&n) {
			x.cutOf++
			c = c[:len(c)/2]
		}
	}
	x.walk = x.walk[:0]
	return nil
}

// roomToSplitLocked finds the way of a chain, in x.walk, and makes room to split its runs at the given depths, in rising order. It reports
// whether there is room.
func (x *Index) roomToSplitLocked(c prefix.Chain, depths ...int) bool {
	for {
		x.walk = x.walk.find(&x.tree, c)
		n := need{}
		x.countSplits(&n, depths)
		if x.tree.mem.fits(&n) {
			return true
		}
		if !x.evictFor(&n) {
			x.cutOf++
			return false
		}
	}
}

// evictFor forgets runs that are not on the walk until n fits, and reports whether it forgot any. Runs may have been joined then, so
// the walk has to be found anew.
func (x *Index) evictFor(n *need) bool {
	t := &x.tree
	for _, s := range slices.Backward(x.walk) {
		t.use(s.at)
	}
	forgot := false
	for !forgot || !t.mem.fits(n) {
		if t.oldest == 0 || len(x.walk) > 0 && t.oldest == x.walk[len(x.walk)-1].at {
			return forgot
		}
		forgot = true
		if x.evictOldest() {
			return true
		}
	}
	return true
}

// evictOldest forgets the run used longest ago, which is a leaf. The weight of its blocks stays, because the engine did not forget them.
// It reports whether two runs became one.
func (x *Index) evictOldest() bool {
	t := &x.tree
	at := t.oldest
	r := t.run(at)
	parent := r.parent()
	for _, w := range t.holdersOf(r) {
		h := holder(w)
		in := x.insts[h.inst()]
		in.held -= int64(h.len())
		sl, page := in.stack.get(&t.mem, h.touch())
		if sl == nil {
			continue
		}
		sl.setTail(0)
		if parent != 0 {
			if above, ok := t.hold(t.run(parent), h.inst()); ok && above.touch() == h.touch() {
				sl.setTail(parent)
			}
		}
		in.stack.settle(&t.mem, page, sl)
	}
	t.remove(at)
	x.gone++
	if parent == 0 || t.run(parent).kids() != 1 {
		return false
	}
	return t.merge(parent, t.run(parent).onlyKid())
}

// countSplits counts what splitting runs of the walk at depths, or at its end where that comes first, may take.
func (x *Index) countSplits(n *need, depths []int) {
	i, splits, end := 0, 0, x.walk.end()
	for _, s := range x.walk {
		from, size := 0, x.tree.run(s.at).len()
		for ; i < len(depths) && min(depths[i], end) < s.depth+size; i++ {
			if k := min(depths[i], end) - s.depth; k > from {
				x.countSplit(n, s.at, from, k)
				from = k
				splits++
			}
		}
	}
	x.countBuckets(n, splits)
}

// countGrowth counts what touching a chain may take.
func (x *Index) countGrowth(n *need, in *instance, c prefix.Chain) {
	t := &x.tree
	for _, s := range x.walk {
		r := t.run(s.at)
		if _, ok := t.hold(r, in.number); !ok {
			if count := r.count(); count == 1 || count == sizes[class(high(r[5]))] {
				n[holdersClass(count+1)]++
			}
		}
	}
	if k := len(x.walk); k > 0 && x.walk[k-1].n < t.run(x.walk[k-1].at).len() {
		x.countSplit(n, x.walk[k-1].at, 0, x.walk[k-1].n)
	}
	rest := len(c) - x.walk.end()
	runs := (rest + maxRun - 1) / maxRun
	n[runClass] += runs
	if whole := rest / maxRun; whole > 0 {
		n[classOf(maxRun-1)] += whole
	}
	if part := rest % maxRun; part > 1 {
		n[classOf(part-1)]++
	}
	x.countBuckets(n, runs+1)
	if in.stack.needsPage() {
		n[slotClass]++
	}
}

// countSplit counts what splitting a run after its first k blocks may take, when it was already split after from.
func (x *Index) countSplit(n *need, at ref, from, k int) {
	r := x.tree.run(at)
	n[runClass]++
	if above := k - from; above > 1 {
		n[classOf(above-1)]++
	}
	if below := r.len() - k; below > 1 {
		n[classOf(below-1)]++
	}
	holders := 0
	for _, w := range x.tree.holdersOf(r) {
		if holder(w).len() > k {
			holders++
		}
	}
	if holders > 1 {
		n[holdersClass(holders)]++
	}
}

// countBuckets counts the pages that the table may take for a number of runs more.
func (x *Index) countBuckets(n *need, runs int) {
	b := &x.tree.table
	if more := x.tree.runs + runs - len(b.pages)*bucketsPerPage; more > 0 {
		n[bucketClass] += (more + bucketsPerPage - 1) / bucketsPerPage
	}
}
