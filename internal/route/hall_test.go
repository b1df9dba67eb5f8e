package route

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// contents lists who waits, in order.
func contents(h *Hall[string]) []string {
	var names []string
	h.Each(func(s string) bool {
		names = append(names, s)
		return false
	})
	return names
}

func TestHall_Order(t *testing.T) {
	var h Hall[string]
	add := func(name string, arrival, prefill time.Duration) { h.Add(name, at(arrival), prefill, at(time.Minute)) }
	add("long", 0, 2*time.Second)
	add("short", 3*time.Second, 100*time.Millisecond)
	add("later", 5900*time.Millisecond, 0)
	add("too late to pass", 6100*time.Millisecond, 0)
	add("same", 5900*time.Millisecond, 0)
	want := []string{"short", "later", "same", "long", "too late to pass"}
	if got := contents(&h); !slices.Equal(got, want) {
		t.Errorf("order %q; want %q", got, want)
	}
}

func TestHall_OneThatWaitsBlocksNobody(t *testing.T) {
	var h Hall[string]
	for i, name := range []string{"busy 1", "free 1", "busy 2", "free 2"} {
		h.Add(name, at(time.Duration(i)*time.Second), 0, at(time.Minute))
	}
	var placed []string
	h.Each(func(s string) bool {
		if s[:4] != "free" {
			return false
		}
		placed = append(placed, s)
		return true
	})
	if want := []string{"free 1", "free 2"}; !slices.Equal(placed, want) {
		t.Errorf("placed %q; want %q", placed, want)
	}
	if got, want := contents(&h), []string{"busy 1", "busy 2"}; !slices.Equal(got, want) || h.Len() != 2 {
		t.Errorf("left %q, len %d; want %q", got, h.Len(), want)
	}
}

func TestHall_Remove(t *testing.T) {
	var h Hall[string]
	a := h.Add("a", epoch, 0, at(2*time.Second))
	b := h.Add("b", epoch, 0, at(time.Second))
	c := h.Add("c", epoch, 0, at(3*time.Second))
	if next, ok := h.Next(); !ok || !next.Equal(at(time.Second)) {
		t.Errorf("next %v, %t; want b's second", next, ok)
	}
	if !h.Remove(b) || h.Remove(b) {
		t.Error("b was not inside exactly once")
	}
	h.Each(func(s string) bool { return s == "c" })
	if h.Remove(c) {
		t.Error("c was inside after it had been placed")
	}
	if next, ok := h.Next(); !ok || !next.Equal(at(2*time.Second)) {
		t.Errorf("next %v, %t; want a's two seconds", next, ok)
	}
	if !h.Remove(a) || h.Len() != 0 {
		t.Error("a was not inside alone")
	}
	if _, ok := h.Next(); ok {
		t.Error("an empty hall has a next")
	}
}

// Whatever comes and goes, nobody is lost, doubled or out of order.
func TestHall_Conservation(t *testing.T) {
	dice := rand.New(rand.NewPCG(9, 9))
	var h Hall[int]
	inside := make(map[int]*Held[int])
	for i := range 5000 {
		switch dice.IntN(5) {
		case 0, 1, 2:
			arrival := at(time.Duration(i+dice.IntN(100)) * time.Millisecond)
			inside[i] = h.Add(i, arrival, time.Duration(dice.IntN(50))*time.Millisecond, arrival.Add(time.Second))
		case 3:
			h.Each(func(v int) bool {
				if dice.IntN(4) > 0 {
					return false
				}
				if inside[v] == nil {
					t.Fatalf("%d was offered after it had left", v)
				}
				delete(inside, v)
				return true
			})
		case 4:
			for v, x := range inside {
				if !h.Remove(x) {
					t.Fatalf("%d is not inside", v)
				}
				delete(inside, v)
				break
			}
		}
		if h.Len() != len(inside) {
			t.Fatalf("%d inside; want %d", h.Len(), len(inside))
		}
	}
	if !slices.IsSortedFunc(h.held, compareHeld[int]) {
		t.Error("the hall is not in order")
	}
}
