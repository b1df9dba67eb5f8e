package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmroute/warmroute/internal/bench"
	"github.com/warmroute/warmroute/internal/route"
)

// benchSim runs the command and returns what it printed.
func benchSim(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Main(t.Context(), append([]string{"bench", "sim"}, args...), &out, &errs)
	return code, out.String(), errs.String()
}

// short makes a run that takes a moment.
var short = []string{"--duration", "20s", "--warm-up", "5s", "--instances", "3", "--kv-tokens", "60000", "--engine-block", "64", "--policies", "cost,random"}

func TestBenchSimJSON(t *testing.T) {
	code, stdout, stderr := benchSim(t, append(short, "--json", "-", "--rate", "4,6", "--seeds", "2", "--knowledge", "all",
		"--workload", "rag:prefixes=12,tokens=4000")...)
	if code != ExitOK || stderr != "" {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	var r bench.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatalf("%v in:\n%s", err, stdout)
	}
	if len(r.Cells) != 2 || len(r.Seeds) != 2 || r.Cells[0].Rate != 4 || r.Cells[1].Rate != 6 {
		t.Fatalf("%d cells, seeds %v", len(r.Cells), r.Seeds)
	}
	for _, c := range r.Cells {
		if len(c.Policies) != 2 || c.Policies[0].Name != route.Cost || len(c.Knowledge) != 3 {
			t.Errorf("%s: %d policies, %d rows of knowledge", c.Name, len(c.Policies), len(c.Knowledge))
		}
		for _, p := range c.Policies {
			if p.Requests < 100 || p.TTFT.P50 <= 0 || p.E2E.P50 <= p.TTFT.P50 || p.TPOT.Mean <= 0 || p.HitRate.Actual <= 0 {
				t.Errorf("%s %s: %+v", c.Name, p.Name, p.PolicyResult)
			}
		}
	}
}

func TestBenchSimFlags(t *testing.T) {
	dir := t.TempDir()
	trace := filepath.Join(dir, "moon.jsonl")
	lines := strings.Repeat(`{"timestamp": 1000, "input_length": 1000, "output_length": 20, "hash_ids": [1, 2]}`+"\n", 30)
	if err := os.WriteFile(trace, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	f := func(want string, args ...string) {
		t.Helper()
		code, stdout, stderr := benchSim(t, append(args, short...)...)
		if code != ExitOK || !strings.Contains(stdout, want) {
			t.Errorf("%v: exit %d, want %q in:\n%s%s", args, code, want, stdout, stderr)
		}
	}
	f("3 x llama-3.1-70b-8xh100", "--workload", "chat")
	f("agents at 30", "--workload", "agents")
	f("2 x qwen3-32b-2xh100, 1 x llama-3.1-8b-1xh100", "--engine", "qwen3-32b-2xh100=2,llama-3.1-8b-1xh100=1")
	f("moon x2", "--trace", trace, "--rate", "2", "--warm-up", "0s")
	f("4 x llama-3.1-70b-8xh100", "--events", "8s:restart:1:1s,9s:kv:all:50000,10s:add,15s:remove:0")
	f("cost", "--replicas", "3", "--share-delay", "100ms")
	f("saturation: the highest rate", "--rate", "sweep", "--slo-ttft", "50ms", "--workload", "prefix-repetition:rate=20")
	page := filepath.Join(dir, "report.html")
	f("cost", "--html", page)
	if text, err := os.ReadFile(page); err != nil || !bytes.Contains(text, []byte("<svg")) {
		t.Errorf("page: %v, %d bytes", err, len(text))
	}
	code, stdout, _ := benchSim(t, "--workload", "help")
	if code != ExitOK || !strings.Contains(stdout, "prefix-repetition\n") || !strings.Contains(stdout, "zipf=1") {
		t.Errorf("help: exit %d:\n%s", code, stdout)
	}
}

func TestBenchSimSuite(t *testing.T) {
	code, stdout, stderr := benchSim(t, "--suite", "standard", "--length", "0.02", "--traces", t.TempDir(), "--policies", "cost,random")
	if code != ExitOK || stderr != "" {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	for _, want := range []string{
		"== aws-8k-prefix", "== overload", "Skipped mooncake-conversation: needs mooncake_conversation.jsonl.gz", "geometric means",
		"-71 to -77 %", "all seeds (2)",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the report lacks %q", want)
		}
	}
}

func TestBenchSimRefuses(t *testing.T) {
	f := func(want string, args ...string) {
		t.Helper()
		code, _, stderr := benchSim(t, args...)
		if code == ExitOK || !strings.Contains(stderr, want) {
			t.Errorf("%v: exit %d: %s; want %q", args, code, stderr, want)
		}
	}
	f("is none of cost", "--policies", "best")
	f("--suite", "--suite", "all")
	f("--length", "--length", "0")
	f("--instances", "--instances", "0")
	f("--seeds", "--seeds", "0")
	f("--replicas", "--replicas", "65")
	f("--duration", "--duration", "0s")
	f("--rate", "--rate", "fast")
	f("--rate", "--rate", "0")
	f("--workload", "--workload", "chess")
	f("--engine", "--engine", "abacus")
	f("--engine", "--engine", "qwen3-32b-2xh100=none")
	f("--events", "--events", "5s:burn:1")
	f("instance 9 of 7", "--events", "5s:restart:9")
	f("--slo-ttft", "--slo-ttft", "0s")
	f("no cell", "--suite", "standard", "--only", "nothing")
}
