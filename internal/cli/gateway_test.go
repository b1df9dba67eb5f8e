package cli

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/testkit"
)

// What the fleet sees of an instance reaches the index: a new process behind an
// address holds nothing, and of an instance that has left nothing remains.
func TestFleetSteersTheIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := testkit.NewNetwork()
		stop := n.Serve(t, "a:80", testkit.NewEngine())
		n.Serve(t, "b:80", testkit.NewEngine())
		r := newRig(t, n, onePool)
		blocks := func(when string, want bool) {
			t.Helper()
			synctest.Wait()
			if got := r.metrics()["warmroute_index_blocks"]; (got != "0") != want || got == "" {
				t.Errorf("%s the index has %q blocks; want some: %t", when, got, want)
			}
		}
		ask := func() {
			t.Helper()
			body := fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]}`, strings.Repeat("the same long text ", 200))
			if status, answer := r.do(http.MethodPost, "http://"+dataAddr+"/v1/chat/completions", body); status != http.StatusOK {
				t.Errorf("chat: status %d %s", status, answer)
			}
		}
		blocks("at the start", false)
		ask()
		blocks("after an answer", true)
		stop()
		time.Sleep(6 * time.Second)
		n.Serve(t, "a:80", testkit.NewEngine())
		time.Sleep(6 * time.Second)
		blocks("after a restart of its engine", false) // A20
		ask()
		blocks("after another answer", true)
		r.write(rigHead + strings.ReplaceAll(onePool, `{name: a, url: "http://a:80"}`, `{name: b, url: "http://b:80"}`))
		if status, result := r.reload(); status != http.StatusOK {
			t.Errorf("reload: status %d, %+v", status, result)
		}
		time.Sleep(time.Second)
		blocks("after its removal", false) // A19
	})
}
