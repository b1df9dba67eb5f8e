package index

import (
	"math/rand/v2"
	"runtime"
	"strconv"
	"testing"

	"github.com/warmroute/warmroute/prefix"
)

// fleetIndex returns an index of n instances, each with a background of other prompts.
func fleetIndex(n int) *Index {
	x := New(Config{})
	for i := range n {
		x.Join(prefix.InstanceID(i), "engine-"+strconv.Itoa(i), 100_000)
		for j := range 20 {
			serve(x, prefix.InstanceID(i), rising(1_000_000*(i+1)+1000*j, 64))
		}
	}
	return x
}

// everywhere is the plain case: a chain of 512 blocks (32k tokens) that every instance holds.
func everywhere(n int) (*Index, prefix.Chain) {
	x, c := fleetIndex(n), rising(0, 512)
	for i := range n {
		serve(x, prefix.InstanceID(i), c)
	}
	return x, c
}

// scattered is the hard case: every instance holds the chain to another depth, many of them touched a shorter part of it later, and
// other chains branch off at each turn.
func scattered(n int) (*Index, prefix.Chain) {
	x, c := fleetIndex(n), rising(0, 512)
	rnd := rand.New(rand.NewPCG(1, 2))
	for turn := range 40 {
		depth := 100 + turn*10 + rnd.IntN(8)
		for range n / 8 {
			serve(x, prefix.InstanceID(rnd.IntN(n)), c[:depth])
		}
		branch := append(c[:depth:depth], rising(5_000_000+turn, 3)...)
		serve(x, prefix.InstanceID(rnd.IntN(n)), branch)
	}
	for i := range n {
		serve(x, prefix.InstanceID(i), c[:20+rnd.IntN(60)])
	}
	serve(x, 0, c)
	return x, c
}

func BenchmarkMatch(b *testing.B) {
	f := func(name string, build func(int) (*Index, prefix.Chain), n int) {
		b.Run(name+"/"+strconv.Itoa(n), func(b *testing.B) {
			x, c := build(n)
			dst := x.Match(c, nil)
			b.ReportAllocs()
			for b.Loop() {
				dst = x.Match(c, dst)
			}
			b.ReportMetric(float64(len(path{}.find(&x.tree, c))), "runs")
		})
	}
	f("everywhere", everywhere, 64)
	f("everywhere", everywhere, 1000)
	f("scattered", scattered, 64)
	f("scattered", scattered, 1000)
}

// BenchmarkMatchCold matches other chains each time in an index that no cache of the processor holds.
func BenchmarkMatchCold(b *testing.B) {
	x := New(Config{})
	for i := range 64 {
		x.Join(prefix.InstanceID(i), strconv.Itoa(i), 0)
	}
	chains := make([]prefix.Chain, 30_000)
	for i := range chains {
		chains[i] = rising(i*1000, 512)
		serve(x, prefix.InstanceID(i%64), chains[i])
	}
	dst := x.Match(chains[0], nil)
	rnd := rand.New(rand.NewPCG(1, 2))
	b.ReportAllocs()
	for b.Loop() {
		dst = x.Match(chains[rnd.IntN(len(chains))], dst)
	}
}

// BenchmarkRequest is a whole life of a request: match, place, confirm and finish of a conversation's next turn.
func BenchmarkRequest(b *testing.B) {
	f := func(name string, shared, blocks int) {
		b.Run(name, func(b *testing.B) {
			x := fleetIndex(64)
			var p Placement
			var dst []Held
			words := rising(0, shared)
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				n++
				c := append(words[:shared:shared], rising(n*1000, blocks)...)
				dst = x.Match(c, dst)
				id := prefix.InstanceID(n % 64)
				x.Place(id, c, &p)
				x.Confirm(&p)
				x.Finish(&p, c)
				x.Learn(&p, Report{CachedBlocks: float64(shared)})
			}
		})
	}
	f("short", 8, 4)
	f("long", 128, 384)
}

func BenchmarkPlace(b *testing.B) {
	b.Run("again", func(b *testing.B) {
		x, c := everywhere(64)
		var p Placement
		b.ReportAllocs()
		for b.Loop() {
			x.Place(3, c, &p)
		}
	})
	b.Run("new", func(b *testing.B) {
		x := fleetIndex(64)
		c := rising(0, 16)
		var p Placement
		n := prefix.Block(0)
		b.ReportAllocs()
		for b.Loop() {
			n += 1 << 20
			for i := range c {
				c[i] = n + prefix.Block(i)
			}
			x.Place(3, c, &p)
		}
	})
}

// BenchmarkDistinct places ten million distinct prompts of 16 blocks, and checks that the heap stays under the cap all the time.
func BenchmarkDistinct(b *testing.B) {
	for b.Loop() {
		x, heap := distinct(b, 10_000_000, 256<<20)
		b.ReportMetric(float64(heap)/(1<<20), "MiB")
		b.ReportMetric(float64(x.Stats().Blocks), "blocks")
	}
}

// distinct fills an index with n distinct prompts and returns it with the largest heap that it had.
func distinct(tb testing.TB, n int, memory int64) (*Index, int64) {
	tb.Helper()
	runtime.GC()
	var before, now runtime.MemStats
	runtime.ReadMemStats(&before)
	x := New(Config{Memory: memory})
	for i := range prefix.InstanceID(8) {
		x.Join(i, strconv.Itoa(int(i)), 200_000)
	}
	c := make(prefix.Chain, 16)
	var p Placement
	most := int64(0)
	for i := range n {
		for j := range c {
			c[j] = prefix.Block(mix(uint64(i)<<8 + uint64(j)))
		}
		x.Place(prefix.InstanceID(i%8), c, &p)
		x.Confirm(&p)
		x.Finish(&p, nil)
		if i%(1+n/200) == 0 {
			runtime.ReadMemStats(&now)
			most = max(most, int64(now.HeapAlloc)-int64(before.HeapAlloc))
			if s := x.Stats(); s.Bytes > memory {
				tb.Fatalf("%d bytes of %d after %d prompts", s.Bytes, memory, i)
			}
		}
	}
	if most > memory {
		tb.Errorf("heap grew by %d, cap is %d", most, memory)
	}
	return x, most
}
