package bench

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/warmroute/warmroute/internal/route"
)

// drain takes every request of a source, answering each after the given time.
func drain(t *testing.T, s Source, answer time.Duration) []Request {
	t.Helper()
	var out []Request
	var open []Request // in order of their ends
	last := time.Duration(0)
	for {
		at, ok := s.Next()
		if len(open) > 0 && (!ok || open[0].At+answer <= at) {
			r := open[0]
			open = open[1:]
			s.Ended(&r, r.At+answer)
			continue
		}
		if !ok {
			return out
		}
		var r Request
		s.Take(&r)
		if r.At != at {
			t.Fatalf("Next said %v and Take gave %v", at, r.At)
		}
		if r.At < last {
			t.Fatalf("request %d arrives at %v, after one at %v", len(out), r.At, last)
		}
		last = r.At
		out = append(out, r)
		open = append(open, r)
	}
}

var workloads = []Workload{
	RAG{Requests: 300, Rate: 20, Prefixes: 40, PrefixTokens: 8000, Zipf: 0.9, SystemTokens: 64, Tail: Between(50, 250), Output: Between(20, 60)},
	Chat{Sessions: 60, Rate: 2, Groups: 3, SystemTokens: 500, Turns: Between(1, 6), User: Length{Mean: 80, Sigma: 0.6, Min: 5, Max: 900},
		Output: Between(10, 300), Think: 4 * time.Second},
	Chat{Sessions: 60, Users: 8, SystemTokens: 500, Turns: Between(2, 4), User: Between(10, 90), Output: Between(10, 300), Think: time.Second},
}

func TestWorkloadsRepeat(t *testing.T) {
	for _, w := range workloads {
		first, second := drain(t, w.Source(7), time.Second), drain(t, w.Source(7), time.Second)
		if len(first) == 0 {
			t.Errorf("%s: no request", w.Name())
		}
		if diff := cmp.Diff(first, second); diff != "" {
			t.Errorf("%s: two runs of one seed differ:\n%s", w.Name(), diff)
		}
		if cmp.Equal(first, drain(t, w.Source(8), time.Second)) {
			t.Errorf("%s: two seeds agree", w.Name())
		}
	}
}

func TestZipfShares(t *testing.T) {
	f := func(n int, s float64) {
		t.Helper()
		const draws = 400_000
		z, r := newZipf(n, s), stream(3, drawContent)
		counts := make([]int, n)
		for range draws {
			counts[z.draw(r)]++
		}
		norm := 0.0
		for i := range n {
			norm += math.Pow(float64(i+1), -s)
		}
		for i := range n {
			p := math.Pow(float64(i+1), -s) / norm
			if got := z.share(i); math.Abs(got-p) > 1e-12 {
				t.Fatalf("zipf(%d, %g): share of rank %d is %g; want %g", n, s, i, got, p)
			}
			deviation := math.Sqrt(draws * p * (1 - p))
			if d := math.Abs(float64(counts[i]) - draws*p); d > 5*deviation+1 {
				t.Errorf("zipf(%d, %g): rank %d drawn %d times; want %.0f +- %.0f", n, s, i, counts[i], draws*p, deviation)
			}
		}
	}
	f(1, 1)
	f(40, 0)
	f(40, 0.6)
	f(300, 1)
	f(100, 2)
}

func TestRAGShape(t *testing.T) {
	w := RAG{Requests: 20_000, Rate: 20, Prefixes: 40, PrefixTokens: 8000, Zipf: 1, SystemTokens: 64, Tail: Between(50, 250), Output: Fixed(32)}
	requests := drain(t, w.Source(1), 0)
	if len(requests) != w.Requests {
		t.Fatalf("%d requests; want %d", len(requests), w.Requests)
	}
	rate := float64(len(requests)) / requests[len(requests)-1].At.Seconds()
	if math.Abs(rate-w.Rate) > 0.03*w.Rate {
		t.Errorf("rate %.2f/s; want %g", rate, w.Rate)
	}
	documents, tails := map[uint64]int{}, map[uint64]bool{}
	for _, r := range requests {
		if n := r.PromptTokens(); n < 64+8000+50 || n > 64+8000+250 {
			t.Fatalf("prompt of %d tokens", n)
		}
		documents[r.Prompt[1].ID]++
		tails[r.Prompt[2].ID] = true
	}
	if len(documents) != w.Prefixes || len(tails) != w.Requests {
		t.Errorf("%d documents and %d questions; want %d and %d", len(documents), len(tails), w.Prefixes, w.Requests)
	}
}

// Changing lengths must not change who asks for which document when.
func TestRAGStreamsAreIndependent(t *testing.T) {
	w := RAG{Requests: 500, Rate: 20, Prefixes: 40, PrefixTokens: 8000, Zipf: 1, Tail: Between(50, 250), Output: Fixed(32)}
	long := w
	long.Tail = Length{Mean: 900, Sigma: 1}
	a, b := drain(t, w.Source(1), 0), drain(t, long.Source(1), 0)
	for i := range a {
		if a[i].At != b[i].At || a[i].Prompt[0].ID != b[i].Prompt[0].ID {
			t.Fatalf("request %d differs", i)
		}
	}
}

func TestChatFeedsAnswersBack(t *testing.T) {
	w := workloads[1].(Chat)
	bySession := map[uint64][]Request{}
	for _, r := range drain(t, w.Source(5), 2*time.Second) {
		bySession[r.Session] = append(bySession[r.Session], r)
	}
	if len(bySession) != w.Sessions {
		t.Errorf("%d sessions; want %d", len(bySession), w.Sessions)
	}
	longest := 0
	for id, turns := range bySession {
		longest = max(longest, len(turns))
		for i, r := range turns {
			if r.Turn != i {
				t.Fatalf("session %d: turn %d comes as number %d", id, r.Turn, i)
			}
			if i == 0 {
				continue
			}
			before := turns[i-1]
			want := append(append([]Segment{}, before.Prompt...), before.Answer)
			if diff := cmp.Diff(want, r.Prompt[:len(want)]); diff != "" || len(r.Prompt) != len(want)+1 {
				t.Fatalf("session %d turn %d does not begin with all that was said:\n%s", id, i, diff)
			}
			if r.At < before.At+2*time.Second {
				t.Fatalf("session %d turn %d is sent before the answer", id, i)
			}
		}
	}
	if longest != w.Turns.Max {
		t.Errorf("longest session has %d turns; want %d", longest, w.Turns.Max)
	}
}

// In a closed loop what is said in a session does not depend on how fast the answers are.
func TestChatContentIgnoresLatency(t *testing.T) {
	contents := func(answer time.Duration) map[[2]uint64]Request {
		out := map[[2]uint64]Request{}
		for _, r := range drain(t, workloads[2].Source(9), answer) {
			at := [2]uint64{r.Session, uint64(r.Turn)}
			r.At = 0
			out[at] = r
		}
		return out
	}
	if diff := cmp.Diff(contents(10*time.Millisecond), contents(30*time.Second)); diff != "" {
		t.Errorf("contents differ (-fast +slow):\n%s", diff)
	}
}

func TestReadTrace(t *testing.T) {
	const lines = `{"timestamp": 2500, "input_length": 700, "output_length": 30, "hash_ids": [1, 3], "session_id": "s"}
{"timestamp": 500, "input_length": 1000, "output_length": 0, "hash_ids": [1, 2]}
{"timestamp": 3000, "input_length": 0, "output_length": 5, "hash_ids": []}
`
	trace, err := ReadTrace(strings.NewReader(lines), 0, 2)
	if err != nil {
		t.Fatal(err)
	}
	got := drain(t, trace.Source(1), 0)
	if len(got) != 2 {
		t.Fatalf("%d requests; want 2, for an empty prompt is none", len(got))
	}
	if got[0].At != 0 || got[1].At != time.Second {
		t.Errorf("arrivals %v, %v; want 0 and 1s: sorted, from zero, at twice the speed", got[0].At, got[1].At)
	}
	if n := []int{got[0].PromptTokens(), got[1].PromptTokens()}; n[0] != 1000 || n[1] != 700 {
		t.Errorf("prompts of %v tokens; want 1000 and 700", n)
	}
	if got[0].Prompt[0] != got[1].Prompt[0] || got[0].Prompt[1] == got[1].Prompt[1] {
		t.Errorf("the first block must be shared and the second not: %v, %v", got[0].Prompt, got[1].Prompt)
	}
	if got[1].Session == 0 || got[0].Session != 0 {
		t.Errorf("sessions %d, %d", got[0].Session, got[1].Session)
	}
	if _, err := ReadTrace(strings.NewReader("\n"), 0, 1); err == nil {
		t.Error("an empty trace is no error")
	}
	if _, err := ReadTrace(strings.NewReader("{\n"), 0, 1); err == nil {
		t.Error("broken JSON is no error")
	}
	if _, err := OpenTrace("testdata/none.jsonl", 0, 1); err == nil {
		t.Error("a missing file is no error")
	}
}

// Published figures: Qin et al. give 40 and 66 % for whole traces with their own blocks at the end (FAST '25, table 2); without the
// partial last blocks, 37.4 and 65.1 % of the tokens can be reused. The traces lie where WARMROUTE_TRACES says.
func TestMooncakeCeiling(t *testing.T) {
	directory := os.Getenv("WARMROUTE_TRACES")
	if directory == "" {
		t.Skip("WARMROUTE_TRACES names no directory with mooncake_*.jsonl.gz")
	}
	f := func(name string, requests int, want float64) {
		t.Helper()
		trace, err := OpenTrace(filepath.Join(directory, name), 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		profiles, err := Fleet("llama-3.1-70b-8xh100", 32)
		if err != nil {
			t.Fatal(err)
		}
		r := run(t, Settings{Policy: route.Cost, Route: route.Default(), Workload: trace, Profiles: profiles})
		if r.Requests != requests || math.Abs(r.HitRate.Ceiling-want) > 0.001 {
			t.Errorf("%s: %d requests, ceiling %g; want %d and %g", name, r.Requests, r.HitRate.Ceiling, requests, want)
		}
	}
	f("mooncake_conversation.jsonl.gz", 12_031, 0.374)
	f("mooncake_synthetic.jsonl.gz", 3_993, 0.651)
}

func TestChainer(t *testing.T) {
	chain := func(segments ...Segment) []uint64 {
		var c chainer[uint64]
		c.reset(16)
		for _, s := range segments {
			c.add(s)
		}
		return c.blocks
	}
	common := func(a, b []uint64) int {
		n := 0
		for n < min(len(a), len(b)) && a[n] == b[n] {
			n++
		}
		return n
	}
	document := Segment{11, 100}
	a, b := chain(document, Segment{21, 40}), chain(document, Segment{22, 40})
	if len(a) != 140/16 {
		t.Errorf("%d blocks; want %d complete ones", len(a), 140/16)
	}
	if got := common(a, b); got != 100/16 {
		t.Errorf("%d blocks shared; want %d", got, 100/16)
	}
	if got := common(a, chain(document)); got != 100/16 {
		t.Errorf("a prompt shares %d blocks with its own beginning; want %d", got, 100/16)
	}
	// The same text later in a prompt is another block.
	if got := common(a, chain(Segment{21, 16}, document)); got != 0 {
		t.Errorf("%d blocks shared by prompts that begin differently", got)
	}
	seen := map[uint64]bool{}
	for i := range 2000 {
		for _, h := range chain(Segment{uint64(i), 160}) {
			if seen[h] {
				t.Fatalf("hash of segment %d collides", i)
			}
			seen[h] = true
		}
	}
}

func TestCorpus(t *testing.T) {
	for _, language := range []Language{English, Chinese} {
		c, err := NewCorpus(language)
		if err != nil {
			t.Fatal(err)
		}
		again, _ := NewCorpus(language)
		seen := map[string]bool{}
		for i := range 60 {
			d := c.Document(i, 30_000)
			if len(d) > 30_000 || len(d) < 29_990 || !utf8.ValidString(d) {
				t.Fatalf("%s document %d: %d bytes, valid UTF-8 %v", language, i, len(d), utf8.ValidString(d))
			}
			if strings.ContainsAny(d, "{}") || strings.Contains(d, "%!") {
				t.Fatalf("%s document %d has an unfilled place:\n%s", language, i, d)
			}
			if d != again.Document(i, 30_000) {
				t.Fatalf("%s document %d is not the same twice", language, i)
			}
			if !strings.HasPrefix(d, c.Document(i, 10_000)[:9_990]) {
				t.Fatalf("%s document %d: the shorter text is not the longer one's beginning", language, i)
			}
			head := d[:200]
			if seen[head] {
				t.Fatalf("%s document %d begins like another", language, i)
			}
			seen[head] = true
			if q := c.Question(i); seen[q] {
				t.Fatalf("%s question %d repeats: %s", language, i, q)
			} else {
				seen[q] = true
			}
		}
	}
	if _, err := NewCorpus("xx"); err == nil {
		t.Error("an unknown language is no error")
	}
}
