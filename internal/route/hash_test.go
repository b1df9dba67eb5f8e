package route

import (
	"fmt"
	"slices"
	"testing"
)

// The function is part of what replicas and versions agree on.
func TestHash_Fixed(t *testing.T) {
	f := func(in string, want uint64) {
		t.Helper()
		if got := Hash(in); got != want {
			t.Errorf("Hash(%q) = %#x; want %#x", in, got, want)
		}
	}
	f("", 0xf52a15e9a9b5e89b)
	f("instance-0", 0x731442d23fc198fd)
	f("你好", 0x7c0f055456e0d27f)
}

func TestPrefixHash_SameKeySameInstance(t *testing.T) {
	p := mustNew(t, PrefixHash, Default())
	cs := candidates(Load{}, Load{}, Load{}, Load{}, Load{})
	counts := make([]int, 5)
	for i := range 5000 {
		r := Request{Simple: Hash(fmt.Sprint("key", i))}
		first := p.Choose(&r, cs)
		cs[first.Index].Load.InFlight = 200
		r.Draw = 7
		second := p.Choose(&r, cs)
		cs[first.Index].Load.InFlight = 0
		if first.Index != second.Index || first.Reason != Hashed {
			t.Fatalf("key %d: %+v, then %+v", i, first, second)
		}
		counts[first.Index]++
	}
	if slices.Min(counts) < 900 {
		t.Errorf("5000 keys: %v; want about 1000 each", counts)
	}
}

func TestPrefixHash_Weights(t *testing.T) {
	cs := candidates(Load{}, Load{}, Load{})
	before := homes(prefixHash{}, cs)
	cs[1].Weight = 2
	after, share := homes(prefixHash{}, cs), 0
	for key, id := range after {
		if id == 1 {
			share++
		} else if before[key] != id {
			t.Fatalf("a key moved from %d to %d when 1 became heavier", before[key], id)
		}
	}
	if share < 1850 || share > 2150 {
		t.Errorf("weight 2 of 4 got %d of 4000 keys; want about 2000", share)
	}
}

// overflow fills the instances of one key one after the other and lists the order in which they are chosen.
func overflow(t *testing.T, p Policy, cs []Candidate, n int) (order []int, counts []int) {
	t.Helper()
	counts = make([]int, len(cs))
	for range n {
		d := p.Choose(&Request{Simple: 11}, cs)
		if (d.Reason == Hashed) != (len(order) == 0 || d.Index == order[0]) || d.Reason != Hashed && d.Reason != Overflow {
			t.Fatalf("%+v after %v", d, order)
		}
		if !slices.Contains(order, d.Index) {
			order = append(order, d.Index)
		}
		counts[d.Index]++
		cs[d.Index].Load.InFlight++
	}
	return order, counts
}

func TestBoundedHash_Threshold(t *testing.T) {
	p := mustNew(t, PrefixHashBounded, Config{HashThreshold: 4})
	order, counts := overflow(t, p, candidates(Load{}, Load{}, Load{}, Load{}, Load{}), 18)
	for i, at := range order {
		want := 4
		if i == 4 {
			want = 2
		}
		if counts[at] != want {
			t.Errorf("a key with 18 requests and threshold 4: %v in the order %v", counts, order)
		}
	}
	all := candidates(Load{InFlight: 9}, Load{InFlight: 5}, Load{InFlight: 7})
	if d := p.Choose(&Request{Simple: 11}, all); d.Index != 1 {
		t.Errorf("all above the threshold: %+v; want the least loaded, 1", d)
	}
}

func TestBoundedHash_Factor(t *testing.T) {
	p := mustNew(t, PrefixHashBounded, Config{HashLoad: 1.25})
	order, counts := overflow(t, p, candidates(make([]Load, 10)...), 800)
	if len(order) != 8 || slices.Max(counts) != 100 {
		t.Errorf("one key with 800 requests on 10: %v; want 1.25 times the mean of 80 on 8 of them", counts)
	}
	// Other keys still find their own instance.
	cs := candidates(make([]Load, 10)...)
	moved := 0
	for i := range 1000 {
		r := Request{Simple: Hash(fmt.Sprint(i))}
		own := first(r.Simple, cs, func(*Candidate) bool { return true })
		d := p.Choose(&r, cs)
		if d.Index != own {
			moved++
		}
		cs[d.Index].Load.InFlight++
	}
	if moved > 150 {
		t.Errorf("even keys: %d of 1000 were moved; want few", moved)
	}
}

func TestBoundedHash_Weights(t *testing.T) {
	p := mustNew(t, PrefixHashBounded, Config{HashLoad: 1})
	cs := candidates(Load{}, Load{}, Load{})
	cs[0].Weight = 2
	if _, counts := overflow(t, p, cs, 400); counts[0] != 200 || counts[1] != 100 || counts[2] != 100 {
		t.Errorf("factor 1 and weights 2, 1, 1: %v; want 200, 100, 100", counts)
	}
}

// Even with all keys equal, at least one instance is below its bound.
func TestBoundedHash_AlwaysRoom(t *testing.T) {
	p := mustNew(t, PrefixHashBounded, Config{HashLoad: 1})
	for n := 1; n < 20; n++ {
		for load := range 5 {
			cs := candidates(slices.Repeat([]Load{{InFlight: load}}, n)...)
			d := p.Choose(&Request{Simple: 3}, cs)
			if d.Reason != Hashed {
				t.Errorf("%d instances, all with %d: %+v; want the key's own", n, load, d)
			}
		}
	}
}

func TestPrefixHash_Guard(t *testing.T) {
	p := mustNew(t, PrefixHash, Default())
	order, counts := overflow(t, p, candidates(make([]Load, 4)...), 300)
	if len(order) != 2 || counts[order[0]] != 256 {
		t.Errorf("300 requests of one key: %v; want 256 on its own and the rest on one more", counts)
	}
	if order, _ := overflow(t, mustNew(t, PrefixHash, Config{}), candidates(make([]Load, 4)...), 3000); len(order) != 1 {
		t.Errorf("without a guard: %v; want all on one", order)
	}
}
