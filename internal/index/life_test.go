package index

import (
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmroute/warmroute/prefix"
)

func crcOf(b []byte) uint32         { return crc32.Checksum(b, castagnoli) }
func putUint64(b []byte, v uint64)  { binary.LittleEndian.PutUint64(b, v) }
func names(n int) prefix.InstanceID { return prefix.InstanceID(n) }

// TestConcurrent uses every method from hundreds of goroutines.
func TestConcurrent(t *testing.T) {
	x := New(Config{Memory: 4 << 20})
	const ids = 16
	for id := range names(ids) {
		x.Join(id, strconv.Itoa(int(id)), 500)
	}
	var wg sync.WaitGroup
	for g := range uint64(200) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(g, 1))
			var p Placement
			var dst []Held
			for range 25 {
				id := prefix.InstanceID(rnd.IntN(ids))
				n := rnd.IntN(300)
				c := append(rising(0, n), rising(1000*rnd.IntN(5000), 1+rnd.IntN(30))...)
				dst = x.Match(c, dst)
				x.Place(id, c, &p)
				if rnd.IntN(5) == 0 {
					x.TakeBack(&p)
					continue
				}
				x.Confirm(&p)
				x.Finish(&p, append(c, rising(rnd.Int(), 2)...))
				x.Learn(&p, Report{CachedBlocks: float64(rnd.IntN(n + 1))})
			}
		})
	}
	for g := range uint64(4) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(g, 2))
			for range 40 {
				id := prefix.InstanceID(rnd.IntN(ids))
				switch rnd.IntN(5) {
				case 0:
					x.Leave(id)
				case 1:
					x.Flush(id)
				case 2:
					x.Save(&failing{1 << 30})
				case 3:
					for range x.Instances() {
					}
				}
				x.Stats()
				x.Join(id, strconv.Itoa(int(id)), 400+rnd.IntN(3))
			}
		})
	}
	wg.Wait()
	checkIndex(t, x)
	for id := range names(ids) {
		x.Leave(id)
	}
	checkIndex(t, x)
	if s := x.Stats(); s.Blocks != 0 {
		t.Errorf("everybody left: %+v", s)
	}
}

// TestRenumber lets the number of touches wrap around.
func TestRenumber(t *testing.T) {
	x := newIndex(2)
	x.SetCapacity(0, 100)
	serve(x, 0, rising(0, 30))
	x.insts[0].stack.next = ^uint32(0) - 6
	for i := range 5 {
		serve(x, 0, rising(1000*(i+1), 10+i)) // two touches each
		serve(x, 1, rising(1000*(i+1), 4))
		checkIndex(t, x)
	}
	if next := x.insts[0].stack.next; next > 100 {
		t.Errorf("next touch is %d", next)
	}
	wantHeld(t, x, rising(0, 30), Held{30, 30}, Held{})
	wantHeld(t, x, rising(1000, 30), Held{10, 10}, Held{4, 4})
	serve(x, 0, rising(9000, 20))
	wantHeld(t, x, rising(0, 30), Held{20, 30}, Held{}) // 60 in the others, 20 just now
	var p Placement
	x.Place(0, rising(0, 30), &p)
	x.renumberLocked(x.insts[0])
	x.TakeBack(&p) // too late, but harmless
	checkIndex(t, x)
	serve(x, 0, rising(0, 30))
	wantHeld(t, x, rising(0, 30), Held{30, 30}, Held{})
}

func TestJoinLeave(t *testing.T) {
	x := newIndex(2)
	serve(x, 0, rising(0, 10))
	serve(x, 1, rising(0, 10))
	x.Join(0, "a", 0) // again: nothing changes
	wantHeld(t, x, rising(0, 10), Held{10, 10}, Held{10, 10})
	x.Join(0, "z", 4) // another instance under the same id
	wantHeld(t, x, rising(0, 10), Held{}, Held{10, 10})
	x.Leave(9)
	x.Leave(1)
	x.Leave(1)
	wantHeld(t, x, rising(0, 10), Held{}, Held{})
	x.Join(5, "f", 0)
	serve(x, 5, rising(0, 3))
	wantHeld(t, x, rising(0, 10), Held{}, Held{}, Held{}, Held{}, Held{}, Held{3, 3})
	if got := len(x.insts); got != 2 {
		t.Errorf("%d numbers in use, want 2", got)
	}
}

// TestPlacementOutlives ends requests of an instance that left, and of one that came back under the same id.
func TestPlacementOutlives(t *testing.T) {
	f := func(end func(x *Index, p *Placement)) {
		t.Helper()
		x := newIndex(1)
		var p Placement
		x.Place(0, rising(0, 10), &p)
		x.Leave(0)
		x.Join(0, "a", 0)
		end(x, &p)
		wantHeld(t, x, rising(0, 10), Held{})
	}
	f(func(x *Index, p *Placement) { x.Confirm(p) })
	f(func(x *Index, p *Placement) { x.Finish(p, rising(0, 20)) })
	f(func(x *Index, p *Placement) { x.TakeBack(p) })
	f(func(x *Index, p *Placement) { x.Learn(p, Report{CachedBlocks: 3}) })
}

func TestFlush(t *testing.T) {
	x := newIndex(2)
	var before Placement
	serve(x, 0, rising(0, 10))
	serve(x, 1, rising(0, 5))
	x.Place(0, rising(100, 10), &before)
	x.Flush(0)
	wantHeld(t, x, rising(0, 10), Held{}, Held{5, 5})
	wantHeld(t, x, rising(100, 10), Held{}, Held{})
	x.Confirm(&before)
	x.Learn(&before, Report{})
	wantHeld(t, x, rising(100, 10), Held{}, Held{})
	x.Finish(&before, nil) // it ended well, so it is there
	wantHeld(t, x, rising(100, 10), Held{10, 10}, Held{})
	x.Flush(7)
	if got := x.insts[0].counts.flushes; got != 1 {
		t.Errorf("%d flushes, want 1", got)
	}
}

func TestRefused(t *testing.T) {
	x := New(Config{})
	for i := range MaxInstances + 3 {
		x.Join(prefix.InstanceID(i), strconv.Itoa(i), 0)
	}
	if got := x.Stats().Refused; got != 3 {
		t.Errorf("%d refused, want 3", got)
	}
	c := rising(0, 5)
	serve(x, MaxInstances+1, c)
	serve(x, MaxInstances-1, c)
	held := x.Match(c, nil)
	if held[MaxInstances-1] != (Held{5, 5}) || len(held) != MaxInstances {
		t.Errorf("%d entries, the last %+v", len(held), held[len(held)-1])
	}
	for i := range MaxInstances {
		serve(x, prefix.InstanceID(i), c)
	}
	checkIndex(t, x)
}

func TestInert(t *testing.T) {
	x := newIndex(1)
	var p Placement
	f := func() {
		t.Helper()
		x.Confirm(&p)
		x.Learn(&p, Report{CachedBlocks: 1})
		x.TakeBack(&p)
		x.Finish(&p, rising(0, 5))
		wantHeld(t, x, rising(0, 5), Held{})
	}
	f()
	x.Place(3, rising(0, 5), &p)
	f()
	x.Place(0, nil, &p)
	x.Confirm(&p)
	x.Finish(&p, nil)
	wantHeld(t, x, rising(0, 5), Held{})
	if got := x.Stats().Short; got != 1 {
		t.Errorf("%d short prompts, want 1", got)
	}
}

func TestStats(t *testing.T) {
	x := newIndex(2)
	x.SetCapacity(1, 25)
	serve(x, 0, rising(0, 20))
	serve(x, 1, rising(0, 20))
	serve(x, 1, rising(50, 10))
	var p Placement
	x.Place(1, rising(0, 20), &p)
	x.Learn(&p, Report{CachedBlocks: 12})
	var got []InstanceStats
	for s := range x.Instances() {
		got = append(got, s)
	}
	want := []InstanceStats{
		{Name: "a", KnownBlocks: 20, ResidentBlocks: 20, Placed: 1},
		{
			ID: 1, Name: "b", Capacity: got[1].Capacity, KnownBlocks: 30, ResidentBlocks: int64(got[1].Capacity), Placed: 3, Reports: 1,
			PredictedBlocks: 15, MatchedBlocks: 20, ExpectedBlocks: 15, ReportedBlocks: 12,
		},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("Instances (-want +got):\n%s", d)
	}
	if s := x.Stats(); s.Blocks != 30 || s.Holders < 3 || s.Bytes <= 0 || s.Bytes > s.Limit || s.Used > s.Bytes {
		t.Errorf("Stats: %+v", s)
	}
	for range x.Instances() {
		break
	}
}

func TestConfig(t *testing.T) {
	f := func(c Config, faults int) {
		t.Helper()
		if errs := c.Validate(); len(errs) != faults {
			t.Errorf("%+v: %v, want %d faults", c, errs, faults)
		}
	}
	f(Default(), 0)
	f(Config{}, 0)
	f(Config{BlockBytes: 8, Memory: 1, SnapshotEvery: -1}, 3)
	f(Config{BlockBytes: 1 << 21, Memory: 1 << 40}, 2)
	x := New(Config{Memory: 1})
	if got := x.Stats().Limit; got != minMemory {
		t.Errorf("limit %d, want %d", got, minMemory)
	}
}
