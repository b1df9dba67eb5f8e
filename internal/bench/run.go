package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/warmroute/warmroute/internal/sim"
	"github.com/warmroute/warmroute/prefix"
)

// indexBlockTokens is the block size of the simulated gateway's index: the
// default block of 256 bytes holds about so many tokens of English.
const indexBlockTokens = 64

// tokenEvery is how often an engine tells of a stream's progress. The gateway
// sees every token; every eighth is enough to learn the length of a step from,
// and lets the engine compute the steps between in one go.
const tokenEvery = 8

// maxAttempts is how often a request is sent at most, as in the gateway.
const maxAttempts = 3

// never is later than everything that happens.
const never = time.Duration(math.MaxInt64)

// flight is one request on its way, with all memory that it needs; flights are
// used again.
type flight struct {
	Request
	slot     uint64 // its place in world.flights
	blocks   chainer[uint64]
	chain    chainer[prefix.Block]
	prompt   int // tokens
	onPrompt int // blocks of chain that belong to the prompt alone
	engine   sim.Request
	trip          // the gateway's view
	measured bool // arrived after the warm-up
	ceiling  int  // tokens that an infinite cache would have held
	uncached int  // of the attempt under way, as counted by Imbalance
	first    time.Duration
	over     bool // it has ended
	notices  int  // on their way to other replicas
}

// world is one run: the engines, the gateway in front of them, and what is
// measured. It is an event loop in virtual time.
type world struct {
	Settings
	source  Source
	engines []*sim.Engine
	down    []time.Duration // until when an instance refuses
	next    schedule        // of the engines' events
	record  recorder
	flights []*flight
	free    []*flight
	open    int // flights that have not ended
	events  []Event

	gateways []*gateway
	routers  *rand.Rand // which gateway a request comes to
	vine     grapevine

	now     time.Duration
	scratch []sim.Event
}

// Run plays one policy over one workload and returns its numbers. Equal
// settings give equal results.
func Run(s Settings) (*Result, error) {
	w, err := play(context.Background(), s)
	if err != nil {
		return nil, err
	}
	return w.record.result(w), nil
}

// play is Run up to where the books are closed. It ends early with the context.
func play(ctx context.Context, s Settings) (*world, error) {
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("run: %w", err)
	}
	s.Engine.KVTokens = s.KVTokens
	s.Engine.BlockTokens = cmp.Or(s.Engine.BlockTokens, sim.BlockTokens)
	w := &world{Settings: s, source: s.Workload.Source(s.Seed), down: make([]time.Duration, len(s.Profiles))}
	for _, p := range s.Profiles {
		w.engines = append(w.engines, sim.NewEngine(p, s.Engine))
	}
	w.next = newSchedule(len(w.engines))
	w.events = slices.SortedStableFunc(slices.Values(s.Events), func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	w.record = newRecorder(&w.Settings)
	w.routers = stream(s.Seed, drawReplica)
	w.vine = grapevine{off: s.Replicas < 2 || s.ShareDelay < 0, delay: s.ShareDelay}
	for i := range max(s.Replicas, 1) {
		g, err := newGateway(w, i)
		if err != nil {
			return nil, fmt.Errorf("run: %w", err)
		}
		w.gateways = append(w.gateways, g)
	}
	for n := 0; w.step(); n++ {
		if n%stepsPerLook == 0 && ctx.Err() != nil {
			return nil, fmt.Errorf("run %s on %s: %w", s.Policy, s.Workload.Name(), context.Cause(ctx))
		}
	}
	if w.open > 0 {
		return nil, fmt.Errorf("run %s on %s: BUG: %d requests never ended", s.Policy, s.Workload.Name(), w.open)
	}
	return w, nil
}

// stepsPerLook is how many things happen between two looks at whether the run
// is still wanted.
const stepsPerLook = 1 << 12

// step lets the next thing happen and reports whether there was one. Of things
// at one time the engines' come first, so that a request that arrives as
// another ends sees it ended.
func (w *world) step() bool {
	engine, at := w.next.first()
	fault := never
	if len(w.events) > 0 {
		fault = w.events[0].At
	}
	sleeper, wake := w.sleeper()
	heard := w.vine.next()
	arrival, ok := w.source.Next()
	if !ok {
		arrival = never
	}
	next := min(at, fault, wake, heard, arrival)
	if next == never || arrival == never && w.open == 0 {
		return false
	}
	w.now = next
	switch next {
	case at:
		w.advance(engine)
	case fault:
		w.happen(w.events[0])
		w.events = w.events[1:]
	case heard:
		w.spread(w.vine.take())
	case wake:
		sleeper.rebind()
	default:
		w.arrive()
	}
	return true
}

// sleeper is the gateway whose held requests have waited long enough first.
func (w *world) sleeper() (sleeper *gateway, at time.Duration) {
	at = never
	for _, g := range w.gateways {
		if t := g.wake(); t < at {
			sleeper, at = g, t
		}
	}
	return sleeper, at
}

// arrive takes the next request from the workload to the gateway.
func (w *world) arrive() {
	f := w.takeFlight()
	w.source.Take(&f.Request)
	f.blocks.reset(w.Engine.BlockTokens)
	f.chain.reset(indexBlockTokens)
	for _, s := range f.Prompt {
		f.blocks.add(s)
		f.chain.add(s)
	}
	promptBlocks := len(f.blocks.blocks)
	f.onPrompt = len(f.chain.blocks)
	f.prompt = f.PromptTokens()
	f.blocks.add(f.Answer)
	f.chain.add(f.Answer)
	f.engine = sim.Request{
		ID:           f.slot,
		Prompt:       f.blocks.blocks[:promptBlocks],
		PromptTokens: f.prompt,
		OutputTokens: f.Answer.Tokens,
		OutputBlocks: f.blocks.blocks[promptBlocks:],
		TokenEvery:   tokenEvery,
	}
	w.open++
	w.record.arrived(f)
	f.gateway = w.gateways[0]
	if n := len(w.gateways); n > 1 {
		f.gateway = w.gateways[w.routers.IntN(n)]
	}
	f.gateway.arrive(f)
}

// send is the gateway's only way to an engine. It reports false when the
// instance refuses.
func (w *world) send(f *flight, instance int) bool {
	if w.now < w.down[instance] {
		return false
	}
	cached := w.engines[instance].Cached(f.engine.Prompt, f.prompt)
	if err := w.engines[instance].Submit(w.now, &f.engine); err != nil {
		return false
	}
	w.record.sent(f, instance, cached)
	w.reschedule(instance)
	return true
}

// advance takes an engine's events to the gateway.
func (w *world) advance(engine int) {
	// The gateway may send to this very engine while it hears of the events.
	w.scratch = append(w.scratch[:0], w.engines[engine].Advance(w.now)...)
	w.reschedule(engine)
	w.deliver(w.scratch)
}

func (w *world) deliver(events []sim.Event) {
	for _, e := range events {
		f := w.flights[e.Req.ID]
		switch e.Kind {
		case sim.First:
			f.first = w.now
			w.record.prefilled(f)
			f.gateway.first(f)
		case sim.Token:
			f.gateway.token(f, e.Tokens)
		case sim.Done:
			f.gateway.done(f)
			w.end(f, nil)
		case sim.Aborted:
			w.record.prefilled(f)
			f.gateway.failed(f)
		case sim.Preempted: // a stall that the client sees in its token gaps
		}
	}
}

// happen lets an event happen to an engine.
func (w *world) happen(e Event) {
	engine := w.engines[e.Instance]
	for _, g := range w.gateways {
		switch {
		case e.Add:
			g.join(e.Instance)
		case e.Remove:
			g.drain(e.Instance)
		}
	}
	if e.Restart {
		engine.Restart(w.now)
		w.down[e.Instance] = w.now + e.Down
		w.advance(e.Instance)
	}
	if e.KVTokens > 0 {
		engine.SetKVTokens(w.now, e.KVTokens)
		w.reschedule(e.Instance)
	}
}

func (w *world) reschedule(engine int) {
	at, ok := w.engines[engine].NextEvent()
	if !ok {
		at = never
	}
	w.next.set(engine, at)
}

// errRefused is the end of a request that no instance could take.
var errRefused = errors.New("no instance could take it")

// end closes a request, served when err is nil.
func (w *world) end(f *flight, err error) {
	w.record.ended(f, w.now, err)
	w.source.Ended(&f.Request, w.now)
	w.open--
	f.over = true
	w.release(f)
}

// release lets a flight's memory be used again once nobody needs it.
func (w *world) release(f *flight) {
	if f.over && f.notices == 0 {
		w.free = append(w.free, f)
	}
}

func (w *world) takeFlight() *flight {
	if n := len(w.free); n > 0 {
		f := w.free[n-1]
		w.free = w.free[:n-1]
		*f = flight{Request: f.Request, slot: f.slot, blocks: f.blocks, chain: f.chain, trip: f.reuse()}
		return f
	}
	f := &flight{slot: uint64(len(w.flights))}
	w.flights = append(w.flights, f)
	return f
}
