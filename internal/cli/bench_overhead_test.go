package cli

import (
	"encoding/json"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/bench"
)

func TestBenchOverhead(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	binary := filepath.Join(t.TempDir(), "warmroute")
	if text, err := exec.Command("go", "build", "-o", binary, "github.com/warmroute/warmroute/cmd/warmroute").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, text)
	}
	out, log := new(buffer), new(buffer)
	c := &BenchOverheadCmd{Rate: 50, Duration: 400 * time.Millisecond, Bodies: []int{2000}, Concurrent: 2, JSON: true, binary: binary}
	if err := c.Run(&Env{Ctx: t.Context(), Stdout: out, Stderr: log}); err != nil {
		t.Fatal(err, log)
	}
	var report bench.OverheadReport
	if err := json.Unmarshal([]byte(out.String()), &report); err != nil {
		t.Fatalf("standard output is not JSON alone: %v\n%s", err, out)
	}
	if len(report.Cells) != 2 {
		t.Fatalf("cells %+v; want two", report.Cells)
	}
	for _, x := range report.Cells {
		if x.Failed > 0 || x.Pairs != 20 || x.Through.P50 <= 0 {
			t.Errorf("cell %+v", x)
		}
	}
	table := new(buffer)
	c.print(table, &report)
	mustContain(t, "table", table.String(), "ADDED99", "2 KB", "stream", "whole")
}

func TestBenchOverheadRefusesBadFlags(t *testing.T) {
	f := func(want string, edit func(*BenchOverheadCmd)) {
		t.Helper()
		c := &BenchOverheadCmd{Rate: 50, Duration: time.Second, Bodies: []int{2000}, Concurrent: 2}
		edit(c)
		if err := c.Run(&Env{Ctx: t.Context(), Stdout: io.Discard, Stderr: io.Discard}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v; want one about %s", err, want)
		}
	}
	f("--rate", func(c *BenchOverheadCmd) { c.Rate = 0 })
	f("--duration", func(c *BenchOverheadCmd) { c.Duration = 0 })
	f("--concurrent", func(c *BenchOverheadCmd) { c.Concurrent = 0 })
	f("--bodies", func(c *BenchOverheadCmd) { c.Bodies = nil })
	f("--bodies", func(c *BenchOverheadCmd) { c.Bodies = []int{3} })
}
