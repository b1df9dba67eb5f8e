package index

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmroute/warmroute/prefix"
)

// newIndex returns an index with n joined instances of unknown capacity.
func newIndex(n int) *Index {
	x := New(Config{Memory: 16 << 20})
	for i := range n {
		x.Join(prefix.InstanceID(i), string(rune('a'+i)), 0)
	}
	return x
}

// serve sends a chain to an instance and ends it well.
func serve(x *Index, id prefix.InstanceID, c prefix.Chain) {
	var p Placement
	x.Place(id, c, &p)
	x.Confirm(&p)
	x.Finish(&p, nil)
}

// wantHeld compares what the instances hold of a chain, as pairs of resident and known.
func wantHeld(t *testing.T, x *Index, c prefix.Chain, want ...Held) {
	t.Helper()
	if d := cmp.Diff(want, x.Match(c, nil)); d != "" {
		t.Errorf("Match (-want +got):\n%s", d)
	}
	checkIndex(t, x)
}

func TestMatch(t *testing.T) {
	x := newIndex(3)
	serve(x, 0, chainOf(1, 2, 3, 4, 5))
	serve(x, 1, chainOf(1, 2, 3))
	serve(x, 0, chainOf(1, 2, 7))
	f := func(c prefix.Chain, want ...Held) { t.Helper(); wantHeld(t, x, c, want...) }
	f(nil, Held{}, Held{}, Held{})
	f(chainOf(9), Held{}, Held{}, Held{})
	f(chainOf(1), Held{1, 1}, Held{1, 1}, Held{})
	f(chainOf(1, 2, 3, 4, 5, 6), Held{5, 5}, Held{3, 3}, Held{})
	f(chainOf(1, 2, 3, 4, 9), Held{4, 4}, Held{3, 3}, Held{})
	f(chainOf(1, 2, 7, 8), Held{3, 3}, Held{2, 2}, Held{})
}

func TestMatchEvicted(t *testing.T) {
	x := newIndex(1)
	x.SetCapacity(0, 6)
	serve(x, 0, chainOf(1, 2, 3, 4))
	serve(x, 0, chainOf(5, 6, 7, 8))
	wantHeld(t, x, chainOf(1, 2, 3, 4), Held{2, 4}) // the tail goes first
	wantHeld(t, x, chainOf(5, 6, 7, 8), Held{4, 4})
	serve(x, 0, chainOf(1, 2))
	wantHeld(t, x, chainOf(1, 2, 3, 4), Held{2, 4})
	wantHeld(t, x, chainOf(5, 6, 7, 8), Held{4, 4})
	serve(x, 0, chainOf(9))
	wantHeld(t, x, chainOf(5, 6, 7, 8), Held{3, 4})
	x.SetCapacity(0, 100)
	wantHeld(t, x, chainOf(1, 2, 3, 4), Held{4, 4})
}

func TestTakeBack(t *testing.T) {
	x := newIndex(1)
	x.SetCapacity(0, 6)
	serve(x, 0, chainOf(1, 2, 3, 4))
	serve(x, 0, chainOf(5, 6, 7, 8))
	var p Placement
	x.Place(0, chainOf(1, 2, 3, 4, 5, 6), &p)
	wantHeld(t, x, chainOf(1, 2, 3, 4, 5, 6), Held{6, 6})
	if p.Resident() != 2 || p.Known() != 4 {
		t.Errorf("placement found %d, %d; want 2, 4", p.Resident(), p.Known())
	}
	x.TakeBack(&p)
	wantHeld(t, x, chainOf(1, 2, 3, 4, 5, 6), Held{2, 4})
	wantHeld(t, x, chainOf(5, 6, 7, 8), Held{4, 4})
	x.TakeBack(&p) // again, for nothing
	x.Place(0, chainOf(1, 2, 3, 4, 5, 6), &p)
	x.Confirm(&p)
	x.TakeBack(&p)
	wantHeld(t, x, chainOf(1, 2, 3, 4, 5, 6), Held{6, 6})
}
