package cli

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/bench"
	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/internal/sim"
)

// liveStage is a gateway in front of simulated engines, as the demo has it.
func liveStage(t *testing.T, instances int, speed float64) *demoStage {
	t.Helper()
	d, err := (&DemoCmd{
		Policies: []string{route.Cost}, Instances: instances, Requests: 1, Speed: speed, Seed: 1, Once: true,
	}).prepare(&Env{Ctx: t.Context(), Stdout: new(buffer), Stderr: new(buffer)})
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.openStage(route.Cost)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// shortLive is a benchmark of a few seconds.
func shortLive(url string) *BenchLiveCmd {
	return &BenchLiveCmd{
		URL: []string{"gateway=" + url}, Workload: "rag:prefixes=12,tokens=2000,zipf=0.8,output=20", Duration: 24 * time.Second,
		Rate: 4, Arrivals: "poisson", Burstiness: 1, Block: 512, Seed: 3, Cold: true, Timeout: demoStartTimeout, Speed: 4, Goal: 0.99, salt: 5,
	}
}

// Over HTTP a workload must come out as in virtual time. The hit rate is
// asserted; times are logged, because a busy machine stretches them. The guide
// of bench live has the command that compares them.
func TestBenchLiveLikeSim(t *testing.T) {
	const instances = 3
	s := liveStage(t, instances, 4)
	out, log := new(buffer), new(buffer)
	c := shortLive(s.url())
	c.JSON, c.HTML = true, filepath.Join(t.TempDir(), "live.html")
	if err := c.Run(&Env{Ctx: t.Context(), Stdout: out, Stderr: log}); err != nil {
		t.Fatal(err, log)
	}
	var report bench.LiveReport
	if err := json.Unmarshal([]byte(out.String()), &report); err != nil {
		t.Fatalf("standard output is not JSON alone: %v\n%s", err, out)
	}
	live := report.Cells[0].Targets[0]
	if live.Requests != 96 || live.SuccessRate != 1 || live.Name != "gateway" || len(live.Instances) != instances {
		t.Fatalf("%+v", live)
	}

	engines, err := bench.Fleet(demoEngine, instances)
	if err != nil {
		t.Fatal(err)
	}
	w, err := c.workload()
	if err != nil {
		t.Fatal(err)
	}
	virtual, err := bench.Run(bench.Settings{
		Policy: route.Cost, Route: route.Default(), Workload: w, Seed: c.Seed, Profiles: engines, KVTokens: demoKVTokens,
		Engine: sim.Options{KVTokens: demoKVTokens},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("TTFT P50 %.1f ms over HTTP, %.1f in virtual time; hit rate %.4f and %.4f, ceilings %.4f and %.4f",
		live.TTFT.P50, virtual.TTFT.P50, *live.HitRate.Actual, virtual.HitRate.Actual, live.HitRate.Ceiling, virtual.HitRate.Ceiling)
	if d := *live.HitRate.Actual - virtual.HitRate.Actual; math.Abs(d) > 0.01 {
		t.Errorf("hit rate %.4f over HTTP, %.4f in virtual time", *live.HitRate.Actual, virtual.HitRate.Actual)
	}
	if live.HitRate.Predicted == nil || math.Abs(*live.HitRate.Predicted-*live.HitRate.Actual) > 0.1 {
		t.Errorf("predicted %v", live.HitRate.Predicted)
	}
	page, err := os.ReadFile(c.HTML)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(page), "<svg"); n < 3 {
		t.Errorf("the page has %d charts; want 3 or more", n)
	}
}

func TestBenchLiveVerdict(t *testing.T) {
	s := liveStage(t, 2, 50)
	f := func(want string, change func(c *BenchLiveCmd)) {
		t.Helper()
		log := new(buffer)
		c := shortLive(s.url())
		c.Duration, c.Rate, c.Speed = 400*time.Millisecond, 30, 50
		change(c)
		err := c.Run(&Env{Ctx: t.Context(), Stdout: new(buffer), Stderr: log})
		if failed := errors.Is(err, errReported); failed != (want != "") || err != nil && !failed || !strings.Contains(log.String(), want) {
			t.Errorf("error %v, log %s; want %q", err, log, want)
		}
	}
	f("", func(c *BenchLiveCmd) { c.Fail = true })
	f("", func(c *BenchLiveCmd) { c.SLOTTFT = 1 })
	f("kept the objectives in 0.0 %", func(c *BenchLiveCmd) { c.SLOTTFT, c.Fail = 1, true })
	f("", func(c *BenchLiveCmd) { c.Workload, c.Fail = "chat:turns=3,think=1", true })
	f("", func(c *BenchLiveCmd) { c.Concurrency, c.Fail = 3, true })
	f("", func(c *BenchLiveCmd) { c.Arrivals, c.Burstiness, c.Fail = "gamma", 0.5, true })
	f("answered nothing", func(c *BenchLiveCmd) { c.Model = "no such model" })
}

func TestBenchLiveFlags(t *testing.T) {
	f := func(want string, args ...string) {
		t.Helper()
		errs := new(buffer)
		code := Main(t.Context(), append([]string{"bench", "live"}, args...), new(buffer), errs)
		if code == ExitOK || !strings.Contains(errs.String(), want) {
			t.Errorf("%q: exit %d, %s; want %q", args, code, errs, want)
		}
	}
	f("--url")
	f("want [NAME=]http", "--url", "localhost:8080")
	f("two endpoints", "--url", "a=http://x", "--url", "a=http://y")
	f("--rate", "--url", "http://x", "--rate", "-1")
	f("want one of", "--url", "http://x", "--model", "m", "--workload", "nothing")
	f("is not set", "--url", "http://x", "--api-key-env", "WARMROUTE_NO_SUCH_VARIABLE")
	f("--goal", "--url", "http://x", "--goal", "2")
	f("follow answers", "--url", "http://x", "--model", "m", "--workload", "chat", "--arrivals", "gamma")
	f("for its models", "--url", "http://127.0.0.1:1")
}

func TestBenchLiveProgress(t *testing.T) {
	p := &liveProgress{total: 40, speed: 2}
	r := &bench.Reply{}
	r.Sent, r.First = 0, 100e6
	for range 10 {
		p.answered(0, r)
	}
	p.answered(0, &bench.Reply{Answer: bench.Answer{Err: errReported}})
	const want = "[=====               ] 11 of 40   1 failed   TTFT P50 200 ms   29s left"
	if got := p.line(11e9); got != want {
		t.Errorf("progress:\n%s\nwant\n%s", got, want)
	}
}
