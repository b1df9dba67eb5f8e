package cli

import (
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/testkit"
)

const onePool = `
pools:
  - model: m
    aliases: [alias]
    instances: [{name: a, url: "http://a:80"}]
`

const twoInstances = `
pools:
  - model: m
    instances: [{name: a, url: "http://a:80"}, {name: b, url: "http://b:80"}]
`

// Streams that run and requests that arrive while the configuration is reloaded
// again and again all end well, and no counter starts again.
func TestReloadDropsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := testkit.NewNetwork()
		slow := testkit.Act{Tokens: 20, Gap: 500 * time.Millisecond}
		for _, addr := range []string{"a:80", "b:80"} {
			n.Serve(t, addr, &testkit.Engine{Then: slow})
		}
		r := newRig(t, n, onePool)
		var wg sync.WaitGroup
		var served atomic.Int64
		const clients, each = 8, 5
		for range clients {
			wg.Go(func() {
				for range each {
					status, body := r.chat("m")
					if status != http.StatusOK || !strings.HasSuffix(body, "data: [DONE]\n\n") || strings.Count(body, `"content":"t`) != 20 {
						t.Errorf("a request was dropped: status %d, %q", status, body)
					}
					served.Add(1)
				}
			})
		}
		var totals []string
		for i := range 40 {
			time.Sleep(time.Second)
			r.write(rigHead + []string{onePool, twoInstances}[i%2] + fmt.Sprintf("routing: {congestion: %d}\n", i))
			if status, result := r.reload(); status != http.StatusOK || result.Result != "applied" {
				t.Errorf("reload %d: status %d, %+v", i, status, result)
			}
			totals = append(totals, r.metrics()[`warmroute_requests_total{class="served",code="200",kind="chat",model="m"}`])
		}
		wg.Wait()
		m := r.metrics()
		if got, want := m[`warmroute_requests_total{class="served",code="200",kind="chat",model="m"}`], fmt.Sprint(served.Load()); got != want {
			t.Errorf("requests_total is %s after %s requests; seen on the way: %v", got, want, totals)
		}
		if got := m[`warmroute_in_flight{model="m"}`]; got != "0" {
			t.Errorf("in_flight is %s at the end; want 0", got)
		}
		if got := m[`warmroute_config_reloads_total{result="applied"}`]; got != "40" {
			t.Errorf("config_reloads_total is %s; want 40", got)
		}
		mustNotContain(t, "log", r.log.String(), "BUG")
	})
}

// A reload puts new instances to work and lets removed ones finish.
func TestReloadMovesTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := testkit.NewNetwork()
		first, second := testkit.NewEngine(testkit.Act{Tokens: 10, Gap: time.Second}), testkit.NewEngine()
		n.Serve(t, "a:80", first)
		n.Serve(t, "b:80", second)
		r := newRig(t, n, onePool)
		if got := r.metrics()[`warmroute_in_flight{model="m"}`]; got != "0" {
			t.Errorf("before the first request: in_flight of the model is %q; want 0", got)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if status, body := r.chat("m"); status != http.StatusOK || !strings.Contains(body, "[DONE]") {
				t.Errorf("the stream on the removed instance broke: status %d, %q", status, body)
			}
		})
		time.Sleep(2 * time.Second)
		r.write(rigHead + strings.ReplaceAll(onePool, `{name: a, url: "http://a:80"}`, `{name: b, url: "http://b:80"}`))
		status, result := r.reload()
		want := []string{"pools[m].instances[b]: added", "pools[m].instances[a]: removed"}
		if status != http.StatusOK || !slices.Equal(result.Changes, want) {
			t.Errorf("reload: status %d, %+v; want changes %q", status, result, want)
		}
		time.Sleep(2 * time.Second)
		for range 3 {
			if status, body := r.chat("m"); status != http.StatusOK {
				t.Errorf("chat: status %d %s", status, body)
			}
		}
		wg.Wait()
		if a, b := len(first.Calls()), len(second.Calls()); a != 1 || b != 3 {
			t.Errorf("%d requests went to the removed instance and %d to the new one; want 1 and 3", a, b)
		}
		synctest.Wait()
		time.Sleep(time.Second)
		for name := range r.metrics() {
			mustNotContain(t, "series", name, `instance="a"`)
		}
	})
}

// SIGTERM: readiness fails first while requests are still served; then new ones
// are refused; a stream of five minutes completes; then the process ends.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := testkit.NewNetwork()
		n.Serve(t, "a:80", testkit.NewEngine(testkit.Act{Tokens: 300, Gap: time.Second}))
		r := newRig(t, n, onePool)
		var wg sync.WaitGroup
		wg.Go(func() {
			status, body := r.chat("m")
			if status != http.StatusOK || strings.Count(body, `"content":"t`) != 300 || !strings.HasSuffix(body, "data: [DONE]\n\n") {
				t.Errorf("the long stream broke: status %d, %d tokens, end %q", status, strings.Count(body, `"content":"t`), body[max(0, len(body)-200):])
			}
		})
		time.Sleep(5 * time.Second)
		if status, body := r.get("http://" + dataAddr + "/readyz"); status != http.StatusOK {
			t.Errorf("before: readyz = %d %s", status, body)
		}
		began := time.Now()
		r.stop()
		synctest.Wait()
		for _, addr := range []string{dataAddr, adminAddr} {
			status, body := r.get("http://" + addr + "/readyz")
			if status != http.StatusServiceUnavailable || !strings.Contains(body, "shutting down") {
				t.Errorf("draining: readyz of %s = %d %s; want 503", addr, status, body)
			}
		}
		if status, body := r.get("http://" + dataAddr + "/healthz"); status != http.StatusOK {
			t.Errorf("draining: healthz = %d %s; a drain is no reason to be killed", status, body)
		}
		if status, body := r.chat("m"); status != http.StatusOK {
			t.Errorf("draining: a new request got %d %s; want it served until the delay is over", status, body)
		}
		time.Sleep(4 * time.Second)
		if status, body := r.chat("m"); status != 0 {
			t.Errorf("after the delay: a new request got %d %s; want it refused", status, body)
		}
		if got := r.metrics()[`warmroute_in_flight{model="m"}`]; got != "1" {
			t.Errorf("metrics during the drain: in_flight is %q; want 1", got)
		}
		wg.Wait()
		if err := r.wait(); err != nil {
			t.Errorf("run: %v", err)
		}
		if took := time.Since(began); took < 290*time.Second || took > 300*time.Second {
			t.Errorf("the drain took %v; want it to end with the stream, 295s after the signal", took)
		}
	})
}

// What outlasts the grace period is cut with an error event, and the process
// ends.
func TestGraceIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := testkit.NewNetwork()
		n.Serve(t, "a:80", testkit.NewEngine(testkit.Act{Tokens: 10_000, Gap: time.Second}))
		r := newRig(t, n, onePool)
		var wg sync.WaitGroup
		wg.Go(func() {
			_, body := r.chat("m")
			if strings.Contains(body, "[DONE]") || !strings.Contains(body, `"error"`) {
				t.Errorf("the cut stream ends in %q; want an error event", body[max(0, len(body)-300):])
			}
		})
		time.Sleep(time.Second)
		began := time.Now()
		r.stop()
		if err := r.wait(); err != nil {
			t.Errorf("run: %v", err)
		}
		wg.Wait()
		if took, want := time.Since(began), 10*time.Minute+3*time.Second; took < want || took > want+2*goodbye {
			t.Errorf("stopped %v after the signal; want %v", took, want)
		}
		mustContain(t, "log", r.log.String(), "the grace period is over")
	})
}

// A reload with faults changes nothing and says all of them, in the log and to
// whoever asked.
func TestReloadRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := testkit.NewNetwork()
		n.Serve(t, "a:80", testkit.NewEngine())
		r := newRig(t, n, onePool)
		r.write(rigHead + "routing: {congestion: -1, polcy: cost}\n" + strings.Replace(onePool, "http://", "ftp://", 1))
		status, result := r.reload()
		if status != http.StatusUnprocessableEntity || result.Result != "refused" || len(result.Faults) != 3 {
			t.Errorf("reload: status %d, %+v; want 3 faults", status, result)
		}
		for _, want := range []string{"routing.congestion: -1: want 0 to 1000", `unknown key \"polcy\"`, "instances[0].url: want an http:// or https:// URL"} {
			mustContain(t, "log", r.log.String(), want)
		}
		if status, body := r.chat("m"); status != http.StatusOK {
			t.Errorf("after a refused reload: status %d %s", status, body)
		}
		if got := r.metrics()[`warmroute_config_reloads_total{result="refused"}`]; got != "1" {
			t.Errorf("refused reloads = %q; want 1", got)
		}
		r.write(rigHead + onePool)
		if status, result := r.reload(); status != http.StatusOK || result.Result != "unchanged" {
			t.Errorf("reload of the old file: status %d, %+v", status, result)
		}
	})
}

func TestHangUpReloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := testkit.NewNetwork()
		n.Serve(t, "a:80", testkit.NewEngine())
		r := newRig(t, n, onePool)
		r.write(rigHead + onePool + "routing: {policy: round_robin}\n")
		r.hangups <- syscall.SIGHUP
		synctest.Wait()
		mustContain(t, "log", r.log.String(), "routing.policy: cost -> round_robin", `"trigger":"signal"`)
	})
}

// A reload says which changes wait for a restart, and puts the others into force.
func TestReloadNeedsRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := testkit.NewNetwork()
		n.Serve(t, "a:80", testkit.NewEngine())
		r := newRig(t, n, onePool)
		r.write(strings.Replace(rigHead, "level: debug", "level: debug, access: false", 1) + onePool + "cache: {memory: 1GiB}\n")
		status, result := r.reload()
		if status != http.StatusOK || len(result.Changes) != 2 || len(result.NeedsRestart) != 1 || result.NeedsRestart[0] != "cache.memory: 256MiB -> 1GiB" {
			t.Errorf("reload: status %d, %+v", status, result)
		}
		lines := strings.Count(r.log.String(), `"msg":"request"`)
		if status, _ := r.chat("m"); status != http.StatusOK {
			t.Errorf("chat: status %d", status)
		}
		synctest.Wait()
		if now := strings.Count(r.log.String(), `"msg":"request"`); now != lines {
			t.Error("an access line was written after access was turned off")
		}
	})
}

func TestQuickStartDiscoversModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := testkit.NewNetwork()
		n.Serve(t, "a:80", &testkit.Engine{Model: "first"})
		n.Serve(t, "b:80", &testkit.Engine{Model: "second"})
		r := newRig(t, n, `
pools:
  - instances: [{url: "http://a:80"}, {url: "http://b:80"}]
`)
		time.Sleep(2 * time.Second)
		_, models := r.get("http://" + dataAddr + "/v1/models")
		mustContain(t, "models", models, `"id":"first"`, `"id":"second"`)
		if status, body := r.chat("second"); status != http.StatusOK {
			t.Errorf("chat: status %d %s", status, body)
		}
		synctest.Wait()
		if got := r.metrics()[`warmroute_requests_total{class="served",code="200",kind="chat",model="second"}`]; got != "1" {
			t.Errorf("a discovered model has %q requests in its series; want 1", got)
		}
		if status, body := r.chat("third"); status != http.StatusNotFound {
			t.Errorf("chat with a model that nobody serves: status %d %s", status, body)
		}
	})
}

// An alias counts for its model.
func TestAliasHasNoSeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := testkit.NewNetwork()
		n.Serve(t, "a:80", testkit.NewEngine())
		r := newRig(t, n, onePool)
		if status, body := r.chat("alias"); status != http.StatusOK {
			t.Errorf("chat: status %d %s", status, body)
		}
		synctest.Wait()
		m := r.metrics()
		if got := m[`warmroute_requests_total{class="served",code="200",kind="chat",model="m"}`]; got != "1" {
			t.Errorf("requests of the model = %q; want 1", got)
		}
		if got := m[`warmroute_decisions_total{policy="cost",reason="sole"}`]; got != "1" {
			t.Errorf("decisions = %q; want 1", got)
		}
		mustContain(t, "log", r.log.String(), `"model":"alias"`, `"pool":"m"`)
	})
}

// Secrets of the configuration show up in no log, answer, dump, status or
// metric, not even when an instance throws them back.
func TestSecretsStaySecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := testkit.NewNetwork()
		engine := testkit.NewEngine()
		engine.Then = testkit.Act{Status: http.StatusBadRequest, Body: `{"error":{"message":"bad key planted-engine-key in Bearer planted-engine-key"}}`}
		n.Serve(t, "a:80", engine)
		r := newRig(t, n, strings.Replace(onePool, `name: a`, `name: a, api_key: "${env:KEY}"`, 1))
		var shown []string
		_, answer := r.chat("m")
		shown = append(shown, answer)
		engine.Play(testkit.Act{Status: http.StatusInternalServerError, Body: "planted-engine-key"}, testkit.Act{Status: http.StatusUnauthorized, Body: "planted-engine-key"})
		for range 4 {
			_, answer := r.chat("m")
			shown = append(shown, answer)
		}
		if got := engine.Calls()[0].Header.Get("Authorization"); got != "Bearer planted-engine-key" {
			t.Errorf("the instance got %q; want its key, or this test shows nothing", got)
		}
		for _, path := range []string{"/metrics", "/status", "/readyz"} {
			_, page := r.get("http://" + adminAddr + path)
			shown = append(shown, page)
		}
		r.env["KEY"] = "planted-second-key"
		_, result := r.reload()
		shown = append(shown, fmt.Sprint(result))
		r.env["KEY"] = "planted\nbroken"
		_, result = r.reload()
		shown = append(shown, fmt.Sprint(result))
		r.gateway.log.Error("somebody logs a secret", slog.String("key", "planted-engine-key"),
			slog.String("next", "planted-second-key"), slog.String("admin", "planted-admin-token"))
		dump, err := r.gateway.cfg.Load().Dump()
		if err != nil {
			t.Error(err)
		}
		shown = append(shown, string(dump), r.log.String())
		for _, s := range shown {
			mustNotContain(t, "what is shown", s, "planted")
		}
		mustContain(t, "log", r.log.String(), "somebody logs a secret", "********")
	})
}

func TestAdminGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := testkit.NewNetwork()
		n.Serve(t, "a:80", testkit.NewEngine())
		r := newRig(t, n, onePool)
		for _, path := range []string{"/-/reload", "/status"} {
			method := map[string]string{"/-/reload": http.MethodPost, "/status": http.MethodGet}[path]
			for _, auth := range []string{"", "Bearer wrong", "planted-admin-token", "Basic planted-admin-token"} {
				req, err := http.NewRequestWithContext(t.Context(), method, "http://"+adminAddr+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Authorization", auth)
				resp, err := r.client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				if resp.StatusCode != http.StatusUnauthorized {
					t.Errorf("%s with %q: status %d; want 401", path, auth, resp.StatusCode)
				}
			}
			if status, body := r.do(method, "http://"+adminAddr+path, ""); status != http.StatusOK {
				t.Errorf("%s with the token: status %d %s", path, status, body)
			}
			if status, _ := r.do(method, "http://"+dataAddr+path, ""); status != http.StatusNotFound {
				t.Errorf("%s on the client side: status %d; want 404", path, status)
			}
		}
	})
}

func TestIsLocal(t *testing.T) {
	f := func(peer, host string, want bool) {
		t.Helper()
		if got := isLocal(&http.Request{RemoteAddr: peer, Host: host}); got != want {
			t.Errorf("isLocal(peer %s, host %s) = %t; want %t", peer, host, got, want)
		}
	}
	f("127.0.0.1:5", "127.0.0.1:9091", true)
	f("[::1]:5", "[::1]:9091", true)
	f("[::ffff:127.0.0.1]:5", "localhost:9091", true)
	f("127.0.0.1:5", "localhost", true)
	f("127.0.0.1:5", "evil.example.com:9091", false) // a page that rebinds its name
	f("10.0.0.1:5", "127.0.0.1:9091", false)
	f("10.0.0.1:5", "10.0.0.2:9091", false)
	f("@", "localhost", false)
	f("", "", false)
}

// The index survives a restart; a damaged snapshot means a cold start and a
// clear warning, never a failure.
func TestSnapshot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "index.snapshot")
	pools := onePool + "cache: {snapshot: " + path + ", snapshot_every: 1m}\n"
	long := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("the same long text ", 200) + `"}]}`
	ask := func(t *testing.T) (match, log string) {
		synctest.Test(t, func(t *testing.T) {
			n := testkit.NewNetwork()
			n.Serve(t, "a:80", testkit.NewEngine())
			r := newRig(t, n, pools)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+dataAddr+"/v1/chat/completions", strings.NewReader(long))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := r.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			match = resp.Header.Get("X-Warmroute-Match")
			r.stop()
			if err := r.wait(); err != nil {
				t.Error(err)
			}
			log = r.log.String()
		})
		return match, log
	}
	match, log := ask(t)
	if match != "0" {
		t.Errorf("first start: match = %q; want 0", match)
	}
	mustContain(t, "log", log, "no index snapshot yet")
	match, log = ask(t)
	if match == "0" || match == "" {
		t.Errorf("after a restart: match = %q; want the prompt to be remembered", match)
	}
	mustContain(t, "log", log, "index snapshot loaded")

	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	match, log = ask(t)
	if match != "0" {
		t.Errorf("with a damaged snapshot: match = %q; want a cold start", match)
	}
	mustContain(t, "log", log, "index snapshot cannot be used; starting cold")
	if left, _ := filepath.Glob(path + ".*"); len(left) > 0 {
		t.Errorf("temporary files are left: %v", left)
	}
}

// A client that makes up model names makes no series.
func TestInventedModelsMakeNoSeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := testkit.NewNetwork()
		n.Serve(t, "a:80", testkit.NewEngine())
		r := newRig(t, n, onePool)
		r.chat("nobody")
		synctest.Wait()
		before := len(r.metrics())
		for i := range 1000 {
			if status, body := r.chat(fmt.Sprint("model-", i)); status != http.StatusNotFound {
				t.Fatalf("status %d %s; want 404", status, body)
			}
		}
		synctest.Wait()
		m := r.metrics()
		if after := len(m); after > before+20 { // buckets that were empty may come
			t.Errorf("1,000 invented models grew the page from %d to %d series", before, after)
		}
		if got := m[`warmroute_requests_total{class="client",code="404",kind="chat",model="other"}`]; got != "1001" {
			t.Errorf("requests of other models = %q; want 1001", got)
		}
	})
}

// During a drain each answer asks for a new connection, which goes elsewhere.
func TestDrainClosesConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := testkit.NewNetwork()
		n.Serve(t, "a:80", testkit.NewEngine())
		r := newRig(t, n, onePool)
		closes := func() bool {
			t.Helper()
			resp, err := r.client.Get("http://" + dataAddr + "/v1/models")
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			return resp.Close
		}
		if closes() {
			t.Error("the connection closes though the gateway does not drain")
		}
		r.stop()
		synctest.Wait()
		if !closes() {
			t.Error("the connection stays open though the gateway drains")
		}
	})
}

func TestReadinessNeedsAnInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := testkit.NewNetwork()
		r := newRig(t, n, onePool) // nobody serves at a:80
		time.Sleep(5 * time.Second)
		if status, body := r.get("http://" + dataAddr + "/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "no instance is ready") {
			t.Errorf("readyz = %d %s; want 503", status, body)
		}
		if status, _ := r.get("http://" + dataAddr + "/healthz"); status != http.StatusOK {
			t.Errorf("healthz = %d; want 200", status)
		}
		n.Serve(t, "a:80", testkit.NewEngine())
		time.Sleep(5 * time.Second)
		if status, body := r.get("http://" + dataAddr + "/readyz"); status != http.StatusOK {
			t.Errorf("readyz = %d %s; want 200", status, body)
		}
	})
}
