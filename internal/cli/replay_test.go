package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmroute/warmroute/internal/bench"
)

func TestReplayCommand(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good.jsonl")
	trace := `{"timestamp": 0, "input_length": 1500, "output_length": 5, "hash_ids": [1, 2, 3]}
{"timestamp": 4000, "input_length": 1500, "output_length": 5, "hash_ids": [1, 2, 4]}
`
	if err := os.WriteFile(good, []byte(trace), 0o600); err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(dir, "bad.jsonl")
	if err := os.WriteFile(bad, []byte(trace+"oops\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := func(code int, wantOut, wantErr string, args ...string) {
		t.Helper()
		out, errs := new(buffer), new(buffer)
		if got := Main(t.Context(), append([]string{"replay"}, args...), out, errs); got != code {
			t.Errorf("%q: exit %d; want %d: %s", args, got, code, errs)
		}
		if !strings.Contains(out.String(), wantOut) || !strings.Contains(errs.String(), wantErr) {
			t.Errorf("%q:\n%s\n%s\nwant %q and %q", args, out, errs, wantOut, wantErr)
		}
	}
	page := filepath.Join(dir, "page.html")
	f(ExitOK, "1 x 50k tokens each", "", good, "--instances", "1", "--kv-tokens", "50k", "--html", page)
	if text, err := os.ReadFile(page); err != nil || !strings.Contains(string(text), "What it would save") {
		t.Errorf("page: %v", err)
	}
	f(ExitFault, "2 requests in 4s", "line 3: is no JSON object", bad, "--instances", "2")
	f(ExitFault, "", "--kv-tokens", good, "--kv-tokens", "lots")
	f(ExitFault, "", "--instances", good, "--instances", "0")
	f(ExitFault, "", "is none of", good, "--policies", "magic")
	f(ExitFault, "", "--engine", good, "--engine", "magic")
	f(ExitFault, "", "no line can be used", os.DevNull)
	f(ExitFault, "", "open log", filepath.Join(dir, "none"))

	out := new(buffer)
	if code := Main(t.Context(), []string{"replay", good, "--json", "--instances", "1,2"}, out, new(buffer)); code != ExitOK {
		t.Fatalf("exit %d", code)
	}
	var report bench.ReplayReport
	if err := json.Unmarshal([]byte(out.String()), &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Cells) != 2 || len(report.Savings) != 6 || report.Log.Requests != 2 || report.Baseline != "round_robin" {
		t.Errorf("report %+v", report)
	}
	// On one instance every policy is the same, and finds what is there.
	for _, p := range report.Cells[0].Policies {
		if p.HitRate.Actual != p.HitRate.Ceiling || p.HitRate.Actual < 0.3 {
			t.Errorf("%s: %+v", p.Name, p.HitRate)
		}
	}
}

func TestParseTokens(t *testing.T) {
	f := func(text string, want int) {
		t.Helper()
		got, err := parseTokens(text)
		if (err != nil) != (want == 0) || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	f("500k", 500_000)
	f("1.5M", 1_500_000)
	f("64", 64)
	f("", 0)
	f("-1k", 0)
	f("9999M", 0)
	f("k", 0)
	f("NaN", 0)
}
