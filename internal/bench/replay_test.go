package bench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/prefix"
)

// golden compares with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// describe is a log in a form that a golden file can hold.
func (l *RequestLog) describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "requests %d, bad %d, block %d tokens, timed %v, length %s, estimated %d\nmodels %v\nformats %v\n",
		l.Requests, l.Bad, l.BlockTokens, l.Timed, l.Length(), l.Estimated, l.Models, l.Formats)
	for _, f := range l.Faults {
		fmt.Fprintln(&b, f)
	}
	for _, r := range l.records {
		fmt.Fprintf(&b, "at %d: %d in, %d out, session %q, %d blocks", r.Timestamp, r.InputLength, r.OutputLength, r.SessionID, len(r.HashIDs))
		if len(r.HashIDs) > 0 {
			fmt.Fprintf(&b, ", first %d", r.HashIDs[0])
		}
		fmt.Fprintln(&b)
	}
	return b.String()
}

func TestReadLog(t *testing.T) {
	f := func(name string, o LogOptions) {
		t.Helper()
		file, err := os.Open(filepath.Join("testdata", "replay", name+".jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		log, err := ReadLog(file, o)
		if err != nil {
			t.Fatal(name, err)
		}
		golden(t, filepath.Join("replay", name+".txt"), log.describe())
	}
	f("mooncake", LogOptions{})
	f("warmroute", LogOptions{})
	f("batch", LogOptions{Output: 33})
	f("litellm", LogOptions{})
	f("faults", LogOptions{Model: "m"})
}

// The same messages share their beginning whatever log they come from.
func TestReadLogSharesPrefixes(t *testing.T) {
	file, err := os.Open("testdata/replay/litellm.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	log, err := ReadLog(file, LogOptions{})
	if err != nil {
		t.Fatal(err)
	}
	chain := func(i int) (c prefix.Chain) {
		for _, id := range log.records[i].HashIDs {
			c = append(c, prefix.Block(id))
		}
		return c
	}
	if n := chain(0).Common(chain(1)); n < 3 {
		t.Errorf("two prompts with one system text share %d blocks", n)
	}
	if n := chain(0).Common(chain(2)); n != 0 {
		t.Errorf("prompts for two models share %d blocks", n)
	}
}

func TestReadLogNothing(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		if _, err := ReadLog(strings.NewReader(text), LogOptions{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: error %v; want %q", text, err, want)
		}
	}
	f("", "no line can be used")
	f("\n\nx\n", "line 3: is no JSON object")
	f(`{"hash_ids":[1],"input_length":0}`, "the prompt is empty")
	f(`{"hash_ids":[1],"input_length":200000000}`, "larger than any prompt")
	f(`{"prompt":"`+strings.Repeat("x", prefix.MaxRecordBytes)+`"}`, "too long")
}

func TestLogTime(t *testing.T) {
	f := func(member string, want int64) {
		t.Helper()
		log, err := ReadLog(strings.NewReader(`{"prompt":"hello",`+member+`}`), LogOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := log.records[0].Timestamp; got != want || log.Timed != (want > 0) {
			t.Errorf("%s: %d, timed %v; want %d", member, got, log.Timed, want)
		}
	}
	f(`"timestamp":1764600000`, 1764600000000)
	f(`"created":1764600000.25`, 1764600000250)
	f(`"timestamp":1764600000250`, 1764600000250)
	f(`"ts":1764600000250000`, 1764600000250)
	f(`"ts":1764600000250000000`, 1764600000250)
	f(`"startTime":"2025-12-01T14:40:00.250Z"`, 1764600000250)
	f(`"start_time":"2025-12-01 14:40:00.25"`, 1764600000250)
	f(`"time":"yesterday"`, 0)
	f(`"model":"m"`, 0)
}

// The numbers of a replay are those of the simulation, and savings follow from
// them.
func TestReplay(t *testing.T) {
	var text bytes.Buffer
	draws := stream(1, drawContent)
	for i := range 400 {
		document := draws.Int64N(20) * 100
		r := prefix.Record{Timestamp: int64(i) * 400, InputLength: 4196, OutputLength: 20}
		for b := range int64(8) {
			r.HashIDs = append(r.HashIDs, document+b)
		}
		r.HashIDs = append(r.HashIDs, int64(1_000_000+i))
		if err := prefix.WriteRecord(&text, r); err != nil {
			t.Fatal(err)
		}
	}
	log, err := ReadLog(&text, LogOptions{})
	if err != nil {
		t.Fatal(err)
	}
	log.Name = "synthetic"
	report, err := Replay{
		Log: log, Workload: log.Workload(1, 1), Engine: "llama-3.1-70b-8xh100", Instances: []int{2, 4}, KVTokens: []int{50_000},
		Policies: []string{route.RoundRobin, route.Cost}, Baseline: route.RoundRobin, Price: 10, WarmUp: 20 * time.Second, Seed: 1,
	}.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Cells) != 2 || len(report.Savings) != 2 {
		t.Fatalf("%d cells, %d savings; want 2, 2", len(report.Cells), len(report.Savings))
	}
	for i, s := range report.Savings {
		c := report.Cells[i]
		if s.Cell != c.Name || s.Policy != route.Cost {
			t.Fatalf("saving %d: %+v", i, s)
		}
		base, cost := c.Policies[0], c.Policies[1]
		// 350 requests of 4196 tokens are measured.
		want := (cost.HitRate.Actual - base.HitRate.Actual) * 350 * 4196
		if want <= 0 || s.Tokens < 0.97*want || s.Tokens > 1.03*want {
			t.Errorf("%s: saved %.0f tokens; want about %.0f", c.Name, s.Tokens, want)
		}
		if ratio := s.GPUHours / s.InstanceHours; ratio < 7.9 || ratio > 8.1 {
			t.Errorf("%s: %g GPU hours for %g instance hours; want 8 GPUs", c.Name, s.GPUHours, s.InstanceHours)
		}
		if s.MonthCost <= 0 || s.MonthGPUHours <= s.GPUHours {
			t.Errorf("%s: %+v", c.Name, s)
		}
	}
	if big := report.Cells[1].Policies[1].HitRate; big.Actual < 0.97*big.Ceiling {
		t.Errorf("4 instances hold all documents, and the hit rate is %v", big)
	}
	var page bytes.Buffer
	if err := report.Page().Write(&page); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"What it would save", "2 x 50k tokens", "<svg", "Hit rate against the ceiling"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

func TestGPUs(t *testing.T) {
	f := func(engine string, want int) {
		t.Helper()
		if got := gpus(engine); got != want {
			t.Errorf("%s: %d GPUs; want %d", engine, got, want)
		}
	}
	f("llama-3.1-70b-8xh100", 8)
	f("llama-3.1-8b-1xh100", 1)
	f("something", 1)
}

// FuzzReadLog: whatever a log holds, each line is a request that a simulation
// can play, or a fault; none vanishes.
func FuzzReadLog(f *testing.F) {
	f.Add([]byte(`{"timestamp":1,"input_length":600,"output_length":2,"hash_ids":[1,2],"session_id":"s"}`))
	f.Add([]byte(`{"custom_id":"a","url":"/v1/chat/completions","body":{"model":"m","messages":[{"role":"user","content":"hi"}]}}`))
	f.Add([]byte(`{"timestamp":1,"input_length":600,"hash_ids":[1,2],"block_bytes":256,"input_bytes":2000,"model":"m"}`))
	f.Add([]byte("{\"messages\":\"[{}]\",\"startTime\":\"2025-12-01T14:40:00Z\"}\nnull\n[1]\n{\"prompt\":[1,2,3]}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		log, err := ReadLog(bytes.NewReader(text), LogOptions{})
		lines := 0
		for line := range bytes.Lines(text) {
			if len(bytes.TrimSpace(line)) > 0 {
				lines++
			}
		}
		if log == nil {
			t.Fatal(err)
		}
		if log.Requests+log.Bad != lines {
			t.Errorf("%d requests and %d faults of %d lines", log.Requests, log.Bad, lines)
		}
		if err != nil {
			return
		}
		if log.BlockTokens < 1 || log.Length() < 0 {
			t.Errorf("block of %d tokens, length %s", log.BlockTokens, log.Length())
		}
		source := log.Workload(1, 1).Source(1)
		for n, last := 0, time.Duration(0); ; n++ {
			at, ok := source.Next()
			if !ok {
				break
			}
			var r Request
			source.Take(&r)
			if at < last || r.PromptTokens() <= 0 || r.PromptTokens() > maxPromptTokens || r.Answer.Tokens < 1 {
				t.Fatalf("request %d at %v after %v: %d tokens, %d out", n, at, last, r.PromptTokens(), r.Answer.Tokens)
			}
			last = at
		}
	})
}
