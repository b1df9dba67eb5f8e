package telemetry

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/warmroute/warmroute/internal/testkit"
)

// gather returns every series of reg as name{label="value",...}.
func gather(t *testing.T, reg *prometheus.Registry) map[string]*dto.Metric {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]*dto.Metric)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			all[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = m
		}
	}
	return all
}

// values picks the counters and gauges among the series named.
func values(t *testing.T, reg *prometheus.Registry, names ...string) map[string]float64 {
	t.Helper()
	all := gather(t, reg)
	got := make(map[string]float64)
	for _, name := range names {
		m, ok := all[name]
		switch {
		case !ok:
			got[name] = math.NaN()
		case m.Counter != nil:
			got[name] = m.GetCounter().GetValue()
		default:
			got[name] = m.GetGauge().GetValue()
		}
	}
	return got
}

func diff(t *testing.T, reg *prometheus.Registry, want map[string]float64) {
	t.Helper()
	got := values(t, reg, slices.Sorted(maps.Keys(want))...)
	if d := cmp.Diff(want, got, cmpopts.EquateNaNs()); d != "" {
		t.Errorf("series (-want +got):\n%s", d)
	}
}

func TestEnded(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := New(reg)
	m.Know("llama")
	m.Joined("a")
	m.Joined("b")
	m.Started("llama")
	m.Started("llama")
	m.Ended(Request{
		Model: "llama", Kind: "chat", Class: "served", Code: 200, Instance: "a",
		TTFT: 30 * time.Millisecond, E2E: 2 * time.Second, Overhead: 100 * time.Microsecond,
		PromptTokens: 1000, CachedTokens: 600, CachedKnown: true, PredictedTokens: 700, AvailableTokens: 800,
		OutputTokens: 50, UnknownParts: 2,
	})
	m.Ended(Request{
		Model: "llama", Kind: "chat", Class: "client_gone", Code: 499, Instance: "b", ClientGone: true, ShortPrompt: true,
		PromptTokens: 10, OutputTokens: -3,
	})
	diff(t, reg, map[string]float64{
		`warmroute_requests_total{class="served",code="200",kind="chat",model="llama"}`:      1,
		`warmroute_requests_total{class="client_gone",code="499",kind="chat",model="llama"}`: 1,
		`warmroute_in_flight{model="llama"}`:                                                 0,
		`warmroute_client_gone_total{model="llama"}`:                                         1,
		`warmroute_short_prompts_total{model="llama"}`:                                       1,
		`warmroute_unknown_parts_total{model="llama"}`:                                       2,
		`warmroute_prompt_tokens_total{model="llama"}`:                                       1010,
		`warmroute_prompt_tokens_reported_total{model="llama"}`:                              1000,
		`warmroute_cached_tokens_total{model="llama"}`:                                       600,
		`warmroute_cached_predicted_tokens_total{model="llama"}`:                             700,
		`warmroute_cached_available_tokens_total{model="llama"}`:                             800,
		`warmroute_output_tokens_total{model="llama"}`:                                       50,
		`warmroute_instance_cached_tokens_total{instance="a",model="llama"}`:                 600,
		`warmroute_instance_requests_total{class="client_gone",instance="b",model="llama"}`:  1,
		// Instance b never reported: it has no part in the hit rate.
		`warmroute_instance_prompt_tokens_reported_total{instance="b",model="llama"}`: math.NaN(),
	})
	ttft := gather(t, reg)[`warmroute_ttft_seconds{model="llama"}`].GetHistogram()
	if got, want := ttft.GetSampleCount(), uint64(1); got != want {
		t.Errorf("ttft has %d samples; want %d: a request without content has no time to first token", got, want)
	}
	if len(ttft.GetBucket()) == 0 || len(ttft.GetPositiveSpan()) == 0 {
		t.Errorf("ttft has %d classic buckets and %d native spans; want both", len(ttft.GetBucket()), len(ttft.GetPositiveSpan()))
	}
}

func TestModelNamesAreBounded(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := New(reg)
	m.Know("llama", "gpt-4o")
	m.Know("qwen")
	serve := func(model string) {
		m.Started(model)
		m.Gap(model, time.Millisecond)
		m.Decided("cost", "cheapest")
		m.Ended(Request{Model: model, Kind: "chat", Class: "client", Code: 404})
	}
	serve("llama")
	serve("nobody-knows-this")
	before := len(gather(t, reg))
	for i := range 10_000 {
		serve(fmt.Sprintf("model-%x-\xff", i*7919))
	}
	if after := len(gather(t, reg)); after != before {
		t.Errorf("10,000 invented models grew the registry from %d series to %d", before, after)
	}
	diff(t, reg, map[string]float64{
		`warmroute_requests_total{class="client",code="404",kind="chat",model="other"}`: 10_001,
		`warmroute_in_flight{model="other"}`:                                            0,
	})
}

func TestOtherLabelsAreBounded(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := New(reg)
	for i := range 2000 {
		s := fmt.Sprint("x", i)
		m.Decided(s, s)
		m.Retried(s)
		m.Ended(Request{Model: "m", Kind: s, Class: s, Code: i})
	}
	got := make(map[string]int)
	teapot := false
	for name := range gather(t, reg) {
		got[name[:strings.IndexByte(name, '{')]]++
		teapot = teapot || strings.Contains(name, `code="418"`)
	}
	if n := got["warmroute_decisions_total"]; n != maxEnum+1 {
		t.Errorf("%d decision series; want %d", n, maxEnum+1)
	}
	if n := got["warmroute_retries_total"]; n > maxEnum+1 {
		t.Errorf("%d retry series; want at most %d", n, maxEnum+1)
	}
	if n := got["warmroute_requests_total"]; n > 120 {
		t.Errorf("2,000 odd answers made %d request series", n)
	}
	if !teapot {
		t.Error("a registered status has no series of its own")
	}
}

func TestInFlightSurvivesNewModels(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := New(reg)
	m.Started("late")
	diff(t, reg, map[string]float64{`warmroute_in_flight{model="other"}`: 1})
	m.Know("late")
	diff(t, reg, map[string]float64{`warmroute_in_flight{model="other"}`: 0, `warmroute_in_flight{model="late"}`: 1})
	m.Ended(Request{Model: "late", Kind: "chat", Class: "served", Code: 200})
	diff(t, reg, map[string]float64{`warmroute_in_flight{model="other"}`: 0, `warmroute_in_flight{model="late"}`: 0})
}

func TestAliasesShareSeries(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := New(reg)
	m.Know("llama", "gpt-4o", "small")
	m.Ended(Request{Model: "gpt-4o", PromptTokens: 1})
	m.Ended(Request{Model: "llama", PromptTokens: 2})
	m.Know("small") // is a model of its own from now on
	m.Ended(Request{Model: "small", PromptTokens: 4})
	diff(t, reg, map[string]float64{
		`warmroute_prompt_tokens_total{model="llama"}`:  3,
		`warmroute_prompt_tokens_total{model="small"}`:  4,
		`warmroute_prompt_tokens_total{model="gpt-4o"}`: math.NaN(),
	})
	if !m.Knows("gpt-4o") || m.Knows("gpt-5") {
		t.Error("Knows is wrong about an alias or a stranger")
	}
}

func TestKnowKeepsCounters(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := New(reg)
	series := `warmroute_prompt_tokens_total{model="llama"}`
	for range 3 {
		m.Know("llama")
		m.Started("llama")
		m.Ended(Request{Model: "llama", PromptTokens: 5})
		m.Know("qwen") // llama is no longer named
	}
	diff(t, reg, map[string]float64{series: 15})
}

// A fleet whose addresses change all day does not grow the registry, not even by
// requests that end when their instance has left already.
func TestInstancesComeAndGo(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := New(reg)
	m.Know("llama")
	for i := range 3 * maxInstances {
		name := fmt.Sprint("10.0.0.", i)
		m.Joined(name)
		r := Request{Model: "llama", Instance: name, CachedKnown: true, PromptTokens: 10, CachedTokens: 1}
		m.Ended(r)
		if i >= 50 {
			m.Left(name)
			m.Ended(r)
		}
	}
	got := 0
	for name := range gather(t, reg) {
		if strings.HasPrefix(name, "warmroute_instance_cached_tokens_total") {
			got++
		}
	}
	if want := 50 + 1; got != want {
		t.Errorf("%d series; want %d: of those that stay, and of the others", got, want)
	}
	diff(t, reg, map[string]float64{
		`warmroute_cached_tokens_total{model="llama"}`:                           2*3*maxInstances - 50,
		`warmroute_instance_cached_tokens_total{instance="other",model="llama"}`: 3*maxInstances - 50,
	})
}

// An instance that comes back under its name before the old one has drained
// keeps the series.
func TestInstanceOfTheSameName(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := New(reg)
	m.Know("llama")
	series := `warmroute_instance_requests_total{class="served",instance="a",model="llama"}`
	m.Joined("a")
	m.Ended(Request{Model: "llama", Instance: "a", Class: "served"})
	m.Joined("a")
	m.Left("a")
	m.Ended(Request{Model: "llama", Instance: "a", Class: "served"})
	diff(t, reg, map[string]float64{series: 2})
	m.Left("a")
	diff(t, reg, map[string]float64{series: math.NaN()})
}

func TestSources(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := New(reg)
	m.Read(Sources{
		Instances: func(yield func(Instance) bool) {
			in := Instance{Name: "a\xff", Model: "llama", State: "ready", Breaker: "open", InFlight: 3, QueuedTokens: 9, CapacityBlocks: 1e6, Flushes: 2}
			twice := in // would fail the scrape
			_ = yield(in) && yield(twice)
		},
		Index: func() Index { return Index{Bytes: 10, LimitBytes: 20, Blocks: 3, Runs: 1} },
		Held:  func() int { return 5 },
	})
	diff(t, reg, map[string]float64{
		"warmroute_instance_in_flight{instance=\"a\uFFFD\",model=\"llama\"}":                         3,
		"warmroute_instance_breaker_state{instance=\"a\uFFFD\",model=\"llama\",state=\"open\"}":      1,
		"warmroute_instance_breaker_state{instance=\"a\uFFFD\",model=\"llama\",state=\"half_open\"}": 0,
		"warmroute_instance_flushes_total{instance=\"a\uFFFD\",model=\"llama\"}":                     2,
		`warmroute_index_bytes{}`:             10,
		`warmroute_queue_length{}`:            5,
		`warmroute_in_flight{model="other"}`:  0,
		`warmroute_index_limit_bytes{}`:       20,
		`warmroute_instance_up{instance="a"}`: math.NaN(),
		`warmroute_index_runs{}`:              1,
		`warmroute_index_blocks{}`:            3,
	})
}

func TestShadows(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := New(reg)
	m.Know("llama", "alias")
	m.Predicted("llama", "cost", 200*time.Millisecond, 1000, 700)
	m.Predicted("llama", "cost", 400*time.Millisecond, 500, 0)
	m.Predicted("stranger", "random", time.Second, 10, 0)
	m.Unpredicted("llama")
	m.PolicyChanged("llama", "sticky", "switched")
	m.Read(Sources{Policies: func(yield func(string, string) bool) {
		_ = yield("llama", "sticky") && yield("stranger", "cost") && yield("alias", "cost") // the last one would fail the scrape
	}})
	diff(t, reg, map[string]float64{
		`warmroute_shadow_prompt_tokens_total{model="llama",policy="cost"}`:             1500,
		`warmroute_shadow_cached_tokens_total{model="llama",policy="cost"}`:             700,
		`warmroute_shadow_prompt_tokens_total{model="other",policy="random"}`:           10,
		`warmroute_shadow_skipped_total{model="llama"}`:                                 1,
		`warmroute_policy_changes_total{kind="switched",model="llama",policy="sticky"}`: 1,
		`warmroute_live_policy{model="llama",policy="sticky"}`:                          1,
		`warmroute_live_policy{model="other",policy="cost"}`:                            math.NaN(),
	})
	h := gather(t, reg)[`warmroute_shadow_ttft_seconds{model="llama",policy="cost"}`].GetHistogram()
	if h.GetSampleCount() != 2 || math.Abs(h.GetSampleSum()-.6) > 1e-9 {
		t.Errorf("predicted times: %d, sum %v", h.GetSampleCount(), h.GetSampleSum())
	}
}

func TestConcurrentUse(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := New(reg)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 200 {
				name := fmt.Sprint("m", (w+i)%5)
				m.Know(name)
				m.Started(name)
				m.Gap(name, time.Millisecond)
				m.Ended(Request{Model: name, Instance: name, Kind: "chat", Class: "served", Code: 200})
				if i%50 == 0 {
					m.Joined(name)
					m.Left(name)
					gather(t, reg)
				}
			}
		})
	}
	wg.Wait()
	total := 0.0
	for name, s := range gather(t, reg) {
		if strings.HasPrefix(name, "warmroute_requests_total") {
			total += s.GetCounter().GetValue()
		}
	}
	if total != 1600 {
		t.Errorf("counted %v requests; want 1600", total)
	}
}

func TestDocs(t *testing.T) {
	m := New(prometheus.NewRegistry())
	var got bytes.Buffer
	if err := m.WriteDocs(&got); err != nil {
		t.Fatal(err)
	}
	testkit.Golden(t, "../../../docs/metrics.md", got.Bytes())
}

// Every metric is documented, and no metric that is documented is missing.
func TestDocsAreComplete(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := New(reg)
	m.Started("x")
	m.Ended(Request{Instance: "a", CachedKnown: true})
	m.Decided("cost", "cheapest")
	m.Retried("transient")
	m.Reloaded("applied", time.Unix(1, 0))
	m.Snapshot("load", "none")
	m.Know("llama")
	m.Predicted("llama", "cost", time.Second, 100, 50)
	m.Unpredicted("llama")
	m.PolicyChanged("llama", "sticky", "switched")
	m.Read(Sources{
		Policies:  func(yield func(string, string) bool) { yield("llama", "cost") },
		Instances: func(yield func(Instance) bool) { yield(Instance{Name: "a"}) },
		Index:     func() Index { return Index{} },
		Held:      func() int { return 1 },
	})
	var got []string
	for name := range gather(t, reg) {
		got = append(got, name[:strings.IndexByte(name, '{')])
	}
	slices.Sort(got)
	got = slices.Compact(got)
	var want []string
	for _, d := range m.docs {
		want = append(want, d.Name)
	}
	slices.Sort(want)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("metrics (-documented +served):\n%s", d)
	}
}

func BenchmarkEnded(b *testing.B) {
	m := New(prometheus.NewRegistry())
	m.Know("llama")
	m.Joined("a")
	r := Request{
		Model: "llama", Kind: "chat", Class: "served", Code: 200, Instance: "a", TTFT: time.Millisecond, E2E: time.Second,
		PromptTokens: 1000, CachedKnown: true, CachedTokens: 900, OutputTokens: 10,
	}
	b.ReportAllocs()
	for b.Loop() {
		m.Started("llama")
		m.Ended(r)
	}
}

func BenchmarkGap(b *testing.B) {
	m := New(prometheus.NewRegistry())
	m.Know("llama")
	b.ReportAllocs()
	for b.Loop() {
		m.Gap("llama", 20*time.Millisecond)
	}
}

func TestGapAllocatesNothing(t *testing.T) {
	m := New(prometheus.NewRegistry())
	m.Know("llama")
	m.Gap("llama", 20*time.Millisecond)
	if n := testing.AllocsPerRun(100, func() { m.Gap("llama", 20*time.Millisecond) }); n != 0 {
		t.Errorf("Gap allocates %v times; want 0: it runs for every token", n)
	}
}
