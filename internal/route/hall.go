package route

import (
	"cmp"
	"slices"
	"time"
)

// Hall is the room where held requests wait. Its order is arrival + 3*(expected prefill time): a short request passes a long one,
// but only one that came less than three times the long one's prefill earlier, so each request gets to the front in the end, and
// nothing is sorted again as time passes. The zero Hall is empty and ready. It does not lock.
type Hall[T any] struct {
	held []*Held[T] // in order
	next uint64     // number of the next to come
}

// Held is one waiting request.
type Held[T any] struct {
	Value   T
	Arrival time.Time // when it came to the gateway
	Until   time.Time // when it must not be held any longer
	turn    time.Time
	number  uint64 // order of coming, for ties
	inside  bool
}

// hallWeight is how many seconds of others' arrivals a second of prefill gives way to.
const hallWeight = 3

// Add lets a request in: prefill is its expected prefill time on the instance that it would go to, until the end of its hold.
func (h *Hall[T]) Add(v T, arrival time.Time, prefill time.Duration, until time.Time) *Held[T] {
	x := &Held[T]{Value: v, Arrival: arrival, Until: until, turn: arrival.Add(hallWeight * prefill), number: h.next, inside: true}
	h.next++
	i, _ := slices.BinarySearchFunc(h.held, x, compareHeld)
	h.held = slices.Insert(h.held, i, x)
	return x
}

func compareHeld[T any](a, b *Held[T]) int {
	return cmp.Or(a.turn.Compare(b.turn), cmp.Compare(a.number, b.number))
}

// Len counts the waiting.
func (h *Hall[T]) Len() int { return len(h.held) }

// Each offers every waiting request in order to place, and lets those go for which it reports true. All are offered: one that
// waits for a busy instance does not block those behind it whose instance has room. The function must not call the Hall.
func (h *Hall[T]) Each(place func(T) (placed bool)) {
	h.held = slices.DeleteFunc(h.held, func(x *Held[T]) bool {
		x.inside = !place(x.Value)
		return !x.inside
	})
}

// Remove takes a request out whose client has left or whose time is up. It reports whether it was inside.
func (h *Hall[T]) Remove(x *Held[T]) bool {
	if !x.inside {
		return false
	}
	i, ok := slices.BinarySearchFunc(h.held, x, compareHeld)
	if !ok {
		return false
	}
	x.inside = false
	h.held = slices.Delete(h.held, i, i+1)
	return true
}

// Next is the earliest Until of the waiting: when to look again if nothing happens before.
func (h *Hall[T]) Next() (time.Time, bool) {
	if len(h.held) == 0 {
		return time.Time{}, false
	}
	next := h.held[0].Until
	for _, x := range h.held[1:] {
		if x.Until.Before(next) {
			next = x.Until
		}
	}
	return next, true
}
