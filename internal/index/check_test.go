package index

import (
	"fmt"
	"slices"
	"testing"

	"github.com/warmroute/warmroute/prefix"
)

// checkIndex fails the test when any rule of the package comment is broken.
func checkIndex(t *testing.T, x *Index) {
	t.Helper()
	if err := x.verify(); err != nil {
		t.Fatal(err)
	}
}

// verifier walks a whole index and compares what it finds with what the index keeps.
type verifier struct {
	x       *Index
	objects map[class]int // in use
	words   int64
	rank    map[ref]int // in the order of use, 0 is the newest
	depth   map[ref]int
	kids    map[ref][]ref
	live    map[[2]uint32]int // by instance and touch: blocks
	tails   map[[2]uint32]ref // by instance and touch: the deepest run
	held    map[int]int64
	blocks  int64
	holders int64
}

func (x *Index) verify() error {
	v := &verifier{
		x: x, objects: map[class]int{}, rank: map[ref]int{}, depth: map[ref]int{}, kids: map[ref][]ref{},
		live: map[[2]uint32]int{}, tails: map[[2]uint32]ref{}, held: map[int]int64{},
	}
	for _, f := range []func() error{v.order, v.table, v.runs, v.slots, v.numbers, v.memory} {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

func (v *verifier) use(c class) {
	v.objects[c]++
	v.words += int64(sizes[c])
}

func (v *verifier) order() error {
	t := &v.x.tree
	newer := ref(0)
	for at := t.newest; at != 0; at = t.run(at).older() {
		if _, ok := v.rank[at]; ok {
			return fmt.Errorf("order: run %d twice", at)
		}
		if got := t.run(at).newer(); got != newer {
			return fmt.Errorf("order: run %d has newer %d, want %d", at, got, newer)
		}
		v.rank[at] = len(v.rank)
		newer = at
	}
	if t.oldest != newer {
		return fmt.Errorf("order: oldest is %d, want %d", t.oldest, newer)
	}
	if len(v.rank) != t.runs {
		return fmt.Errorf("order has %d runs, tree has %d", len(v.rank), t.runs)
	}
	return nil
}

func (v *verifier) table() error {
	t := &v.x.tree
	seen := 0
	for n := range t.table.buckets {
		for at := t.head(n); at != 0; at = t.run(at).chained() {
			if _, ok := v.rank[at]; !ok {
				return fmt.Errorf("table: run %d is not in the order", at)
			}
			if got := t.table.bucket(t.run(at).first()); got != n {
				return fmt.Errorf("table: run %d of bucket %d in %d", at, got, n)
			}
			if got := t.lookup(t.run(at).parent(), t.run(at).first()); got != at {
				return fmt.Errorf("table: lookup of run %d finds %d", at, got)
			}
			seen++
		}
	}
	if seen != t.runs {
		return fmt.Errorf("table has %d runs, tree has %d", seen, t.runs)
	}
	for range t.table.pages {
		v.use(bucketClass)
	}
	return nil
}

func (v *verifier) runs() error {
	t := &v.x.tree
	byAge := make([]ref, len(v.rank))
	for at, i := range v.rank {
		byAge[i] = at
	}
	for _, at := range byAge { // parents come first
		r := t.run(at)
		v.use(runClass)
		if n := r.len(); n < 1 || n > maxRun {
			return fmt.Errorf("run %d has %d blocks", at, n)
		}
		if n := r.len(); n > 1 {
			v.use(r.restClass())
			if sizes[r.restClass()] < n-1 {
				return fmt.Errorf("run %d: %d blocks in class %d", at, n, r.restClass())
			}
		}
		v.blocks += int64(r.len())
		if p := r.parent(); p != 0 {
			if i, ok := v.rank[p]; !ok || i > v.rank[at] {
				return fmt.Errorf("run %d is newer than its parent %d, or has none", at, p)
			}
			v.depth[at] = v.depth[p] + t.run(p).len()
			v.kids[p] = append(v.kids[p], at)
		}
		if err := v.holdersOf(at, r); err != nil {
			return fmt.Errorf("run %d: %w", at, err)
		}
	}
	for _, at := range byAge {
		r := t.run(at)
		xored := ref(0)
		for _, k := range v.kids[at] {
			xored ^= k
		}
		if r.kids() != len(v.kids[at]) || r.onlyKid() != xored {
			return fmt.Errorf("run %d has %d children, says %d", at, len(v.kids[at]), r.kids())
		}
	}
	return nil
}

func (v *verifier) holdersOf(at ref, r *run) error {
	t := &v.x.tree
	hs := t.holdersOf(r)
	if len(hs) == 0 {
		return fmt.Errorf("no holders")
	}
	if len(hs) > 1 {
		v.use(class(high(r[5])))
	}
	if !slices.IsSorted(hs) {
		return fmt.Errorf("holders not sorted")
	}
	most := 0
	for i, w := range hs {
		h := holder(w)
		if i > 0 && holder(hs[i-1]).inst() == h.inst() {
			return fmt.Errorf("instance %d twice", h.inst())
		}
		in := v.x.insts[h.inst()]
		if in == nil {
			return fmt.Errorf("instance %d is not known", h.inst())
		}
		if h.len() < 1 || h.len() > r.len() {
			return fmt.Errorf("instance %d holds %d of %d", h.inst(), h.len(), r.len())
		}
		most = max(most, h.len())
		if p := r.parent(); p != 0 {
			above, ok := t.hold(t.run(p), h.inst())
			if !ok || above.len() != t.run(p).len() || above.touch() < h.touch() {
				return fmt.Errorf("instance %d: %x above %x", h.inst(), above, h)
			}
		}
		key := [2]uint32{uint32(h.inst()), h.touch()}
		if tail := v.tails[key]; tail != 0 && tail != r.parent() {
			return fmt.Errorf("instance %d: touch %d is on two ways", h.inst(), h.touch())
		}
		v.live[key] += h.len()
		v.tails[key] = at
		v.held[h.inst()] += int64(h.len())
		v.holders++
	}
	if most != r.len() {
		return fmt.Errorf("nobody holds more than %d of %d", most, r.len())
	}
	return nil
}

func (v *verifier) slots() error {
	x := v.x
	mem := &x.tree.mem
	seen := 0
	for n, in := range x.insts {
		if in == nil {
			continue
		}
		last, total := uint32(0), 0
		for page, p := range in.stack.dir {
			total += int(p.sum)
			v.use(slotClass)
			sum := 0
			for i := range int(p.n) {
				sl := in.stack.slot(mem, page, i)
				if sl.seq() <= last || sl.seq() < p.first || sl.seq() >= in.stack.next {
					return fmt.Errorf("instance %d: slot %d after %d, page %d, next %d", n, sl.seq(), last, p.first, in.stack.next)
				}
				last = sl.seq()
				sum += sl.weight()
				key := [2]uint32{uint32(n), sl.seq()}
				if sl.tail() != v.tails[key] {
					return fmt.Errorf("instance %d: slot %d ends in %d, want %d", n, sl.seq(), sl.tail(), v.tails[key])
				}
				if sl.weight() < v.live[key] || sl.weight() > sl.end() && !sl.idle() {
					return fmt.Errorf("instance %d: slot %d has weight %d of %d, %d known", n, sl.seq(), sl.weight(), sl.end(), v.live[key])
				}
				if v.live[key] > 0 {
					seen++
				}
			}
			if p.n == 0 || int(p.sum) != sum {
				return fmt.Errorf("instance %d: page %d of %d slots has sum %d, want %d", n, page, p.n, p.sum, sum)
			}
		}
		if total != in.stack.total {
			return fmt.Errorf("instance %d: stack has weight %d, want %d", n, in.stack.total, total)
		}
		seq, depth, used := in.stack.cut(mem, in.learn.blocks())
		if seq+1 < in.since {
			seq, depth = in.since-1, 0
		}
		if e := x.edges[n]; e.seq != seq || int(e.depth) != depth || in.used != used {
			return fmt.Errorf("instance %d: edge %v, want %d %d", n, e, seq, depth)
		}
	}
	if seen != len(v.live) {
		return fmt.Errorf("%d slots have blocks, want %d", seen, len(v.live))
	}
	return nil
}

func (v *verifier) numbers() error {
	x := v.x
	if v.blocks != x.tree.blocks || v.holders != x.tree.holders {
		return fmt.Errorf("%d blocks, %d holders; want %d, %d", x.tree.blocks, x.tree.holders, v.blocks, v.holders)
	}
	for n, in := range x.insts {
		if in != nil && in.held != v.held[n] {
			return fmt.Errorf("instance %d knows %d blocks, want %d", n, in.held, v.held[n])
		}
	}
	return nil
}

func (v *verifier) memory() error {
	mem := &v.x.tree.mem
	if mem.live != v.words {
		return fmt.Errorf("arena has %d words in use, want %d", mem.live, v.words)
	}
	used := map[class]int{}
	holes := need{}
	idle := 0
	for n, in := range mem.info {
		if n == 0 {
			continue
		}
		if in.used == 0 {
			idle++
			continue
		}
		used[in.class] += int(in.used)
		holes[in.class] += in.class.perPage() - int(in.used)
	}
	for c := range class(classes) {
		if used[c] != v.objects[c] || holes[c] != mem.holes[c] {
			return fmt.Errorf("class %d: %d used, %d free; want %d, %d", c, used[c], mem.holes[c], v.objects[c], holes[c])
		}
	}
	if idle != len(mem.spare) {
		return fmt.Errorf("%d spare pages, want %d", len(mem.spare), idle)
	}
	if b := v.x.bytesLocked(); b > v.x.cfg.Memory {
		return fmt.Errorf("%d bytes of %d", b, v.x.cfg.Memory)
	}
	return nil
}

// chainOf makes a chain of true hashes, in which equal blocks mean equal beginnings, from words.
func chainOf(words ...int) prefix.Chain {
	c := make(prefix.Chain, len(words))
	h := uint64(0x9e3779b97f4a7c15)
	for i, w := range words {
		h = mix(h ^ mix(uint64(w)+1))
		c[i] = prefix.Block(h)
	}
	return c
}

// mix is the finaliser of splitmix64.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// rising returns the chain of the words from, from+1, ... n of them.
func rising(from, n int) prefix.Chain {
	words := make([]int, n)
	for i := range words {
		words[i] = from + i
	}
	return chainOf(words...)
}
