package prefix_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/warmroute/warmroute/prefix"
)

func bottles() string {
	var b strings.Builder
	for i := range 60 {
		fmt.Fprintf(&b, "%d bottles of beer on the wall, ", i)
	}
	return b.String()
}

func chainOf(blockBytes int, text string) prefix.Chain {
	var h prefix.Hasher
	h.Reset(blockBytes)
	_, _ = h.WriteString(text)
	return slices.Clone(h.Chain())
}

// The expected hashes come from Cyan4973's C implementation, through Python's
// xxhash: the function is part of the package's contract.
func TestChainIsXXH3SeededWithTheBlockBefore(t *testing.T) {
	f := func(blockBytes, blocks int, first, second, last prefix.Block) {
		t.Helper()
		c := chainOf(blockBytes, bottles())
		if len(c) != blocks || c[0] != first || c[1] != second || c[len(c)-1] != last {
			t.Errorf("block %d: got %d blocks, %#x %#x ... %#x; want %d, %#x %#x ... %#x",
				blockBytes, len(c), c[0], c[1], c[len(c)-1], blocks, first, second, last)
		}
	}
	f(64, 29, 0x7492d2f5f2523fc, 0xe3bc8da0090f935, 0x3418096fbc1222e9)
	f(256, 7, 0x32222a51969a14a9, 0xd7a3e8ea0574d918, 0x2ade8c2f94641a25)
}

func TestChainDoesNotDependOnHowItIsWritten(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	text := bottles()
	for _, blockBytes := range []int{1, 7, 64, 256, 1 << 20} {
		want := chainOf(blockBytes, text)
		for range 50 {
			var h prefix.Hasher
			h.Reset(blockBytes)
			for rest := text; rest != ""; {
				n := min(1+rng.IntN(2*blockBytes+3), len(rest))
				switch rng.IntN(3) {
				case 0:
					_, _ = h.Write([]byte(rest[:n]))
				case 1:
					_, _ = h.WriteString(rest[:n])
				default:
					n = 1
					_ = h.WriteByte(rest[0])
				}
				rest = rest[n:]
			}
			if !slices.Equal(h.Chain(), want) {
				t.Fatalf("block %d: pieces give another chain than the whole", blockBytes)
			}
			if h.Bytes() != int64(len(text)) {
				t.Fatalf("Bytes is %d; want %d", h.Bytes(), len(text))
			}
		}
	}
}

func TestOnlyCompleteBlocksCount(t *testing.T) {
	f := func(bytes, want int) {
		t.Helper()
		if got := len(chainOf(256, strings.Repeat("x", bytes))); got != want {
			t.Errorf("%d bytes: got %d blocks; want %d", bytes, got, want)
		}
	}
	f(0, 0)
	f(255, 0)
	f(256, 1)
	f(511, 1)
	f(512, 2)
}

func TestZeroHasherUsesDefault(t *testing.T) {
	want := chainOf(prefix.DefaultBlockBytes, bottles())
	var h prefix.Hasher
	if h.BlockBytes() != prefix.DefaultBlockBytes {
		t.Errorf("BlockBytes is %d; want %d", h.BlockBytes(), prefix.DefaultBlockBytes)
	}
	_ = h.WriteByte(bottles()[0])
	_, _ = h.WriteString(bottles()[1:])
	if !slices.Equal(h.Chain(), want) {
		t.Error("the zero Hasher gives another chain than one reset to the default")
	}
}

func TestResetForgets(t *testing.T) {
	var h prefix.Hasher
	h.Reset(64)
	_, _ = h.WriteString(bottles()[:100])
	h.Reset(256)
	if len(h.Chain()) != 0 || h.Bytes() != 0 || h.BlockBytes() != 256 {
		t.Errorf("after Reset: %d blocks, %d bytes, block of %d; want 0, 0, 256", len(h.Chain()), h.Bytes(), h.BlockBytes())
	}
	_, _ = h.WriteString(bottles())
	if !slices.Equal(h.Chain(), chainOf(256, bottles())) {
		t.Error("a reused Hasher gives another chain than a new one")
	}
}

func TestChainTakenEarlyStays(t *testing.T) {
	var h prefix.Hasher
	h.Reset(64)
	_, _ = h.WriteString(bottles()[:640])
	early := h.Chain()
	// Appending to what was handed out must not reach into the Hasher.
	_ = append(early, 42)
	_, _ = h.WriteString(bottles()[640:])
	if !slices.Equal(h.Chain(), chainOf(64, bottles())) {
		t.Error("appending to a Chain changed the Hasher's own")
	}
	if !h.Chain().HasPrefix(early) {
		t.Error("the chain lost its beginning")
	}
}

func TestCommonAndHasPrefix(t *testing.T) {
	f := func(a, b string, common int, has bool) {
		t.Helper()
		c, d := chainOf(4, a), chainOf(4, b)
		if got := c.Common(d); got != common {
			t.Errorf("Common(%q, %q) is %d; want %d", a, b, got, common)
		}
		if got := d.Common(c); got != common {
			t.Errorf("Common(%q, %q) is %d; want %d", b, a, got, common)
		}
		if got := c.HasPrefix(d); got != has {
			t.Errorf("HasPrefix(%q, %q) is %t; want %t", a, b, got, has)
		}
	}
	f("", "", 0, true)
	f("aaaabbbb", "", 0, true)
	f("", "aaaabbbb", 0, false)
	f("aaaabbbb", "aaaabbbb", 2, true)
	f("aaaabbbbcccc", "aaaabbbb", 2, true)
	f("aaaabbbb", "aaaabbbbcccc", 2, false)
	f("aaaaXbbbcccc", "aaaabbbbcccc", 1, false) // equal bytes behind a difference share nothing
	f("Xaaabbbbcccc", "aaaabbbbcccc", 0, false)
}

func TestHasherAllocatesNothing(t *testing.T) {
	var h prefix.Hasher
	text := strings.Repeat(bottles(), 50)
	run := func() {
		h.Reset(0)
		_ = h.WriteByte('x')
		_, _ = h.WriteString(text)
		if len(h.Chain()) == 0 {
			t.Fatal("no chain")
		}
	}
	if n := testing.AllocsPerRun(100, run); n != 0 {
		t.Errorf("hashing a prompt allocates %v times; want 0", n)
	}
}

func BenchmarkHasher(b *testing.B) {
	for _, size := range []int{1 << 10, 32 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("%dKB", size>>10), func(b *testing.B) {
			var h prefix.Hasher
			text := strings.Repeat("x", size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				h.Reset(0)
				_ = h.WriteByte('x')
				_, _ = h.WriteString(text)
			}
		})
	}
}

// Small writes are what a conversation of many short messages makes.
func BenchmarkHasherSmallWrites(b *testing.B) {
	var h prefix.Hasher
	b.SetBytes(32 << 10)
	b.ReportAllocs()
	for b.Loop() {
		h.Reset(0)
		for range 1 << 10 {
			_, _ = h.WriteString("thirty-two bytes of some prompt.")
		}
	}
}
