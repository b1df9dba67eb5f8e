package prefix

import (
	"io"
	"slices"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// Hasher turns the bytes written to it into a [Chain]. The zero value is ready
// and uses [DefaultBlockBytes]. It keeps its memory between prompts: in steady
// state neither Reset nor a write allocates. A Hasher is not safe for
// concurrent use.
type Hasher struct {
	block []byte // the incomplete block; its length is the block size
	fill  int    // bytes of block that are written
	last  uint64 // hash of the last complete block
	bytes int64
	chain Chain
}

var (
	_ io.Writer       = (*Hasher)(nil)
	_ io.StringWriter = (*Hasher)(nil)
	_ io.ByteWriter   = (*Hasher)(nil)
)

// Reset forgets everything written and sets the size of a block in bytes; zero
// or less means [DefaultBlockBytes]. The chain's memory is kept and written
// over, so chains taken before are no longer valid.
func (h *Hasher) Reset(blockBytes int) {
	if blockBytes <= 0 {
		blockBytes = DefaultBlockBytes
	}
	if cap(h.block) < blockBytes {
		h.block = make([]byte, blockBytes)
	}
	h.block = h.block[:blockBytes]
	h.fill, h.last, h.bytes = 0, 0, 0
	h.chain = h.chain[:0]
}

// Write adds p to the prompt. It never fails.
func (h *Hasher) Write(p []byte) (int, error) {
	if len(h.block) == 0 {
		h.Reset(0)
	}
	n := len(p)
	h.bytes += int64(n)
	if h.fill > 0 {
		c := copy(h.block[h.fill:], p)
		h.fill += c
		p = p[c:]
		if h.fill < len(h.block) {
			return n, nil
		}
		h.add(h.block)
		h.fill = 0
	}
	// Whole blocks are hashed where they lie; only the rest is copied.
	size := len(h.block)
	for len(p) >= size {
		h.add(p[:size])
		p = p[size:]
	}
	h.fill = copy(h.block, p)
	return n, nil
}

// WriteString adds s to the prompt. It never fails.
func (h *Hasher) WriteString(s string) (int, error) {
	// Write only reads its argument, so the string needs no copy.
	return h.Write(unsafe.Slice(unsafe.StringData(s), len(s)))
}

// WriteByte adds one byte to the prompt. It never fails.
func (h *Hasher) WriteByte(c byte) error {
	if len(h.block) == 0 {
		h.Reset(0)
	}
	h.bytes++
	h.block[h.fill] = c
	h.fill++
	if h.fill == len(h.block) {
		h.add(h.block)
		h.fill = 0
	}
	return nil
}

// Chain returns the complete blocks so far. It aliases the Hasher's memory and
// is valid until the next Reset; later writes append to it.
func (h *Hasher) Chain() Chain { return slices.Clip(h.chain) }

// Bytes returns the number of bytes written since the last Reset, those of the
// incomplete block included.
func (h *Hasher) Bytes() int64 { return h.bytes }

// BlockBytes returns the size of a block in bytes.
func (h *Hasher) BlockBytes() int {
	if len(h.block) == 0 {
		return DefaultBlockBytes
	}
	return len(h.block)
}

func (h *Hasher) add(block []byte) {
	h.last = xxh3.HashSeed(block, h.last)
	h.chain = append(h.chain, Block(h.last))
}
