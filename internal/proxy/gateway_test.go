package proxy

import (
	"strings"
	"testing"
	"testing/synctest"
)

func TestServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		a := r.post(chatPath, chat("hello", false))
		if a.status != 200 || !strings.Contains(a.body, "t0 t1 t2 ") {
			t.Errorf("got %d %s", a.status, a.body)
		}
		a = r.post(chatPath, chat("hello", true))
		if a.status != 200 || !strings.HasSuffix(a.body, "data: [DONE]\n\n") || strings.Contains(a.body, "usage") {
			t.Errorf("got %d %s", a.status, a.body)
		}
		for name, want := range map[string]string{instanceHeader: "e0", matchHeader: "0", reasonHeader: "sole"} {
			if got := a.header.Get(name); got != want {
				t.Errorf("%s: %q; want %q", name, got, want)
			}
		}
		rec := r.last()
		if rec.Outcome() != "served" || rec.Status != 200 || rec.Instance != "e0" || rec.Attempts != 1 || rec.OutputTokens != 3 || !rec.UsageKnown {
			t.Errorf("recorded %+v", rec)
		}
		r.idle()
	})
}
