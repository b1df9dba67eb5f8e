package sim

import "slices"

// pool is the KV cache of one engine: a fixed number of blocks, each either referenced by running requests or free. A free block
// keeps its contents, and can be found by its hash, until it is taken for something else; the least recently freed one goes first.
//
// Blocks are numbered from 1. Number 0 is the sentinel of the free list and stands for "none" everywhere.
type pool struct {
	capacity int // blocks that may exist
	used     int // blocks with references
	cached   int // blocks that can be found by their hash
	off      bool

	blocks []block
	spare  []int32 // numbers that a smaller capacity took away

	// The table of hashes uses linear probing at a load of at most one half. A slot holds the upper half of the mixed hash and the
	// block's number, so that a miss touches one cache line and a removal needs nothing but the table.
	slots   []uint64
	shift   uint
	entries int

	// releases counts what can make room for a waiting request; awaited is the hash whose arrival can.
	releases int64
	awaited  uint64
}

// block is the state of one block.
type block struct {
	key        uint64
	prev, next int32 // free list, while refs is 0
	// Blocks with equal contents form a ring in the order of their registration, whose oldest is in the table. Two requests that
	// compute the same prefix at the same time make such duplicates.
	dupPrev, dupNext int32
	refs             int32
	cached           bool
}

const firstSlots = 256

func newPool(capacity int, off bool) pool {
	p := pool{capacity: capacity, off: off, blocks: make([]block, 1, 64)}
	p.resizeTable(firstSlots)
	return p
}

// free returns how many blocks can be taken.
func (p *pool) free() int { return p.capacity - p.used }

// present returns how many blocks exist: they are made when first needed.
func (p *pool) present() int { return len(p.blocks) - 1 - len(p.spare) }

// take returns a block with one reference. The caller has seen that free is positive. A block that was never used comes first, then
// the least recently freed one, which loses its contents.
func (p *pool) take() int32 {
	p.used++
	id := p.blocks[0].next
	switch {
	case p.present() >= p.capacity:
		p.unlink(id)
		p.unregister(id)
	case len(p.spare) > 0:
		id = p.spare[len(p.spare)-1]
		p.spare = p.spare[:len(p.spare)-1]
	default:
		id = int32(len(p.blocks))
		p.blocks = append(p.blocks, block{})
	}
	p.blocks[id].refs = 1
	return id
}

// share adds a reference to a block that was found.
func (p *pool) share(id int32) {
	b := &p.blocks[id]
	if b.refs == 0 {
		p.unlink(id)
		p.used++
	}
	b.refs++
}

// release drops one reference to each block, the last block first: the tail of a prompt is evicted before its beginning.
func (p *pool) release(ids []int32) {
	p.releases++
	for _, id := range slices.Backward(ids) {
		b := &p.blocks[id]
		b.refs--
		if b.refs > 0 {
			continue
		}
		p.used--
		last := p.blocks[0].prev
		b.prev, b.next = last, 0
		p.blocks[last].next = id
		p.blocks[0].prev = id
	}
}

// unlink takes a block out of the free list.
func (p *pool) unlink(id int32) {
	b := &p.blocks[id]
	p.blocks[b.prev].next = b.next
	p.blocks[b.next].prev = b.prev
}

// setCapacity changes the size. Growing works at once; for shrinking, free blocks go in the order of eviction, and the caller
// makes referenced ones free until the result is true.
func (p *pool) setCapacity(n int) (fits bool) {
	p.capacity = n
	p.releases++
	for p.present() > n && p.blocks[0].next != 0 {
		id := p.blocks[0].next
		p.unlink(id)
		p.unregister(id)
		p.spare = append(p.spare, id)
	}
	return p.used <= n
}

// mixed spreads a hash over the table, which also serves callers whose hashes are small numbers.
func mixed(key uint64) uint32 { return uint32(key * 0x9e3779b97f4a7c15 >> 32) }

// find returns the block with that hash, or 0.
func (p *pool) find(key uint64) int32 {
	tag := mixed(key)
	mask := uint32(len(p.slots) - 1)
	for i := tag >> p.shift; ; i = (i + 1) & mask {
		s := p.slots[i]
		if s == 0 {
			return 0
		}
		if id := int32(uint32(s)); uint32(s>>32) == tag && p.blocks[id].key == key {
			return id
		}
	}
}

// register makes a full block findable.
func (p *pool) register(id int32, key uint64) {
	if p.off {
		return
	}
	if key == p.awaited {
		p.releases++
	}
	p.cached++
	b := &p.blocks[id]
	b.key, b.cached = key, true
	b.dupPrev, b.dupNext = id, id
	if first := p.find(key); first != 0 {
		last := p.blocks[first].dupPrev
		b.dupPrev, b.dupNext = last, first
		p.blocks[last].dupNext = id
		p.blocks[first].dupPrev = id
		return
	}
	if 2*(p.entries+1) > len(p.slots) {
		p.resizeTable(2 * len(p.slots))
	}
	p.entries++
	p.put(uint64(mixed(key))<<32 | uint64(id))
}

// put stores a slot behind those that collide with it.
func (p *pool) put(s uint64) {
	mask := uint32(len(p.slots) - 1)
	i := uint32(s>>32) >> p.shift
	for p.slots[i] != 0 {
		i = (i + 1) & mask
	}
	p.slots[i] = s
}

// unregister makes a block unfindable, if it was not so already.
func (p *pool) unregister(id int32) {
	b := &p.blocks[id]
	if !b.cached {
		return
	}
	b.cached = false
	p.cached--
	heir := b.dupNext
	p.blocks[b.dupPrev].dupNext = heir
	p.blocks[heir].dupPrev = b.dupPrev
	tag := mixed(b.key)
	own := uint64(tag)<<32 | uint64(id)
	mask := uint32(len(p.slots) - 1)
	for i := tag >> p.shift; p.slots[i] != 0; i = (i + 1) & mask {
		if p.slots[i] != own {
			continue
		}
		if heir != id {
			p.slots[i] = uint64(tag)<<32 | uint64(heir)
			return
		}
		p.entries--
		p.vacate(i)
		return
	}
}

// vacate empties a slot and moves the ones after it back, so that no probe stops at the hole.
func (p *pool) vacate(hole uint32) {
	mask := uint32(len(p.slots) - 1)
	for i := (hole + 1) & mask; p.slots[i] != 0; i = (i + 1) & mask {
		home := uint32(p.slots[i]>>32) >> p.shift
		if (i-home)&mask >= (i-hole)&mask {
			p.slots[hole] = p.slots[i]
			hole = i
		}
	}
	p.slots[hole] = 0
}

// resizeTable gives the table n slots, a power of two.
func (p *pool) resizeTable(n int) {
	old := p.slots
	p.slots = make([]uint64, n)
	p.shift = 32
	for m := n; m > 1; m /= 2 {
		p.shift--
	}
	for _, s := range old {
		if s != 0 {
			p.put(s)
		}
	}
}
