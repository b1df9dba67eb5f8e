package prefix

// Block is the hash of one block of a prompt and of every block before it.
type Block uint64

// Chain is the hashes of a prompt's complete blocks, first to last. Because
// each depends on all before it, equal blocks at one index mean equal chains
// up to that index.
type Chain []Block

// InstanceID is a small dense number that stands for one instance: one thing
// with one KV cache. Whoever keeps the list of instances hands them out, and
// arrays are sized by the largest.
type InstanceID uint32

// DefaultBlockBytes is the block size when none is given: about 64 tokens of
// English text, or four blocks of a typical engine.
const DefaultBlockBytes = 256

// Common returns the number of leading blocks that c and d share.
func (c Chain) Common(d Chain) int {
	// Equality at an index implies equality before it, so the end of the shared
	// part can be found by bisection instead of a walk.
	lo, hi := 0, min(len(c), len(d))
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if c[mid] == d[mid] {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// HasPrefix reports whether c begins with all of d. Every chain begins with
// the empty one.
func (c Chain) HasPrefix(d Chain) bool {
	return len(d) == 0 || len(d) <= len(c) && c[len(d)-1] == d[len(d)-1]
}
