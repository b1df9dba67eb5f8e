package route

import (
	"container/heap"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/warmroute/warmroute/prefix"
)

// rig is a fleet in closed form: each instance prefills one request after another at the speed of its Speed, decodes all together,
// and never evicts. Each decision is entered into the ledgers before the next.
type rig struct {
	t      *testing.T
	policy Policy
	now    time.Time
	cs     []Candidate
	nodes  []*node
	events events
	sent   uint64
}

type node struct {
	ledger *Ledger
	free   time.Time      // end of the prefill before
	holds  map[string]int // tokens of each part of a prompt that were placed here
	served int
}

// part is a piece of a prompt; equal keys after equal beginnings are equal text.
type part struct {
	key    string
	tokens int
}

type event struct {
	at time.Time
	do func()
}

type events []event

func (h events) Len() int           { return len(h) }
func (h events) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h events) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *events) Push(x any)        { *h = append(*h, x.(event)) }
func (h *events) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

var epoch = time.Unix(1_800_000_000, 0)

// engine is the speed of all instances in these tests.
func engine(t testing.TB) Speed {
	t.Helper()
	s, ok := Prior("llama-3.1-70b-8xh100")
	if !ok {
		t.Fatal("the table has no llama-3.1-70b-8xh100")
	}
	return s
}

func newRig(t *testing.T, p Policy, n int) *rig {
	f := &rig{t: t, policy: p, now: epoch}
	for range n {
		f.join()
	}
	return f
}

// join adds an instance with an empty cache.
func (f *rig) join() {
	id := len(f.cs)
	name := fmt.Sprintf("instance-%d", id)
	speed := engine(f.t)
	f.nodes = append(f.nodes, &node{ledger: NewLedger(speed), holds: make(map[string]int)})
	f.cs = append(f.cs, Candidate{ID: prefix.InstanceID(id), Name: name, NameHash: Hash(name), Speed: speed})
}

// warm gives an instance a past: it has answered, and its cache holds the parts.
func (f *rig) warm(i int, parts ...part) {
	n := f.nodes[i]
	k := n.ledger.Dispatch(f.now, 1, 1, 1)
	n.ledger.FirstToken(f.now, &k)
	n.ledger.End(f.now, &k)
	n.place(parts)
}

func (n *node) place(parts []part) {
	var path strings.Builder
	for _, p := range parts {
		path.WriteString("/" + p.key)
		n.holds[path.String()] = p.tokens
	}
}

func (n *node) match(parts []part) int {
	path, sum := "", 0
	for _, p := range parts {
		path += "/" + p.key
		if n.holds[path] == 0 {
			break
		}
		sum += n.holds[path]
	}
	return sum
}

// look fills in the candidates for a prompt.
func (f *rig) look(parts []part) {
	for i, n := range f.nodes {
		x := &f.cs[i]
		x.Load, x.Speed = n.ledger.Load(f.now), n.ledger.Speed()
		x.Match = n.match(parts)
		x.Known = x.Match
	}
}

// send places one request and starts it. It returns the index of its instance.
func (f *rig) send(r Request, parts ...part) int {
	f.t.Helper()
	for _, p := range parts {
		r.Tokens += p.tokens
	}
	f.sent++
	r.Now, r.Draw = f.now, mix(f.sent)
	if r.Home == 0 && len(parts) > 0 {
		r.Home = Hash(parts[0].key)
	}
	f.look(parts)
	d := f.policy.Choose(&r, f.cs)
	if d.Index < 0 || d.Hold {
		f.t.Fatalf("request %d: decision %+v; want an instance", f.sent, d)
	}
	f.start(d.Index, &r, parts)
	return d.Index
}

func (f *rig) start(i int, r *Request, parts []part) {
	n := f.nodes[i]
	u := max(r.Tokens-f.cs[i].Match, 1)
	s := engine(f.t)
	ticket := n.ledger.Dispatch(f.now, u, r.Tokens, r.Output)
	n.place(parts)
	n.served++
	step := s.DecodeBase + s.DecodeCtx*f.cs[i].Load.Context
	begin := f.now
	if n.free.After(begin) {
		begin = n.free
	}
	first := begin.Add(seconds(step + prefillTime(&s, float64(u), float64(r.Tokens))))
	n.free = first
	f.at(first, func() { n.ledger.FirstToken(f.now, &ticket) })
	f.at(first.Add(seconds(step*float64(r.Output))), func() {
		n.ledger.Token(f.now, &ticket, r.Output)
		n.ledger.End(f.now, &ticket)
	})
}

func (f *rig) at(t time.Time, do func()) { heap.Push(&f.events, event{t, do}) }

// pass lets time go by.
func (f *rig) pass(d time.Duration) {
	until := f.now.Add(d)
	for len(f.events) > 0 && !f.events[0].at.After(until) {
		e := heap.Pop(&f.events).(event)
		f.now = e.at
		e.do()
	}
	f.now = until
}

// served lists how many requests each instance got.
func (f *rig) served() []int {
	counts := make([]int, len(f.nodes))
	for i, n := range f.nodes {
		counts[i] = n.served
	}
	return counts
}

// eager is the cost policy without late binding, so that each decision is a choice.
func eager(t testing.TB) Policy {
	cfg := Default()
	cfg.MaxHold = 0
	return mustNew(t, Cost, cfg)
}

func mustNew(t testing.TB, name string, cfg Config) Policy {
	t.Helper()
	p, err := New(name, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
