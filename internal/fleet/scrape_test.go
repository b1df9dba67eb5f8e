package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/warmroute/warmroute/internal/testkit"
)

func fixture(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "metrics", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func pageOf(t testing.TB, text string) page {
	t.Helper()
	var p page
	skipped, err := readSamples(strings.NewReader(text), wantedMetric, func(s sample) { p = append(p, s) })
	if err != nil || skipped > 0 {
		t.Fatalf("skipped %d, %v", skipped, err)
	}
	return p
}

// Each engine's page, as it is read: what is in the golden file was checked by
// hand against the page.
func TestDecodeFixtures(t *testing.T) {
	f := func(name string, rank *int) {
		t.Helper()
		facts, ok := decode(pageOf(t, fixture(t, name)), rank)
		if !ok {
			t.Fatalf("%s: no engine recognised", name)
		}
		got, err := json.MarshalIndent(facts, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		golden := strings.TrimSuffix(name, ".txt")
		if rank != nil {
			golden += fmt.Sprintf("_rank%d", *rank)
		}
		testkit.Golden(t, "metrics/"+golden+".json", append(got, '\n'))
	}
	for _, name := range []string{
		"vllm.txt", "vllm_hybrid.txt", "vllm_starting.txt", "vllm_asleep.txt", "vllm_old.txt", "vllm_ranks.txt",
		"sglang.txt", "sglang_underscore.txt", "llamacpp.txt",
	} {
		f(name, nil)
	}
	f("vllm_ranks.txt", new(1))
	if _, ok := decode(pageOf(t, fixture(t, "other.txt")), nil); ok {
		t.Error("an engine was recognised on a page of none")
	}
}

// The invariants beside the goldens.
func TestDecodedFactsAreSane(t *testing.T) {
	files, err := filepath.Glob("testdata/metrics/*.txt")
	if err != nil || len(files) < 10 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		facts, _ := decode(pageOf(t, fixture(t, filepath.Base(file))), nil)
		sane(t, facts)
	}
	one, _ := decode(pageOf(t, fixture(t, "vllm_ranks.txt")), new(0))
	two, _ := decode(pageOf(t, fixture(t, "vllm_ranks.txt")), new(1))
	both, _ := decode(pageOf(t, fixture(t, "vllm_ranks.txt")), nil)
	if one.Running+two.Running != both.Running || one.KVTokens+two.KVTokens != both.KVTokens || one.PromptTokens+two.PromptTokens != both.PromptTokens {
		t.Errorf("ranks do not add up: %+v, %+v, %+v", one, two, both)
	}
}

func sane(t *testing.T, f Facts) {
	t.Helper()
	if f.Running < 0 || f.Waiting < 0 || f.KVTokens < 0 || f.BlockTokens < 0 || f.WaitingTokens < -1 {
		t.Errorf("negative facts: %+v", f)
	}
	if f.KVUsed != -1 && !(f.KVUsed >= 0 && f.KVUsed <= 1) {
		t.Errorf("kv_used = %v", f.KVUsed)
	}
}

func TestReadSamples(t *testing.T) {
	all := func([]byte) bool { return true }
	f := func(text string, wantSkipped int, want ...string) {
		t.Helper()
		var got []string
		skipped, err := readSamples(strings.NewReader(text), all, func(s sample) {
			got = append(got, fmt.Sprintf("%s %q %v", s.name, s.labels, s.value))
		})
		if err != nil || skipped != wantSkipped {
			t.Errorf("%q: skipped %d, %v; want %d", text, skipped, err, wantSkipped)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
	f("", 0)
	f("a 1", 0, "a [] 1")
	f("a 1\r\nb 2\n", 0, "a [] 1", "b [] 2")
	f("# HELP a b\n# TYPE a gauge\n\n  a{} 1e3 1395066363000\n", 0, "a [] 1000")
	f(`a{b="c",d="e"}2`, 0, `a [{"b" "c"} {"d" "e"}] 2`)
	f(`a{b="c", d = "e" , } 2`, 0, `a [{"b" "c"} {"d" "e"}] 2`)
	f(`a{b="x\"y\\z\nw}\q"} -Inf`, 0, `a [{"b" "x\"y\\z\nw}\\q"}] -Inf`)
	f(`a{b="{,}"} NaN # {trace_id="1"} 0.5`, 0, `a [{"b" "{,}"}] NaN`)
	f("a{b=\"\u4e16\"} 1", 0, `a [{"b" "世"}] 1`)
	f("a\n{}\na{b 1\na{b=c} 1\na{b=\"c} 1\na{b=\"c\\\na x\na{b=\"c\"}\nz 1", 8, "z [] 1")
	f("a{b=\""+strings.Repeat("x", 3*maxLine)+"\"} 1\nz 1", 1, "z [] 1")
	f("z 1\n"+strings.Repeat("y", 2*maxLine), 1, "z [] 1")

	broken := errors.New("broken")
	if _, err := readSamples(io.MultiReader(strings.NewReader("a 1\n"), errReader{broken}), all, func(sample) {}); !errors.Is(err, broken) {
		t.Errorf("err = %v", err)
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// byLibrary reads a page with Prometheus' own parser, as "name labels value".
func byLibrary(text string) ([]string, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	var out []string
	for name, family := range families {
		for _, m := range family.Metric {
			var v float64
			switch family.GetType() {
			case dto.MetricType_COUNTER:
				v = m.GetCounter().GetValue()
			case dto.MetricType_GAUGE:
				v = m.GetGauge().GetValue()
			case dto.MetricType_UNTYPED:
				v = m.GetUntyped().GetValue()
			default:
				continue
			}
			var labels []label
			for _, l := range m.Label {
				labels = append(labels, label{l.GetName(), l.GetValue()})
			}
			if !partOfFamily(name) {
				out = append(out, line(name, labels, v))
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

// partOfFamily reports whether a line may belong to a histogram or summary, which
// the library puts together and this comparison leaves out.
func partOfFamily(name string) bool {
	return strings.HasSuffix(name, "_bucket") || strings.HasSuffix(name, "_sum") || strings.HasSuffix(name, "_count")
}

func line(name string, labels []label, v float64) string {
	labels = slices.Clone(labels)
	slices.SortFunc(labels, func(a, b label) int { return strings.Compare(a.name, b.name) })
	return fmt.Sprintf("%s %q %v", name, labels, v)
}

// Prometheus' parser and ours agree on every page that theirs accepts.
func TestAgreesWithPrometheus(t *testing.T) {
	files, _ := filepath.Glob("testdata/metrics/*.txt")
	for _, file := range files {
		agree(t, fixture(t, filepath.Base(file)))
	}
}

func agree(t *testing.T, text string) {
	t.Helper()
	want, err := byLibrary(text)
	if err != nil {
		return
	}
	var got []string
	_, err = readSamples(strings.NewReader(text), func([]byte) bool { return true }, func(s sample) {
		if !partOfFamily(s.name) {
			got = append(got, line(s.name, s.labels, s.value))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%q (-prometheus +ours):\n%s", text, diff)
	}
}

func FuzzReadSamples(f *testing.F) {
	files, _ := filepath.Glob("testdata/metrics/*.txt")
	for _, file := range files {
		b, _ := os.ReadFile(file)
		f.Add(string(b))
	}
	f.Add("vllm:num_requests_running{engine=\"0\"} 1e400\nvllm:kv_cache_usage_perc NaN\n")
	f.Add("sglang:cache_config_info{page_size=\"99999999999\",num_pages=\"-3\"} 1")
	f.Fuzz(func(t *testing.T, text string) {
		var p page
		if _, err := readSamples(strings.NewReader(text), wantedMetric, func(s sample) { p = append(p, s) }); err != nil {
			t.Fatal(err)
		}
		facts, _ := decode(p, nil)
		sane(t, facts)
		_ = facts.addLoads(strings.NewReader(text), nil)
		_ = facts.addProps(strings.NewReader(text))
		sane(t, facts)
		if !strings.ContainsAny(text, "\x00#\"\\\r\t") && len(text) < 4<<10 {
			for l := range strings.Lines(text) {
				agreeLoosely(t, l)
			}
		}
	})
}

// agreeLoosely compares the value of one line: what Prometheus' parser takes for
// a sample, ours must not misread.
func agreeLoosely(t *testing.T, text string) {
	t.Helper()
	want, err := byLibrary(text)
	if err != nil || len(want) != 1 {
		return
	}
	_, _ = readSamples(strings.NewReader(text), func([]byte) bool { return true }, func(s sample) {
		if got := line(s.name, s.labels, s.value); got != want[0] && !partOfFamily(s.name) {
			t.Errorf("%q: %s; Prometheus reads %s", text, got, want[0])
		}
	})
}

// Lines that nobody wants cost no allocation; they are nearly all of a page.
func TestUnwantedLinesAreFree(t *testing.T) {
	text := []byte(strings.Repeat("vllm:x_bucket{le=\"0.1\",model_name=\"m\"} 5.0\npython_gc_total{a=\"b\"} 1\n# HELP a b\n", 200))
	r := bytes.NewReader(text)
	n := testing.AllocsPerRun(20, func() {
		r.Reset(text)
		_, _ = readSamples(r, wantedMetric, func(sample) { t.Error("wanted") })
	})
	if n > 2 { // the reader and its buffer
		t.Errorf("%v allocations for 600 unwanted lines", n)
	}
}

func BenchmarkReadSamples(b *testing.B) {
	const bucket = "vllm:e2e_request_latency_seconds_bucket{engine=\"0\",le=\"0.5\",model_name=\"acme/chat-70b\"} 17.0\n"
	page := fixture(b, "vllm.txt") + strings.Repeat(bucket, 2000)
	b.SetBytes(int64(len(page)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := readSamples(strings.NewReader(page), wantedMetric, func(sample) {}); err != nil {
			b.Fatal(err)
		}
	}
}

// vllm is a page with what the restart and staleness tests turn.
func vllm(started float64, running, blocks int, tokens float64) string {
	s := fmt.Sprintf("vllm:num_requests_running{engine=\"0\"} %d\nvllm:num_requests_waiting{engine=\"0\"} 0\n"+
		"vllm:prompt_tokens_total{engine=\"0\"} %v\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n"+
		"vllm:cache_config_info{engine=\"0\",block_size=\"16\",num_gpu_blocks=\"%d\"} 1\n", running, tokens, blocks)
	if started > 0 {
		s += fmt.Sprintf("process_start_time_seconds %v\n", started)
	}
	return s
}

func TestScrapeCorrectsAndTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		e := testkit.NewEngine()
		e.SetMetrics(vllm(1000, 9, 1000, 5))
		r.net.Serve(t, "a:1", e)
		r.apply(t, pool("m", "a:1"))
		r.run(t)
		wait(5 * time.Second)
		v := r.view(t, "a:1")
		if v.Engine != VLLM || v.Stale || v.Facts.Running != 9 || v.Speed.KVTokens != 16_000 {
			t.Errorf("view = %+v", v)
		}
		// Nine requests that are not ours are somebody's.
		if v.Load.InFlight != 9 {
			t.Errorf("in flight = %d; want the others' 9", v.Load.InFlight)
		}
		same(t, "events", sorted(r.took()), "capacity a:1", "joined a:1", "up a:1")
		e.SetMetrics(vllm(1000, 9, 2000, 6))
		wait(10 * time.Second)
		same(t, "events", r.took(), "capacity a:1")
	})
}

func TestConfiguredCapacityStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		e := testkit.NewEngine()
		e.SetMetrics(vllm(1000, 0, 1000, 5))
		r.net.Serve(t, "a:1", e)
		p := pool("m", "a:1")
		p.Instances[0].KVTokens = 300
		r.apply(t, p)
		r.run(t)
		wait(10 * time.Second)
		if v := r.view(t, "a:1"); v.Speed.KVTokens != 300 || v.Facts.KVTokens != 16_000 {
			t.Errorf("capacity %d, told %d", v.Speed.KVTokens, v.Facts.KVTokens)
		}
		if n := r.count(Capacity); n != 0 {
			t.Errorf("%d capacity events", n)
		}
	})
}

// Metrics that stop arriving degrade routing to the ledger; they never make an
// instance idle, unready or slow to answer.
func TestStaleMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		e := testkit.NewEngine()
		e.SetMetrics(vllm(1000, 30, 1000, 5))
		r.net.Serve(t, "a:1", e)
		r.apply(t, pool("m", "a:1"))
		r.run(t)
		wait(5 * time.Second)
		l := r.take(t, "m", "a:1")
		e.SetMetrics("nothing here is a metric")
		wait(2500 * time.Millisecond)
		if r.view(t, "a:1").Stale {
			t.Error("stale after one miss")
		}
		wait(5 * time.Minute)
		v := r.view(t, "a:1")
		if !v.Stale || v.ScrapeError == "" || v.State != "ready" {
			t.Errorf("stale %t, %q, %s", v.Stale, v.ScrapeError, v.State)
		}
		if v.Load.InFlight != 1 || v.Load.Queued != 100 {
			t.Errorf("load = %+v; want our own request", v.Load)
		}
		e.SetMetrics(vllm(1000, 30, 1000, 7))
		wait(2 * time.Minute)
		if r.view(t, "a:1").Stale {
			t.Error("stale after metrics came back")
		}
		l.Release(time.Now(), Outcome{Result: Served})
	})
}

func TestRestartByMetrics(t *testing.T) {
	f := func(before, after string, want ...string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, nil)
			e := testkit.NewEngine()
			e.SetMetrics(before)
			r.net.Serve(t, "a:1", e)
			r.apply(t, pool("m", "a:1"))
			r.run(t)
			wait(10 * time.Second)
			l := r.take(t, "m", "a:1")
			l.FirstToken(time.Now())
			r.took()
			e.SetMetrics(after)
			wait(10 * time.Second)
			same(t, "events", r.took(), want...)
			v := r.view(t, "a:1")
			wantLeases, wantInFlight := 1, 1
			if len(want) > 0 {
				wantInFlight = 0
			}
			if v.Leases != wantLeases || v.InFlight != wantInFlight || v.Load.Decoding != float64(wantInFlight) {
				t.Errorf("leases %d, in flight %d, decoding %v; want %d, %d", v.Leases, v.InFlight, v.Load.Decoding, wantLeases, wantInFlight)
			}
			l.Release(time.Now(), Outcome{Result: Served})
			if v := r.view(t, "a:1"); v.Leases != 0 || v.InFlight != 0 || v.Load.InFlight != 0 {
				t.Errorf("after the release: %+v", v)
			}
		})
	}
	f(vllm(1000, 0, 10, 500), vllm(2000, 0, 10, 500), "restarted a:1 start_time")
	f(vllm(1000, 0, 10, 500), vllm(1000.3, 0, 10, 600))
	f(vllm(1000, 0, 10, 500), vllm(900, 0, 10, 100)) // another process behind the address, not a new one
	f(vllm(0, 0, 10, 500), vllm(0, 0, 10, 100), "restarted a:1 counters")
	f(vllm(0, 0, 10, 500), vllm(0, 0, 10, 501))
	f(vllm(1000, 0, 10, 500), vllm(0, 0, 10, 600))
}

// A page that is endless, slow or broken costs a bounded time and size, and the
// instance goes on.
func TestScrapeIsBounded(t *testing.T) {
	f := func(h http.HandlerFunc) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, func(c *Config, _ *Deps) { c.Scrape.MaxBytes = 64 << 10 })
			r.net.Serve(t, "a:1", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if req.URL.Path == metricsPath {
					h(w, req)
				}
			}))
			r.apply(t, pool("m", "a:1"))
			r.run(t)
			wait(time.Minute)
			v := r.view(t, "a:1")
			if v.State != "ready" || !v.Stale || v.ScrapeError == "" {
				t.Errorf("%s, stale %t, %q", v.State, v.Stale, v.ScrapeError)
			}
		})
	}
	f(func(w http.ResponseWriter, r *http.Request) { // endless
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, "vllm:num_requests_running 1\n"); err != nil {
				return
			}
		}
	})
	f(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }) // silent
	f(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	f(func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) })
}

// loadServer is an SGLang without metrics.
type loadServer struct {
	mu   sync.Mutex
	seen map[string]int
	page string
}

func (s *loadServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[r.URL.Path]++
	switch r.URL.Path {
	case "/v1/loads":
		_, _ = io.WriteString(w, s.page)
	case "/health":
	default:
		http.NotFound(w, r)
	}
}

const sglangLoads = `{"timestamp":1,"loads":[
	{"dp_rank":0,"num_running_reqs":3,"num_waiting_reqs":2,"num_waiting_uncached_tokens":7000,"num_used_tokens":1000,"max_total_num_tokens":10000,"token_usage":0.1},
	{"dp_rank":1,"num_running_reqs":1,"num_waiting_reqs":0,"num_waiting_uncached_tokens":0,"num_used_tokens":3000,"max_total_num_tokens":10000}]}`

func TestSGLangLoads(t *testing.T) {
	f := func(rank *int, page string, want Facts) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, nil)
			s := &loadServer{seen: make(map[string]int), page: page}
			r.net.Serve(t, "a:1", s)
			p := pool("m", "a:1")
			p.Instances[0].Rank, p.Instances[0].Name = rank, "a"
			r.apply(t, p)
			r.run(t)
			wait(10 * time.Second)
			v := r.view(t, "a")
			want.CachedTokens = -1
			if diff := cmp.Diff(want, v.Facts); diff != "" || v.Engine != SGLang || v.Stale {
				t.Errorf("engine %s, stale %t (-want +got):\n%s", v.Engine, v.Stale, diff)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.seen[metricsPath] != 1 {
				t.Errorf("%d looks at a page that is not there", s.seen[metricsPath])
			}
		})
	}
	f(nil, sglangLoads, Facts{Engine: SGLang, Running: 4, Waiting: 2, WaitingTokens: 7000, KVUsed: 0.2, KVTokens: 20_000})
	f(new(1), sglangLoads, Facts{Engine: SGLang, Running: 1, KVUsed: 0.3, KVTokens: 10_000})
	f(nil, `{"loads":[{"dp_rank":0,"num_running_reqs":1,"num_waiting_reqs":1}]}`, Facts{Engine: SGLang, Running: 1, Waiting: 1, WaitingTokens: -1, KVUsed: -1})
}

func TestLlamaProps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		asked := 0
		var mu sync.Mutex
		page := fixture(t, "llamacpp.txt")
		r.net.Serve(t, "a:1", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			switch req.URL.Path {
			case metricsPath:
				_, _ = io.WriteString(w, page)
			case propsPath:
				mu.Lock()
				defer mu.Unlock()
				asked++
				_, _ = io.WriteString(w, `{"total_slots":4,"default_generation_settings":{"n_ctx":8192}}`)
			}
		}))
		r.apply(t, pool("m", "a:1"))
		r.run(t)
		wait(20 * time.Second)
		if v := r.view(t, "a:1"); v.Engine != LlamaCPP || v.Facts.KVTokens != 4*8192 || v.Speed.KVTokens != 4*8192 {
			t.Errorf("engine %s, facts %+v", v.Engine, v.Facts)
		}
		mu.Lock()
		defer mu.Unlock()
		if asked != 1 {
			t.Errorf("asked %d times for what does not change", asked)
		}
	})
}

// An instance without metrics is asked rarely, and a hosted vendor never.
func TestNoMetrics(t *testing.T) {
	f := func(engine Engine, low, high int) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, nil)
			s := &loadServer{seen: make(map[string]int)}
			s.page = "{}"
			r.net.Serve(t, "a:1", s)
			p := pool("m", "a:1")
			p.Instances[0].Engine = engine
			r.apply(t, p)
			r.run(t)
			wait(10 * time.Minute)
			s.mu.Lock()
			defer s.mu.Unlock()
			if n := s.seen[metricsPath]; n < low || n > high {
				t.Errorf("%s: %d looks at the metrics in 10 minutes; want %d to %d", engine, n, low, high)
			}
		})
	}
	f(VLLM, 1, 12)
	f(OpenAI, 0, 0)
}

// An engine that was put to sleep is not a candidate, until it says it is awake
// or says nothing any more.
func TestAsleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		e := testkit.NewEngine()
		e.SetMetrics(fixture(t, "vllm_asleep.txt"))
		r.net.Serve(t, "a:1", e)
		r.apply(t, pool("m", "a:1"))
		r.run(t)
		wait(5 * time.Second)
		if got := r.view(t, "a:1").State; got != "asleep" {
			t.Errorf("state = %s", got)
		}
		same(t, "states", r.states(t, "m"), "a:1 unready")
		e.SetMetrics("")
		wait(5 * time.Minute)
		if got := r.view(t, "a:1").State; got != "ready" {
			t.Errorf("state = %s when nobody confirms the sleep", got)
		}
	})
}

func TestNumber(t *testing.T) {
	f := func(text string, want int) {
		t.Helper()
		if got := number(text); got != want {
			t.Errorf("%q = %d; want %d", text, got, want)
		}
	}
	f("16", 16)
	f("None", 0)
	f("", 0)
	f("-1", 0)
	f("0.92", 0)
	f("99999999999999", 0)
	if n := count(math.NaN(), true); n < 0 {
		t.Error(n)
	}
}
