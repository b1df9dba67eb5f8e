package route

import (
	"strings"
	"testing"
	"time"
)

// windows feeds an Adapter one window a minute.
type windows struct {
	t   *testing.T
	a   *Adapter
	now time.Time
}

func newWindows(t *testing.T) *windows {
	return &windows{t: t, a: NewAdapter("a"), now: epoch}
}

// evidence is n requests with a mean time to first token in milliseconds, half of their prompts cached.
func evidence(n int, mean float64) Evidence {
	return Evidence{Requests: n, TTFT: time.Duration(float64(n) * mean * float64(time.Millisecond)), Prompt: 1000 * n, Cached: 500 * n}
}

// observe gives a window with the means of arms a and b and the real one, and returns "" or what changed.
func (w *windows) observe(n int, a, b, actual float64) string {
	w.now = w.now.Add(time.Minute)
	c, ok := w.a.Observe(Window{End: w.now, Arms: []Arm{{"a", evidence(n, a)}, {"b", evidence(n, b)}}, Actual: evidence(n, actual)})
	if !ok {
		return ""
	}
	if c.Reason == "" || c.To != w.a.Live() {
		w.t.Errorf("change %+v; want a reason, and %s live", c, w.a.Live())
	}
	return string(c.Kind) + " " + c.From + " to " + c.To
}

// settle lets the cool-down of the last change pass without evidence.
func (w *windows) settle() { w.now = w.now.Add(adaptCoolDown) }

func (w *windows) expect(what, got, want string) {
	w.t.Helper()
	if got != want {
		w.t.Errorf("%s: %q; want %q", what, got, want)
	}
}

func TestAdapter_Switches(t *testing.T) {
	w := newWindows(t)
	w.expect("first window", w.observe(500, 100, 80, 110), "")
	w.expect("second window", w.observe(500, 100, 80, 110), "")
	w.expect("third window", w.observe(500, 100, 80, 110), "switched a to b")
	for range 3 {
		w.expect("during the cool-down", w.observe(500, 50, 80, 90), "")
	}
	w.settle()
	w.expect("after it, as it was better all the while", w.observe(500, 50, 80, 90), "switched b to a")
}

func TestAdapter_Hesitates(t *testing.T) {
	f := func(what string, n int, a, b, actual float64) {
		t.Helper()
		w := newWindows(t)
		for range 50 {
			w.expect(what, w.observe(n, a, b, actual), "")
		}
	}
	f("too few requests", 199, 100, 50, 100)
	f("too little to gain", 500, 100, 86, 100)
	f("nothing that anybody feels", 500, 1.8, .9, 1.8)
	f("worse", 500, 100, 200, 100)
	f("reality is much slower than predicted", 500, 100, 50, 301)
	f("reality is much faster than predicted", 500, 100, 50, 33)
	w := newWindows(t)
	for i := range 50 {
		b := 50.0
		if i%3 == 2 {
			b = 120
		}
		w.expect("never three windows in a row", w.observe(500, 100, b, 100), "")
	}
}

func TestAdapter_TakesBack(t *testing.T) {
	f := func(what string, a, b, actual float64, want string) {
		t.Helper()
		w := newWindows(t)
		for range 3 {
			w.observe(500, 100, 60, 120)
		}
		w.expect(what, w.observe(500, a, b, actual), want)
	}
	f("as before", 100, 60, 120, "")
	f("a little worse", 100, 60, 149, "")
	f("worse", 100, 60, 151, "reverted b to a")
	f("worse because there is more load", 500, 300, 400, "")
	f("worse than more load explains", 200, 120, 200, "reverted b to a")
}

func TestAdapter_LeavesAloneWhatWasWorse(t *testing.T) {
	w := newWindows(t)
	for range 3 {
		w.observe(500, 100, 60, 120)
	}
	w.expect("worse", w.observe(500, 100, 60, 300), "reverted b to a")
	w.settle()
	for range 100 {
		w.expect("left alone", w.observe(500, 100, 60, 120), "")
	}
	w.now = w.now.Add(adaptBanishing)
	w.observe(500, 100, 60, 120)
	w.observe(500, 100, 60, 120)
	w.expect("hours later", w.observe(500, 100, 60, 120), "switched a to b")
}

func TestAdapter_Reason(t *testing.T) {
	a := NewAdapter("a")
	for i := range 3 {
		c, ok := a.Observe(Window{
			End: epoch.Add(time.Duration(i) * time.Minute), Actual: evidence(300, 110),
			Arms: []Arm{{"a", evidence(300, 100)}, {"b", evidence(300, 80)}, {"c", evidence(300, 70)}},
		})
		if ok != (i == 2) {
			t.Fatalf("window %d: %+v, %t", i, c, ok)
		}
		want := "predicted mean time to first token 70ms instead of 100ms in the last of 3 windows, hit rate 50.0% instead of 50.0%; actual 110ms and 50.0%"
		if ok && (c.Reason != want || c.To != "c") {
			t.Errorf("to %s because %s", c.To, c.Reason)
		}
		if strings.Contains(c.Reason, "!") {
			t.Errorf("badly formatted: %s", c.Reason)
		}
	}
}
