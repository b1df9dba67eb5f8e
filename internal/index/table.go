package index

import "github.com/warmroute/warmroute/prefix"

const (
	bucketsPerPage = 2 * pageWords
	bucketClass    = class(classes - 1)
)

// table finds runs by the hash of their first block. It is a hash table that grows by one bucket for each run (linear hashing), so no
// insertion pays for a doubling and no doubled copy ever exists beside the old one. A bucket is 4 bytes and the head of a list of runs.
//
// The place of a block is multiplied with a secret, so that nobody can make up prompts which all fall into one bucket. Nothing that
// the index answers depends on the secret.
type table struct {
	secret  uint64 // odd
	pages   []ref  // of bucketsPerPage buckets each
	buckets int    // in use
	mask    uint64 // the largest 2^k-1 with 2^k <= buckets
}

// bucket returns the number of the bucket of a block.
func (b *table) bucket(h prefix.Block) int {
	m := uint64(h) * b.secret
	m ^= m >> 32
	if n := m & (2*b.mask + 1); n < uint64(b.buckets) {
		return int(n)
	}
	return int(m & b.mask)
}

func (t *tree) bucketWord(n int) (word *uint64, upper bool) {
	return &t.mem.at(t.table.pages[n/bucketsPerPage])[n%bucketsPerPage/2], n&1 != 0
}

func (t *tree) head(n int) ref {
	w, upper := t.bucketWord(n)
	if upper {
		return ref(high(*w))
	}
	return ref(low(*w))
}

func (t *tree) setHead(n int, at ref) {
	w, upper := t.bucketWord(n)
	if upper {
		setHigh(w, uint32(at))
	} else {
		setLow(w, uint32(at))
	}
}

// lookup returns the run that continues parent with block h, or 0. The parent is part of the key: chains that collide, or that
// somebody made up, must not tie the tree into a knot.
func (t *tree) lookup(parent ref, h prefix.Block) ref {
	if t.table.buckets == 0 {
		return 0
	}
	at := t.head(t.table.bucket(h))
	for at != 0 {
		r := t.run(at)
		if r.first() == h && r.parent() == parent {
			return at
		}
		at = r.chained()
	}
	return 0
}

// insert enters a run under its first block, after growing the table by one bucket where there is memory for it.
func (t *tree) insert(at ref, r *run) {
	if t.runs >= t.table.buckets {
		t.grow()
	}
	n := t.table.bucket(r.first())
	r.setChained(t.head(n))
	t.setHead(n, at)
}

// delete removes a run; its first block must not have changed since insert.
func (t *tree) delete(at ref, r *run) {
	n := t.table.bucket(r.first())
	next := t.head(n)
	if next == at {
		t.setHead(n, r.chained())
		return
	}
	for next != 0 {
		p := t.run(next)
		if next = p.chained(); next == at {
			p.setChained(r.chained())
			return
		}
	}
}

// growsPage reports whether the next bucket needs a new page.
func (b *table) growsPage() bool { return b.buckets == len(b.pages)*bucketsPerPage }

// grow adds a bucket and moves to it the runs of another that belong there. Without memory the lists just get longer.
func (t *tree) grow() {
	b := &t.table
	if b.growsPage() {
		p := t.mem.alloc(bucketClass)
		if p == 0 {
			return
		}
		b.pages = append(b.pages, p)
	}
	if b.buckets == 0 {
		b.buckets = 1
		t.setHead(0, 0)
		return
	}
	added := b.buckets
	from := added & int(b.mask) // the bucket whose runs may now belong to the added one
	t.setHead(added, 0)
	b.buckets++
	if uint64(b.buckets) == 2*(b.mask+1) {
		b.mask = 2*b.mask + 1
	}
	at := t.head(from)
	t.setHead(from, 0)
	for at != 0 {
		r := t.run(at)
		next := r.chained()
		n := b.bucket(r.first())
		r.setChained(t.head(n))
		t.setHead(n, at)
		at = next
	}
}
