package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
