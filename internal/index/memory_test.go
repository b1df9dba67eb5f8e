package index

import (
	"math/rand/v2"
	"runtime"
	"strconv"
	"testing"

	"github.com/warmroute/warmroute/prefix"
)

// heapOf builds an index and returns it with what the heap grew by.
func heapOf(build func() *Index) (*Index, int64) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&before)
	x := build()
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&after)
	return x, int64(after.HeapAlloc) - int64(before.HeapAlloc)
}

// TestMemory measures the heap against the budget of 64 bytes per block and 16 per block and instance, and against the index's own
// accounting.
func TestMemory(t *testing.T) {
	f := func(name string, instances int, fill func(x *Index)) {
		t.Helper()
		x, heap := heapOf(func() *Index {
			x := New(Config{Memory: 1 << 30})
			for i := range instances {
				x.Join(prefix.InstanceID(i), strconv.Itoa(i), 0)
			}
			fill(x)
			return x
		})
		s := x.Stats()
		held := int64(0)
		for in := range x.Instances() {
			held += in.KnownBlocks
		}
		t.Logf("%s: %d blocks in %d runs, %d held: heap %d, accounted %d, used %d: %.1f bytes per block",
			name, s.Blocks, s.Runs, held, heap, s.Bytes, s.Used, float64(heap)/float64(s.Blocks))
		if budget := 64*s.Blocks + 16*held; heap > budget {
			t.Errorf("%s: heap grew by %d, budget is %d", name, heap, budget)
		}
		if off := float64(s.Bytes)/float64(heap) - 1; off < -0.15 || off > 0.15 {
			t.Errorf("%s: index accounts for %d bytes of %d", name, s.Bytes, heap)
		}
		runtime.KeepAlive(x)
	}
	f("long chains", 4, func(x *Index) {
		for i := range 300 {
			serve(x, prefix.InstanceID(i%4), rising(1_000_000*i, 512))
		}
	})
	f("1k-token prompts", 8, func(x *Index) {
		for i := range 8000 {
			serve(x, prefix.InstanceID(i%8), rising(1000*i, 16))
		}
	})
	f("tails of one block", 2, func(x *Index) {
		shared := rising(0, 100)
		for i := range 30_000 {
			serve(x, prefix.InstanceID(i%2), append(shared[:100:100], prefix.Block(mix(uint64(i)))))
		}
	})
	f("tails of two and three blocks", 2, func(x *Index) {
		shared := rising(0, 100)
		for i := range 15_000 {
			serve(x, prefix.InstanceID(i%2), append(shared[:100:100], rising(1000+10*i, 2+i%2)...))
		}
	})
	f("prompts of one block", 1, func(x *Index) {
		for i := range 30_000 {
			serve(x, 0, prefix.Chain{prefix.Block(mix(uint64(i)))})
		}
	})
	f("everywhere", 64, func(x *Index) {
		for i := range 800 {
			for id := range prefix.InstanceID(64) {
				serve(x, id, rising(1000*i, 6))
			}
		}
	})
	f("conversations that move", 16, func(x *Index) {
		rnd := rand.New(rand.NewPCG(1, 1))
		for i := range 300 {
			c := rising(1_000_000*i, 400)
			for n := 10; n < 400; n += 5 + rnd.IntN(20) {
				serve(x, prefix.InstanceID(rnd.IntN(16)), c[:n])
			}
		}
	})
}

// TestDistinct places many distinct prompts under a cap; BenchmarkDistinct places ten million under the default one.
func TestDistinct(t *testing.T) {
	n := 200_000
	if testing.Short() {
		n = 50_000
	}
	x, heap := distinct(t, n, 8<<20)
	checkIndex(t, x)
	s := x.Stats()
	t.Logf("heap %d, %+v", heap, s)
	if s.Blocks < 500_000 {
		t.Errorf("only %d blocks in 8 MiB", s.Blocks)
	}
	if s.Forgotten+uint64(s.Runs) != uint64(n) {
		t.Errorf("%d forgotten, %d runs of %d", s.Forgotten, s.Runs, n)
	}
}

// TestMemoryShift changes the size of prompts under the cap: memory must not stay bound to the old sizes.
func TestMemoryShift(t *testing.T) {
	x := New(Config{Memory: 4 << 20})
	x.Join(0, "a", 0)
	hot := rising(0, 30)
	f := func(blocks, n int, least int64) {
		t.Helper()
		for i := range n {
			serve(x, 0, rising(1_000_000*blocks+1000*i, blocks))
			if i%100 == 0 {
				serve(x, 0, hot)
			}
		}
		if s := x.Stats(); s.Blocks < least || s.Truncated > 0 {
			t.Errorf("prompts of %d blocks: %d blocks stay, want %d; %d truncated", blocks, s.Blocks, least, s.Truncated)
		}
		checkIndex(t, x)
	}
	f(5, 30_000, 125_000)
	f(100, 5000, 300_000)
	f(1, 70_000, 45_000)
	f(700, 1000, 300_000)
	f(16, 20_000, 250_000)
	wantHeld(t, x, hot, Held{30, 30})
}

// TestNoGrowth adds and removes prefixes for a long time: what remains takes no more runs and slots than at first.
func TestNoGrowth(t *testing.T) {
	x := New(Config{})
	const ids = 4
	for id := range prefix.InstanceID(ids) {
		x.Join(id, strconv.Itoa(int(id)), 1000)
	}
	stay := rising(0, 400)
	rnd := rand.New(rand.NewPCG(1, 1))
	round := func() (runs int64, slots int) {
		var ps [8]Placement
		for i := range ps {
			// Branches off the chain that stays split it; taking them back must join it again.
			n := 1 + rnd.IntN(399)
			x.Place(prefix.InstanceID(rnd.IntN(ids)), append(stay[:n:n], rising(rnd.Int(), 3)...), &ps[i])
		}
		for i := range ps {
			x.TakeBack(&ps[i])
		}
		for id := range prefix.InstanceID(ids) {
			serve(x, id, stay)
		}
		for _, in := range x.insts {
			for _, p := range in.stack.dir {
				slots += int(p.n)
			}
		}
		return x.Stats().Runs, slots
	}
	const most = 7 // 400 blocks in runs of which no two neighbours fit into one
	for range 200 {
		if runs, slots := round(); runs > most || slots > ids*(slotsPerPage+staleSlots) {
			t.Fatalf("%d runs, %d slots", runs, slots)
		}
	}
	checkIndex(t, x)
	used := x.Stats().Used
	for range 1500 {
		round()
	}
	if got := x.Stats().Used; got > used+used/4 {
		t.Errorf("%d bytes in use, %d at first", got, used)
	}
}

// TestLeaveFrees fills two instances, and lets both leave: nothing remains but what others hold.
func TestLeaveFrees(t *testing.T) {
	x := newIndex(3)
	serve(x, 2, rising(0, 200))
	before := x.Stats()
	for i := range 2000 {
		serve(x, prefix.InstanceID(i%2), append(rising(0, 1+i%150), rising(1000+i, 3)...))
	}
	x.Leave(0)
	checkIndex(t, x)
	x.Leave(1)
	checkIndex(t, x)
	after := x.Stats()
	if after.Blocks != before.Blocks || after.Holders != after.Runs || after.Runs > 3 || after.Used > before.Used+1000 {
		t.Errorf("before %+v, after %+v", before, after)
	}
	wantHeld(t, x, rising(0, 200), Held{}, Held{}, Held{200, 200})
	x.Leave(2)
	if s := x.Stats(); s.Blocks != 0 || s.Runs != 0 || s.Used > pageBytes {
		t.Errorf("empty index: %+v", s)
	}
}

func TestAllocations(t *testing.T) {
	x, c := scattered(64)
	dst := x.Match(c, nil)
	f := func(name string, do func()) {
		t.Helper()
		if n := testing.AllocsPerRun(200, do); n != 0 {
			t.Errorf("%s allocates %v times, want 0", name, n)
		}
	}
	f("Match", func() { dst = x.Match(c, dst) })
	var p Placement
	f("Place and TakeBack", func() {
		x.Place(3, c[:300], &p)
		x.TakeBack(&p)
	})
	f("Place, Confirm, Finish and Learn", func() {
		x.Place(3, c[:300], &p)
		x.Confirm(&p)
		x.Finish(&p, nil)
		x.Learn(&p, Report{CachedBlocks: 300})
	})
	f("Stats", func() { x.Stats() })
}
