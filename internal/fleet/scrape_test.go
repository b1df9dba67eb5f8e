package fleet

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmroute/warmroute/internal/testkit"
)

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
