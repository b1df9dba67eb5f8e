package bench

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/route"
)

// The cells that users are promised are there, and each can be run.
func TestStandardSuite(t *testing.T) {
	cells, skipped, err := Standard(1, os.Getenv("WARMROUTE_TRACES"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, c := range cells {
		if names[c.Name] {
			t.Errorf("two cells are called %s", c.Name)
		}
		names[c.Name] = true
		if err := c.validate(); err != nil || c.About == "" {
			t.Errorf("%s: %v, about %q", c.Name, err, c.About)
		}
		if len(c.Profiles) < 4 || !c.AllKnowledge {
			t.Errorf("%s: %d instances, knowledge %v", c.Name, len(c.Profiles), c.AllKnowledge)
		}
	}
	for _, s := range skipped {
		name, _, _ := strings.Cut(s, ":")
		names[name] = true
		if !strings.Contains(s, ".gz") {
			t.Errorf("skipped %q names no file", s)
		}
	}
	for _, want := range []string{
		"aws-8k-prefix", "rag-zipf1", "rag-hot-zipf2", "rag-thrash", "llmd-groups-18", "mooncake-conversation", "mooncake-synthetic", "chat", "agents",
		"heterogeneous", "capacity-quarter", "capacity-x4", "restarts", "overload",
	} {
		if !names[want] {
			t.Errorf("there is no cell %s", want)
		}
	}
}

func TestStandardSuiteRunsSmall(t *testing.T) {
	traces := t.TempDir()
	const conversation = `{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hello"},{"role":"assistant","content":"Hi"}]}` + "\n"
	writeGzip(t, filepath.Join(traces, traceTauBench), strings.Repeat(conversation, 30))
	cells, skipped, err := Standard(0.02, traces)
	if err != nil {
		t.Fatal(err)
	}
	if len(skipped) != 2 || len(cells) != len(standard)-2 {
		t.Errorf("%d cells, skipped %q; want all but the two traces that are not there", len(cells), skipped)
	}
	e := Experiment{Title: "small", Cells: cells, Policies: []string{route.Cost, route.Random}, Seeds: []uint64{1}, Route: route.Default()}
	r := runTiny(t, e)
	for _, c := range r.Cells {
		for _, p := range slices.Concat(c.Policies, c.Knowledge) {
			if p.Requests == 0 || p.SuccessRate < 0.7 || // in so short a run four restarts kill many streams
				p.HitRate.Actual > p.HitRate.Ceiling {
				t.Errorf("%s %s: %d requests, success %g, hit rate %+v", c.Name, p.Name, p.Requests, p.SuccessRate, p.HitRate)
			}
		}
	}
	aws := AWS(r)
	if aws == nil || len(aws.Rows) != 3 || aws.Rows[0].Cost <= 0 || aws.Rows[0].Random <= 0 {
		t.Errorf("AWS's table %+v", aws)
	}
}

// A gateway that hears of the others late routes worse than one that hears of them at once, and better than one that never does.
func TestReplicasShare(t *testing.T) {
	play := func(replicas int, delay time.Duration) *Result {
		s := ragRun(t, route.Cost, 2500)
		s.Engine.BlockTokens = 64
		s.Replicas, s.ShareDelay = replicas, delay
		return run(t, s)
	}
	alone, soon, late, never := play(1, 0), play(4, 20*time.Millisecond), play(4, 2*time.Second), play(4, -1)
	for name, r := range map[string]*Result{"alone": alone, "soon": soon, "late": late, "never": never} {
		t.Logf("%s: mean TTFT %g ms, hit rate %g", name, r.TTFT.Mean, r.HitRate.Actual)
		if r.SuccessRate != 1 || r.Requests != 2500 {
			t.Errorf("%s: %d requests, success %g", name, r.Requests, r.SuccessRate)
		}
	}
	if soon.TTFT.Mean > 1.5*alone.TTFT.Mean || soon.HitRate.Actual < alone.HitRate.Actual-0.03 {
		t.Errorf("four replicas that share soon: mean TTFT %g, hit rate %g; one: %g, %g",
			soon.TTFT.Mean, soon.HitRate.Actual, alone.TTFT.Mean, alone.HitRate.Actual)
	}
	if !(soon.TTFT.Mean < late.TTFT.Mean && late.TTFT.Mean < never.TTFT.Mean) {
		t.Errorf("mean TTFT soon %g, late %g, never %g; want them in this order", soon.TTFT.Mean, late.TTFT.Mean, never.TTFT.Mean)
	}
}

func TestInstancesComeAndGo(t *testing.T) {
	s := ragRun(t, route.Cost, 2000)
	s.Engine.BlockTokens = 64
	if err := s.ReadEvents([]string{"30s:add", "60s:remove:0", "20s:restart:1:2s", "40s:kv:all:90000"}); err != nil {
		t.Fatal(err)
	}
	if len(s.Profiles) != 8 || len(s.Events) != 3+8 {
		t.Fatalf("%d profiles, %d events", len(s.Profiles), len(s.Events))
	}
	r := run(t, s)
	if r.SuccessRate < 0.99 {
		t.Errorf("success rate %g", r.SuccessRate)
	}
	all := r.Requests
	for i, in := range r.Instances {
		t.Logf("instance %d: %d requests", i, in.Requests)
	}
	// 100 s in all: the eighth is there for 70 of them, the first for 60.
	if n := r.Instances[7].Requests; n < all/20 || n > all/5 {
		t.Errorf("the added instance answers %d of %d", n, all)
	}
	if n := r.Instances[0].Requests; n < all/30 || n > all/8 {
		t.Errorf("the removed instance answers %d of %d", n, all)
	}
	s = ragRun(t, route.Cost, 600)
	if err := s.ReadEvents([]string{"1000s:add"}); err != nil {
		t.Fatal(err)
	}
	if r := run(t, s); r.Instances[7].Requests != 0 {
		t.Errorf("an instance answers %d requests before it is added", r.Instances[7].Requests)
	}
}

func TestReadEventsRefuses(t *testing.T) {
	for _, text := range []string{"", "5s", "5s:burn:1", "soon:restart:1", "5s:restart", "5s:restart:x", "5s:restart:1:later", "5s:kv:1", "5s:kv:1:0", "5s:add:1", "-5s:add"} {
		s := ragRun(t, route.Cost, 10)
		if err := s.ReadEvents([]string{text}); err == nil {
			t.Errorf("%q is no error", text)
		}
	}
}

func writeGzip(t *testing.T, path, text string) {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}
