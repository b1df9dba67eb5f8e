package bench

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/warmroute/warmroute/internal/sim"
)

// suiteCell is one row of the standard suite's table.
type suiteCell struct {
	name, about string
	engines     []engines
	kvTokens    int // of each instance; 0 takes the profile's
	assumed     float64
	warmUp      time.Duration
	workload    func(scale) (Workload, error)
	events      func(scale) []Event
	trace       string // file that the workload needs
}

// engines is n instances of one kind.
type engines struct {
	name string
	n    int
}

// Engines of the suite.
const (
	h100x8 = "llama-3.1-70b-8xh100"
	h100x4 = "llama-3.1-70b-4xh100"
	a100x8 = "llama-3.1-70b-8xa100"
	qwen   = "qwen3-32b-2xh100"
	small  = "llama-3.1-8b-1xh100"
)

// Traces of the suite, as published; see docs/benchmark.md for where to get
// them.
const (
	traceConversation = "mooncake_conversation.jsonl.gz"
	traceSynthetic    = "mooncake_synthetic.jsonl.gz"
	traceTauBench     = "text_taubench_airline.jsonl.gz"
)

// scale shortens the suite: 1 is its full length. It also knows where traces
// lie.
type scale struct {
	of     float64
	traces string
}

func (s scale) count(n int) int                    { return max(int(s.of*float64(n)), 20) }
func (s scale) time(d time.Duration) time.Duration { return time.Duration(s.of * float64(d)) }
func (s scale) trace(x float64) func(string) (Workload, error) {
	return func(name string) (Workload, error) {
		t, err := OpenTrace(filepath.Join(s.traces, name), 0, x)
		if err != nil {
			return nil, err
		}
		return t.Head(s.count(t.Len())), nil
	}
}

// rag is what most cells vary: documents of 8,000 tokens, questions of 50 to
// 250, answers of 100 to 300.
func rag(requests int, rate float64, prefixes int, zipf float64) func(scale) (Workload, error) {
	return func(s scale) (Workload, error) {
		return RAG{
			Requests: s.count(requests), Rate: rate, Prefixes: prefixes, PrefixTokens: 8000, Zipf: zipf, SystemTokens: 40,
			Tail: Between(50, 250), Output: Between(100, 300),
		}, nil
	}
}

// groups150 is llm-d's published benchmark.
func groups150(requests int, rate float64) func(scale) (Workload, error) {
	return func(s scale) (Workload, error) {
		return Groups{
			Requests: s.count(requests), Rate: rate, Groups: 150, Prompts: 5, PrefixTokens: 6000, QuestionTokens: Fixed(1200), Output: Fixed(1000),
		}, nil
	}
}

func chat(sessions int, rate float64) Chat {
	return Chat{
		Sessions: sessions, Rate: rate, Groups: 4, SystemTokens: 1500, Turns: Between(3, 12),
		User: Length{Mean: 250, Sigma: 0.9, Min: 5, Max: 6000}, Output: Length{Mean: 250, Sigma: 0.7, Min: 10, Max: 1500},
		Think: 15 * time.Second,
	}
}

func agents(tasks, users int) Agents {
	return Agents{
		Tasks: tasks, Users: users, Kinds: 3, SystemTokens: 6000, Task: Length{Mean: 2500, Sigma: 0.8, Min: 100, Max: 20_000},
		Steps: Between(6, 24), Tool: Length{Mean: 1200, Sigma: 1, Min: 20, Max: 12_000}, Output: Length{Mean: 220, Sigma: 0.6, Min: 20, Max: 1500},
		Pause: 4 * time.Second, Fork: 0.12, Branches: 3, BranchSteps: Between(1, 4), MaxContext: 90_000,
	}
}

// standard is the suite: each line a workload, a load and a fleet that some
// published rule is good or bad at.
var standard = []suiteCell{
	{
		name: awsCell, about: "AWS's published shape: 8,000-token prefixes, as many as give random a hit rate of about 25 %",
		engines: []engines{{h100x8, 7}}, warmUp: 200 * time.Second, workload: rag(9000, 14, 660, 0),
	}, {
		name: "rag-zipf1", about: "documents of usual popularity, caches hold them all, near saturation",
		engines: []engines{{h100x8, 7}}, kvTokens: 250_000, warmUp: 40 * time.Second, workload: rag(7000, 28, 150, 1),
	}, {
		name: "rag-hot-zipf2", about: "one document has most of the requests",
		engines: []engines{{h100x8, 8}}, kvTokens: 400_000, warmUp: 30 * time.Second, workload: rag(6000, 32, 100, 2),
	}, {
		name: "rag-thrash", about: "three times more documents than the caches hold",
		engines: []engines{{h100x8, 7}}, kvTokens: 400_000, warmUp: 100 * time.Second, workload: rag(6000, 16, 1000, 0.8),
	}, {
		name: "llmd-groups-15", about: "llm-d's 150 groups x 5 prompts, 6,000 + 1,200 -> 1,000, at a low rate",
		engines: []engines{{qwen, 8}}, warmUp: 60 * time.Second, workload: groups150(3000, 15),
	}, {
		name: "llmd-groups-18", about: "the same where the first policies saturate: running answers fill the caches",
		engines: []engines{{qwen, 8}}, warmUp: 50 * time.Second, workload: groups150(3600, 18),
	}, {
		name: "prefix-repetition", about: "vLLM's prefix_repetition: 64 prefixes of 4,000 tokens, suffixes always new",
		engines: []engines{{small, 8}}, kvTokens: 100_000, warmUp: 20 * time.Second,
		workload: func(s scale) (Workload, error) {
			return Groups{
				Requests: s.count(7000), Rate: 60, Groups: 64, Prompts: 10, PrefixTokens: 4000, QuestionTokens: Fixed(512), Output: Fixed(128), Fresh: true,
			}, nil
		},
	}, {
		name: "gsp", about: "SGLang's generated-shared-prefix: one pass of 64 x 16, 2,048 + 128 -> 256, cold caches",
		engines: []engines{{small, 8}},
		workload: func(s scale) (Workload, error) {
			return Groups{
				Requests: s.count(1024), Rate: 100, Groups: 64, Prompts: 16, PrefixTokens: 2048, QuestionTokens: Fixed(128), Output: Fixed(256),
			}, nil
		},
	}, {
		name: "mooncake-conversation", about: "the published trace at twice its speed", trace: traceConversation,
		engines: []engines{{h100x4, 8}}, warmUp: 200 * time.Second,
		workload: func(s scale) (Workload, error) { return s.trace(2)(traceConversation) },
	}, {
		name: "mooncake-synthetic", about: "the published trace at 1.4 times its speed", trace: traceSynthetic,
		engines: []engines{{h100x8, 8}}, kvTokens: 1_000_000, warmUp: 60 * time.Second,
		workload: func(s scale) (Workload, error) { return s.trace(1.4)(traceSynthetic) },
	}, {
		name: "chat", about: "conversations with pauses for thought; answers are fed back",
		engines: []engines{{small, 8}}, kvTokens: 300_000, warmUp: 60 * time.Second,
		workload: func(s scale) (Workload, error) { return chat(s.count(1400), 9), nil },
	}, {
		name: "agents", about: "agents that call tools, grow their context and fork",
		engines: []engines{{h100x4, 8}}, warmUp: 60 * time.Second,
		workload: func(s scale) (Workload, error) { return agents(s.count(300), 90), nil },
	}, {
		name: "agents-crowded", about: "more agents than the caches can hold contexts of",
		engines: []engines{{h100x4, 6}}, kvTokens: 250_000, warmUp: 60 * time.Second,
		workload: func(s scale) (Workload, error) { return agents(s.count(300), 120), nil },
	}, {
		name: "tau-bench", about: "recorded airline conversations, of one system text", trace: traceTauBench,
		engines: []engines{{small, 4}}, kvTokens: 150_000, warmUp: 30 * time.Second,
		workload: func(s scale) (Workload, error) {
			c, err := OpenConversations(filepath.Join(s.traces, traceTauBench), 4, 6*time.Second)
			if err != nil {
				return nil, err
			}
			c.Repeat = max(int(2*s.of), 1)
			return c, nil
		},
	}, {
		name: "mixed", about: "documents, conversations and agents on one fleet",
		engines: []engines{{h100x8, 8}}, kvTokens: 400_000, warmUp: 60 * time.Second,
		workload: func(s scale) (Workload, error) {
			documents, err := rag(3000, 10, 150, 0.8)(s)
			return Mixed{documents, chat(s.count(350), 1.5), agents(s.count(100), 30)}, err
		},
	}, {
		name: "heterogeneous", about: "three kinds of engine, whose prefill differs by a factor of three",
		engines: []engines{{h100x8, 3}, {h100x4, 2}, {a100x8, 2}}, kvTokens: 300_000, warmUp: 60 * time.Second, workload: rag(5000, 14, 180, 0.8),
	}, {
		name: "capacity-quarter", about: "the gateway is told a quarter of the true cache size",
		engines: []engines{{h100x8, 7}}, kvTokens: 250_000, assumed: 0.25, warmUp: 60 * time.Second, workload: rag(6000, 20, 190, 0.8),
	}, {
		name: "capacity-x4", about: "the gateway is told four times the true cache size",
		engines: []engines{{h100x8, 7}}, kvTokens: 250_000, assumed: 4, warmUp: 60 * time.Second, workload: rag(6000, 20, 190, 0.8),
	}, {
		name: "restarts", about: "engines restart with empty caches, and nobody tells the gateway",
		engines: []engines{{h100x8, 7}}, kvTokens: 300_000, warmUp: 60 * time.Second, workload: rag(6000, 20, 190, 0.8), events: restarts,
	}, {
		name: "overload", about: "a third more than the fleet can do, for four minutes",
		engines: []engines{{h100x8, 6}}, kvTokens: 200_000, warmUp: 20 * time.Second, workload: rag(6000, 25, 600, 0.6),
	},
}

// restarts lets four engines die in turn, each away for ten seconds.
func restarts(s scale) []Event {
	var out []Event
	for i := range 4 {
		out = append(out, Event{At: s.time(time.Duration(90+50*i) * time.Second), Instance: 2 * i % 7, Restart: true, Down: 10 * time.Second})
	}
	return out
}

// suiteBlockTokens is the engines' block size in the suite. Against vLLM's 16
// it changes hit rates by less than a block per prompt, and runs are three
// times as fast.
const suiteBlockTokens = 64

// Standard is the standard suite at a length, 1 being the full one, with the
// traces that lie in a directory. Cells whose trace is not there are left out;
// skipped says so.
func Standard(length float64, traces string) (cells []Cell, skipped []string, err error) {
	for i := range standard {
		c, err := standard[i].cell(scale{length, traces})
		if err != nil && standard[i].trace != "" {
			skipped = append(skipped, fmt.Sprintf("%s: needs %s; %v", standard[i].name, standard[i].trace, err))
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("suite cell %s: %w", standard[i].name, err)
		}
		cells = append(cells, c)
	}
	return cells, skipped, nil
}

func (c *suiteCell) cell(s scale) (Cell, error) {
	w, err := c.workload(s)
	if err != nil {
		return Cell{}, err
	}
	out := Cell{Name: c.name, About: c.about, AllKnowledge: true}
	for _, e := range c.engines {
		fleet, err := Fleet(e.name, e.n)
		if err != nil {
			return Cell{}, err
		}
		out.Profiles = slices.Concat(out.Profiles, fleet)
	}
	out.Workload, out.KVTokens, out.WarmUp = w, c.kvTokens, s.time(c.warmUp)
	out.Assumed = c.assumed
	if c.assumed == 0 {
		out.Assumed = 1
	}
	out.Engine = sim.Options{BlockTokens: suiteBlockTokens}
	if c.events != nil {
		out.Events = c.events(s)
	}
	return out, nil
}
