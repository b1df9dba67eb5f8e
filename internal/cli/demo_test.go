package cli

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/route"
)

// shortDemo is the demo in a few seconds.
func shortDemo() *DemoCmd {
	return &DemoCmd{
		Policies: []string{route.RoundRobin, route.Cost}, Instances: 3, Requests: 70, Speed: 10, Seed: 1,
	}
}

func TestDemoOnceJSON(t *testing.T) {
	out, log := new(buffer), new(buffer)
	demo := shortDemo()
	demo.Once, demo.JSON = true, true
	if err := demo.Run(&Env{Ctx: t.Context(), Stdout: out, Stderr: log}); err != nil {
		t.Fatal(err, log)
	}
	var report struct {
		Policies []map[string]json.RawMessage `json:"policies"`
		Setup    demoSetup                    `json:"setup"`
	}
	if err := json.Unmarshal([]byte(out.String()), &report); err != nil {
		t.Fatalf("standard output is not JSON alone: %v\n%s", err, out)
	}
	if len(report.Policies) != 2 {
		t.Fatalf("%d policies; want 2", len(report.Policies))
	}
	wantKeys := []string{"hit_rate", "imbalance", "name", "requests", "success_rate", "ttft_ms"}
	hit := map[string]float64{}
	for i, p := range report.Policies {
		if keys := sortedKeys(p); !slices.Equal(keys, wantKeys) {
			t.Errorf("policy %d has the keys %v; want %v", i, keys, wantKeys)
		}
		var r struct {
			Name     string             `json:"name"`
			TTFT     map[string]float64 `json:"ttft_ms"`
			Hit      map[string]float64 `json:"hit_rate"`
			Success  float64            `json:"success_rate"`
			Requests int                `json:"requests"`
		}
		text, _ := json.Marshal(p)
		if err := json.Unmarshal(text, &r); err != nil {
			t.Fatal(err)
		}
		if r.Name != demo.Policies[i] || r.Success != 1 || r.Requests != demo.Requests {
			t.Errorf("policy %d: %+v", i, r)
		}
		if keys := sortedKeys(r.TTFT); !slices.Equal(keys, []string{"mean", "p50", "p90", "p99"}) || r.TTFT["p50"] <= 0 {
			t.Errorf("policy %d: ttft_ms %v", i, r.TTFT)
		}
		if keys := sortedKeys(r.Hit); !slices.Equal(keys, []string{"actual", "ceiling", "predicted"}) || r.Hit["actual"] > r.Hit["ceiling"]+0.01 {
			t.Errorf("policy %d: hit_rate %v", i, r.Hit)
		}
		hit[r.Name] = r.Hit["actual"]
	}
	if hit[route.Cost] < hit[route.RoundRobin]+0.1 {
		t.Errorf("hit rates %v: cost gains nothing", hit)
	}
	if s := report.Setup; s.Instances != 3 || s.Load < 0.5 || s.Load > 1 {
		t.Errorf("setup %+v", s)
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Without --once the endpoint answers from the first policy on, and after the table until the end.
func TestDemoServesOn(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	out, log := new(buffer), new(buffer)
	shown := out.expect("Ctrl-C")
	invited := log.expect("curl http://")
	demo := shortDemo()
	demo.Policies, demo.Listen = []string{route.Cost}, "127.0.0.1:0"
	ended := make(chan error, 1)
	go func() { ended <- demo.Run(&Env{Ctx: ctx, Stdout: out, Stderr: log}) }()
	await(t, invited, "the invitation")
	await(t, shown, "the end of the comparison")
	address := regexp.MustCompile(`curl (http://\S+)/v1/chat/completions`).FindStringSubmatch(out.String())
	if address == nil {
		t.Fatalf("no endpoint in:\n%s", out)
	}
	client := &http.Client{Transport: new(http.Transport), Timeout: 20 * time.Second}
	defer client.CloseIdleConnections()
	response, err := client.Post(address[1]+"/v1/chat/completions", "application/json",
		strings.NewReader(`{"model":"`+demoModel+`","max_tokens":3,"messages":[{"role":"user","content":"hello"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(response.Body)
	response.Body.Close()
	if response.StatusCode != http.StatusOK || !strings.Contains(string(body), `"content"`) {
		t.Errorf("status %d: %s", response.StatusCode, body)
	}
	mustContain(t, "output", out.String(), "P50", "ceiling", "imbalance", "X-Warmroute-Explain", "/metrics", "Load: the prompts are")
	mustContain(t, "log", log.String(), "[1/1] cost")
	stop()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the demo does not stop")
	}
}

func TestDemoInterrupted(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer stop()
	demo := shortDemo()
	demo.Requests, demo.Speed, demo.Once = 200, 1, true
	out := new(buffer)
	err := demo.Run(&Env{Ctx: ctx, Stdout: out, Stderr: new(buffer)})
	if err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("error %v; want one that says that it was interrupted", err)
	}
	if out.String() != "" {
		t.Errorf("half a comparison was printed:\n%s", out)
	}
}

func TestDemoRefusesBadFlags(t *testing.T) {
	f := func(want string, edit func(*DemoCmd)) {
		t.Helper()
		demo := shortDemo()
		edit(demo)
		if err := demo.Run(&Env{Ctx: t.Context(), Stdout: io.Discard, Stderr: io.Discard}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v; want one about %s", err, want)
		}
	}
	f("--policies", func(d *DemoCmd) { d.Policies = []string{"best"} })
	f("--policies", func(d *DemoCmd) { d.Policies = nil })
	f("--instances", func(d *DemoCmd) { d.Instances = 0 })
	f("--requests", func(d *DemoCmd) { d.Requests = -1 })
	f("--duration", func(d *DemoCmd) { d.Duration, d.Requests = -1, 0 })
	f("exclude", func(d *DemoCmd) { d.Duration = time.Second })
	f("--speed", func(d *DemoCmd) { d.Speed = 0 })
	f("--listen", func(d *DemoCmd) { d.Listen = "nowhere:-1" })
}
