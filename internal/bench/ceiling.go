package bench

import "sort"

// ceiling is the hit rate's upper bound: one cache without limits that sees
// every request in order of arrival. It keeps the hashes of blocks in an
// open-addressing table, 8 bytes each at a load of at most 3/4. The highest bit
// of a hash gives way to a mark: that the block was asked for again.
type ceiling struct {
	table  []uint64 // 0 means free
	used   int
	reused int // blocks with the mark
}

// mark is the bit of a block that was asked for more than once.
const mark = 1 << 63

// reuse marks blocks that are there. As with the blocks themselves, whoever is
// marked has only marked ones before it.
func (c *ceiling) reuse(blocks []uint64) {
	first := sort.Search(len(blocks), func(i int) bool { return c.table[c.slot(blocks[i])]&mark == 0 })
	for _, b := range blocks[first:] {
		c.table[c.slot(b)] |= mark
		c.reused++
	}
}

// lookup counts the leading blocks that are there. Whoever holds a block holds
// all before it, so the border is found by bisection.
func (c *ceiling) lookup(blocks []uint64) int {
	if len(c.table) == 0 {
		return 0
	}
	return sort.Search(len(blocks), func(i int) bool { return c.table[c.slot(blocks[i])] == 0 })
}

// add puts blocks in, of which the first known ones are there already.
func (c *ceiling) add(blocks []uint64, known int) {
	for _, b := range blocks[known:] {
		if c.used >= len(c.table)/4*3 {
			c.grow()
		}
		if at := c.slot(b); c.table[at] == 0 {
			c.table[at] = nonzero(b)
			c.used++
		}
	}
}

// slot finds where b is, or where it would go.
func (c *ceiling) slot(b uint64) int {
	mask := len(c.table) - 1
	b = nonzero(b)
	for at := int(b>>17) & mask; ; at = (at + 1) & mask {
		if c.table[at]&^mark == b || c.table[at] == 0 {
			return at
		}
	}
}

func (c *ceiling) grow() {
	old := c.table
	c.table = make([]uint64, max(2*len(old), 1<<10))
	for _, b := range old {
		if b != 0 {
			c.table[c.slot(b)] = b
		}
	}
}

// nonzero is a hash as the table keeps it.
func nonzero(b uint64) uint64 { return max(b&^mark, 1) }

// cacheable is how many of a prompt's complete blocks an engine can take from
// its cache: the last token is always computed.
func cacheable(blocks, blockTokens, promptTokens int) int {
	return min(blocks, (promptTokens-1)/blockTokens)
}
