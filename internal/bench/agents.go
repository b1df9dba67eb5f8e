package bench

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"
)

// Agents is a closed loop of working agents. An agent's context begins with
// the system text and tools of its kind and its own task; every step sends all
// of it, the answer calls a tool, the tool takes its time, and its output joins
// the context. A step may fork: Branches subagents go on from a copy of the
// context at the same time, each with an instruction and steps of its own, and
// the parent waits for all of them and reads their last answers.
//
// Users agents work at any time; one that is through is replaced after a pause.
type Agents struct {
	Tasks        int // agents in all, subagents apart
	Users        int // at work at any time
	Kinds        int // number of different system texts
	SystemTokens int // system text and tool definitions
	Task         Length
	Steps        Length
	Tool         Length // tokens of a tool's output
	Output       Length
	Pause        time.Duration // mean of a tool's time, exponential
	// Fork is the chance that a step forks, into Branches subagents of
	// BranchSteps steps.
	Fork        float64
	Branches    int
	BranchSteps Length
	// MaxContext ends an agent's work when its context has grown so long. Zero
	// means never.
	MaxContext int
}

// Name implements [Workload].
func (w Agents) Name() string {
	return fmt.Sprintf("agents %d tasks, %d users, forks %g", w.Tasks, w.Users, w.Fork)
}

// Source implements [Workload].
func (w Agents) Source(seed uint64) Source {
	s := &agentsSource{Agents: w, seed: seed, open: map[uint64]*agent{}}
	pauses := stream(seed, drawArrivals)
	for range min(w.Users, w.Tasks) {
		s.start(seconds(pauses.Float64() * 10 * w.Pause.Seconds()))
	}
	return s
}

// agent is a task at work, or one of its branches.
type agent struct {
	number  uint64        // unique among agents and branches
	at      time.Duration // arrival of the step that waits to be taken
	said    []Segment
	tokens  int
	step    int
	steps   int
	texts   uint64 // segments it has made
	draws   *rand.Rand
	parent  *agent
	waits   int       // branches that are not through
	results []Segment // last answers of branches, by branch
	branch  int
}

type agentsSource struct {
	Agents
	seed    uint64
	started int
	waiting agentHeap
	open    map[uint64]*agent // taken, not yet answered
}

func (s *agentsSource) start(at time.Duration) {
	if s.started == s.Tasks {
		return
	}
	number := uint64(s.started)
	s.started++
	a := &agent{number: number << 32, at: at, draws: stream(s.seed, mix(drawLengths, number))}
	a.steps = max(s.Steps.draw(a.draws), 1)
	if s.SystemTokens > 0 {
		a.say(Segment{segmentID(s.seed, systemText, number%uint64(max(s.Kinds, 1))), s.SystemTokens})
	}
	a.say(s.text(a, s.Task))
	heap.Push(&s.waiting, a)
}

func (a *agent) say(t Segment) {
	a.said = append(a.said, t)
	a.tokens += t.Tokens
}

// text makes a segment that nobody else has.
func (s *agentsSource) text(a *agent, l Length) Segment {
	a.texts++
	return Segment{segmentID(s.seed, questionText, mix(a.number+1, a.texts)), max(l.draw(a.draws), 1)}
}

func (s *agentsSource) Next() (time.Duration, bool) {
	if len(s.waiting) == 0 {
		return 0, false
	}
	return s.waiting[0].at, true
}

func (s *agentsSource) Take(r *Request) {
	a := heap.Pop(&s.waiting).(*agent)
	answer := s.text(a, s.Output)
	answer.ID = mix(answer.ID, answerText)
	*r = Request{At: a.at, Prompt: append(r.Prompt[:0], a.said...), Answer: answer, Session: a.number>>32 + 1, Turn: a.step}
	if a.parent != nil {
		r.Session = mix(a.number, a.number>>32+1) // a branch is a session of its own
	}
	s.open[r.Session] = a
}

func (s *agentsSource) Ended(r *Request, now time.Duration) {
	a, ok := s.open[r.Session]
	if !ok {
		return
	}
	delete(s.open, r.Session)
	a.say(r.Answer)
	a.step++
	if a.step >= a.steps || s.MaxContext > 0 && a.tokens >= s.MaxContext {
		s.through(a, r.Answer, now)
		return
	}
	if a.parent == nil && s.Branches > 0 && a.draws.Float64() < s.Fork {
		s.fork(a, now)
		return
	}
	a.say(s.text(a, s.Tool))
	s.later(a, now)
}

// later lets the agent's next step come when a tool has taken its time.
func (s *agentsSource) later(a *agent, now time.Duration) {
	a.at = now + seconds(a.draws.ExpFloat64()*s.Pause.Seconds())
	heap.Push(&s.waiting, a)
}

// fork starts the branches of an agent at once, each from a copy of its context.
func (s *agentsSource) fork(a *agent, now time.Duration) {
	a.waits, a.results = s.Branches, make([]Segment, s.Branches)
	for i := range s.Branches {
		number := a.number | uint64(a.step)<<8 | uint64(i+1)
		b := &agent{number: number, at: now, tokens: a.tokens, parent: a, branch: i, draws: stream(s.seed, mix(drawLengths, number))}
		b.said = append(make([]Segment, 0, len(a.said)+8), a.said...)
		b.steps = max(s.BranchSteps.draw(b.draws), 1)
		b.say(s.text(b, s.Tool))
		heap.Push(&s.waiting, b)
	}
}

// through ends an agent with its last answer.
func (s *agentsSource) through(a *agent, answer Segment, now time.Duration) {
	p := a.parent
	if p == nil {
		s.start(now + seconds(a.draws.ExpFloat64()*s.Pause.Seconds()))
		return
	}
	p.results[a.branch] = answer
	p.waits--
	if p.waits > 0 {
		return
	}
	for _, r := range p.results { // in the order of the branches, whoever came first
		p.say(r)
	}
	s.later(p, now)
}

// agentHeap orders agents by their next step; equal times by number, so that a
// run repeats exactly.
type agentHeap []*agent

func (h agentHeap) Len() int { return len(h) }
func (h agentHeap) Less(i, j int) bool {
	if h[i].at != h[j].at {
		return h[i].at < h[j].at
	}
	return h[i].number < h[j].number
}
func (h agentHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *agentHeap) Push(x any)   { *h = append(*h, x.(*agent)) }
func (h *agentHeap) Pop() any {
	old := *h
	a := old[len(old)-1]
	*h = old[:len(old)-1]
	return a
}
