package sim

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
)

// FuzzEngine runs a script on the engine and on the naive one and wants the same events, hits and oracle answers from both. Each
// command is three bytes.
func FuzzEngine(f *testing.F) {
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 1))
		script := make([]byte, 300)
		for i := range script {
			script[i] = byte(rng.Uint32())
		}
		f.Add(script)
	}
	f.Fuzz(func(t *testing.T, script []byte) { runScript(t, script) })
}

// pair is both engines and what was submitted to them.
type pair struct {
	e      *Engine
	n      *naive
	at     time.Duration
	rs     []*Request
	events []Event
}

func runScript(t *testing.T, script []byte) []*Request {
	if len(script) > 900 {
		script = script[:900]
	}
	p := testProfile()
	p.KVTokens = 640
	p.MaxBatchedTokens, p.MaxSeqs = 96, 6
	p.PrefillAttention, p.DecodeBase, p.DecodeAttention = 300, .5, 4000
	o := Options{ShareInStep: len(script)%2 == 0}
	x := &pair{e: NewEngine(p, o), n: newNaive(p, o)}
	for len(script) >= 3 {
		x.command(t, script[0], int(script[1]), int(script[2]))
		script = script[3:]
	}
	x.events = append(x.events, drain(t, x.e)...)
	x.n.run(1 << 62)
	x.compare(t)
	checkConserved(t, x.e, x.events, x.rs)
	return x.rs
}

func (x *pair) command(t *testing.T, op byte, a, b int) {
	ps := int64(x.at) * psPerNS
	switch op % 16 {
	case 0: // abort
		if len(x.rs) > 0 {
			r := x.rs[a%len(x.rs)]
			x.e.Abort(x.at, r)
			x.n.abort(ps, r)
		}
	case 1: // change the capacity
		x.e.SetKVTokens(x.at, 160+4*b)
		x.n.resize(ps, 160+4*b)
	case 2: // restart, but seldom
		if a < 64 {
			x.e.Restart(x.at)
			x.n.restart(ps)
		}
	case 3, 4, 5, 6: // advance in one go, by up to a second
		x.at += time.Duration(a*b) * 15 * time.Microsecond
		x.events = append(x.events, x.e.Advance(x.at)...)
		x.n.run(int64(x.at)*psPerNS + 1)
	case 7, 8: // advance to the next event
		if next, ok := x.e.NextEvent(); ok {
			if next >= x.at {
				x.at = next
				x.events = append(x.events, advance(t, x.e, next)...)
			}
			x.n.run(int64(x.at)*psPerNS + 1)
		}
	default:
		x.submit(t, op, a, b)
	}
}

// submit makes a request from one of eight prefixes and a tail of its own, sometimes with tokens watched.
func (x *pair) submit(t *testing.T, op byte, a, b int) {
	prompt := 1 + b*3/2
	r := newRequest(uint64(a%8), prompt, a/8)
	for i := a / 16; i < len(r.Prompt); i++ {
		r.Prompt[i] = deriveBlock(uint64(a), 3, i)
	}
	r.ID = uint64(len(x.rs))
	r.OutputSeed = uint64(a % 2)
	if op%16 == 15 {
		r.TokenEvery = 1 + a%3
	}
	if got, want := x.e.Cached(r.Prompt, prompt), x.n.look(r); got != want {
		t.Errorf("oracle says %d cached; naive %d", got, want)
	}
	if err := x.e.Submit(x.at, r); err != nil {
		return
	}
	x.n.submit(int64(x.at)*psPerNS, r)
	x.rs = append(x.rs, r)
}

// compare wants equal events; those of different requests at one time may come in any order.
func (x *pair) compare(t *testing.T) {
	t.Helper()
	if d := gocmp.Diff(plain(x.n.events), plain(x.events)); d != "" {
		t.Errorf("events (-naive +engine):\n%s", d)
	}
}

type plainEvent struct {
	At     time.Duration
	ID     uint64
	Kind   string
	Tokens int
}

func plain(events []Event) []plainEvent {
	var ps []plainEvent
	for _, ev := range events {
		ps = append(ps, plainEvent{ev.At, ev.Req.ID, ev.Kind.String(), ev.Tokens})
	}
	slices.SortStableFunc(ps, func(a, b plainEvent) int { return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.ID, b.ID)) })
	return ps
}

// The same comparison over many random scripts, which together reach every way a request can go.
func TestEngine_AgainstNaive(t *testing.T) {
	var preempted, aborted, cached, finished int
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 2))
		script := make([]byte, 600+seed%2)
		for i := range script {
			script[i] = byte(rng.Uint32())
		}
		for _, r := range runScript(t, script) {
			preempted += r.Preemptions
			cached += r.Cached
			if r.Err == nil {
				finished++
			} else {
				aborted++
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if preempted < 300 || aborted < 1000 || finished < 1000 || cached < 100_000 {
		t.Errorf("scripts gave %d preemptions, %d aborted, %d finished requests, %d cached tokens: too tame", preempted, aborted, finished, cached)
	}
}
