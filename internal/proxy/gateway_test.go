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
		t.Logf("%+v", r.last())
		t.Logf("%+v", a.header)
		r.idle()
	})
}
