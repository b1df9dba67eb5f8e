package cli

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/bench"
	"github.com/warmroute/warmroute/internal/config"
	"github.com/warmroute/warmroute/internal/dialect"
	"github.com/warmroute/warmroute/internal/proxy"
	"github.com/warmroute/warmroute/internal/testkit"
	"github.com/warmroute/warmroute/prefix"
)

// traceRecord is a request with n blocks that begin with a block of its own.
func traceRecord(first, n int) *proxy.Record {
	r := &proxy.Record{
		Kind: dialect.Chat, Model: "m\n\"", Status: 200, PromptTokens: 64*n + 5, OutputTokens: 7, PromptBytes: int64(256*n + 20),
		BlockBytes: 256, Session: 99, Received: time.UnixMilli(1_764_600_000_123),
	}
	for i := range n {
		r.Chain = append(r.Chain, prefix.Block(first*1000+i))
	}
	return r
}

// runTrace writes records into a trace file and waits until it is closed.
func runTrace(t *testing.T, c config.Trace, log *slog.Logger, records ...*proxy.Record) *traceFile {
	t.Helper()
	f := newTraceFile(c, log)
	for _, r := range records {
		f.record(r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.run(ctx)
	return f
}

func readTraceFile(t *testing.T, path string) []prefix.Record {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []prefix.Record
	for r, err := range prefix.ReadRecords(f) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

func TestTraceFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	c := config.Trace{File: path, MaxBytes: 1 << 20, Keep: 1}
	embedding := traceRecord(3, 2)
	embedding.Kind = dialect.Embeddings
	a, b := traceRecord(1, 3), traceRecord(1, 5)
	runTrace(t, c, slog.New(slog.DiscardHandler), a, b, traceRecord(2, 1), embedding)
	records := readTraceFile(t, path)
	if len(records) != 3 {
		t.Fatalf("%d records; want 3, without the embedding", len(records))
	}
	x, y, z := records[0], records[1], records[2]
	if x.Timestamp != 1_764_600_000_123 || x.InputLength != 197 || x.OutputLength != 7 || len(x.HashIDs) != 3 || x.SessionID == "" || x.SessionID != y.SessionID {
		t.Errorf("record %+v", x)
	}
	for i, id := range x.HashIDs {
		if id != y.HashIDs[i] {
			t.Errorf("block %d has two ids in one file", i)
		}
		if id == int64(a.Chain[i]) || id < 0 || id >= 1<<53 {
			t.Errorf("block %d has the id %d", i, id)
		}
	}
	if z.HashIDs[0] == x.HashIDs[0] {
		t.Error("two blocks have one id")
	}
	text, _ := os.ReadFile(path)
	if want := `, "model": "m\n\"", "block_bytes": 256, "input_bytes": 788, "status": 200}`; !strings.Contains(string(text), want) {
		t.Errorf("file:\n%s\nwant %s", text, want)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
	}

	// A new start is a new file under a new key; the old one is kept.
	runTrace(t, c, slog.New(slog.DiscardHandler), traceRecord(1, 3))
	if next := readTraceFile(t, path); next[0].HashIDs[0] == x.HashIDs[0] {
		t.Error("two files have the same ids")
	}
	if old := readTraceFile(t, path+".1"); len(old) != 3 {
		t.Errorf("%d records in the old file; want 3", len(old))
	}
}

func TestTraceFileRotates(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "trace.jsonl")
	var records []*proxy.Record
	for i := range 40 {
		records = append(records, traceRecord(i, 4))
	}
	line := int64(len(new(traceFile).appendLine(nil, &traceLine{chain: records[0].Chain}))) // about
	runTrace(t, config.Trace{File: path, MaxBytes: 10 * line, Keep: 2}, slog.New(slog.DiscardHandler), records...)
	names, err := filepath.Glob(path + "*")
	if err != nil || len(names) != 3 {
		t.Fatalf("files %v, %v; want 3", names, err)
	}
	for _, name := range names {
		if n := len(readTraceFile(t, name)); n < 1 || n > 11 {
			t.Errorf("%s has %d records; want 1 to 11", name, n)
		}
	}
}

// What a gateway writes, replay reads: equal beginnings are found again, and
// nothing of a prompt is in the file.
func TestTraceFileOfGateway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	head := strings.Replace(rigHead, "log: {", "log: {trace: {file: "+path+"}, ", 1)
	synctest.Test(t, func(t *testing.T) {
		n := testkit.NewNetwork()
		n.Serve(t, "a:80", testkit.NewEngine())
		r := &rig{t: t, net: n, log: new(buffer), file: head + onePool, env: map[string]string{"ADMIN_TOKEN": "x", "KEY": "y"}}
		r.client = &http.Client{Transport: &http.Transport{DialContext: n.DialContext}}
		defer r.client.CloseIdleConnections()
		cfg, err := r.load()
		if err != nil {
			t.Fatal(err)
		}
		g, err := newGateway(cfg, r.load, world{
			dial: n.DialContext, listen: func(_ context.Context, address string) (net.Listener, error) { return n.Listen(address), nil },
		}, newSieve(r.log))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- g.run(ctx) }()
		synctest.Wait()
		for _, question := range []string{"first", "second"} {
			body := `{"model":"m","prompt_cache_key":"alice","messages":[{"role":"user","content":"` + strings.Repeat("confidential words ", 200) + question + `"}]}`
			if status, answer := r.do(http.MethodPost, "http://"+dataAddr+"/v1/chat/completions", body); status != http.StatusOK {
				t.Errorf("status %d: %s", status, answer)
			}
			time.Sleep(3 * time.Second)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	mustNotContain(t, "the trace", string(text), "confidential", "first", "alice")
	log, err := bench.ReadLog(strings.NewReader(string(text)), bench.LogOptions{})
	if err != nil || log.Bad > 0 {
		t.Fatal(err, log)
	}
	if log.Requests != 2 || log.Formats["warmroute"] != 2 || log.Models["m"] != 2 || !log.Timed || log.Length() < 3*time.Second {
		t.Errorf("log %+v of %s", log, log.Length())
	}
	records := readTraceFile(t, path)
	shared := prefix.Chain(nil)
	for i, id := range records[0].HashIDs {
		if id == records[1].HashIDs[i] {
			shared = append(shared, prefix.Block(id))
		}
	}
	if len(shared) < 14 || records[0].SessionID == "" || records[0].SessionID != records[1].SessionID {
		t.Errorf("%d of %d blocks are shared; sessions %q, %q", len(shared), len(records[0].HashIDs), records[0].SessionID, records[1].SessionID)
	}
}

// A full queue drops and counts, and a request does not wait.
func TestTraceFileDrops(t *testing.T) {
	log := new(buffer)
	c := config.Trace{File: filepath.Join(t.TempDir(), "t"), MaxBytes: 1 << 20}
	var records []*proxy.Record
	for range traceQueue + 3 {
		records = append(records, traceRecord(1, 1))
	}
	f := runTrace(t, c, slog.New(slog.NewTextHandler(log, nil)), records...)
	if n := len(readTraceFile(t, c.File)); n != traceQueue {
		t.Errorf("%d records; want %d", n, traceQueue)
	}
	if !strings.Contains(log.String(), "requests=3") || f.dropped.Load() != 0 {
		t.Errorf("log %s; want 3 dropped requests", log)
	}
}

// A file that cannot be written is told once, and every line is counted.
func TestTraceFileFault(t *testing.T) {
	log := new(buffer)
	c := config.Trace{File: filepath.Join(t.TempDir(), "no", "such", "directory"), MaxBytes: 1 << 20}
	runTrace(t, c, slog.New(slog.NewTextHandler(log, nil)), traceRecord(1, 1), traceRecord(2, 1))
	if n := strings.Count(log.String(), "cannot write the trace file"); n != 1 || !strings.Contains(log.String(), "requests=2") {
		t.Errorf("log:\n%s\nwant one fault and 2 dropped requests", log)
	}
}

func BenchmarkTraceRecord(b *testing.B) {
	f := newTraceFile(config.Trace{}, slog.New(slog.DiscardHandler))
	r := traceRecord(1, 500) // 32,000 tokens
	b.ReportAllocs()
	for b.Loop() {
		f.record(r)
		<-f.queue
	}
}

func BenchmarkTraceAppend(b *testing.B) {
	f := newTraceFile(config.Trace{}, slog.New(slog.DiscardHandler))
	f.record(traceRecord(1, 500))
	line := <-f.queue
	for b.Loop() {
		f.buf = f.appendLine(f.buf[:0], &line)
	}
}
