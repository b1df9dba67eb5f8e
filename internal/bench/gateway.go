package bench

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/warmroute/warmroute/internal/index"
	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/internal/sim"
	"github.com/warmroute/warmroute/prefix"
)

// trip is the gateway's view of a flight.
type trip struct {
	gateway   *gateway
	instance  int // -1 while it is on none
	match     int // tokens believed to be cached at the last dispatch
	attempts  int
	failed    []bool // by instance: already failed this request
	placement index.Placement
	ticket    route.Ticket
	held      *route.Held[*flight]
	answered  int      // tokens of the answer seen
	copies    []copied // by replica; nil when there is one
}

// reuse empties a trip but for its memory.
func (t *trip) reuse() trip {
	clear(t.failed)
	return trip{instance: -1, failed: t.failed, placement: t.placement, copies: t.copies}
}

// gateway is the data plane of a Warmroute in virtual time: the same index,
// ledgers, policy and waiting room as in package proxy, and the same life
// cycle of a request.
type gateway struct {
	w       *world
	number  int // among the replicas
	index   *index.Index
	ledgers []*route.Ledger
	names   []string
	hashes  []uint64
	policy  route.Policy
	hold    time.Duration
	hall    route.Hall[*flight]
	cooling []time.Duration   // until when an instance that refused is left alone
	away    []route.Exclusion // by instance: why it is not in the fleet, 0 when it is
	pending [][]*flight       // by instance: sent and not yet prefilled; kept for Exact only
	output  float64           // learned mean length of answers
	draws   *rand.Rand

	held       []index.Held
	candidates []route.Candidate
}

// blockBytes is what the index takes its blocks for: the simulated gateway
// knows text no better than the real one, four bytes to a token.
const blockBytes = prefix.DefaultBlockBytes

// cooldown is how long the gateway leaves an instance alone that refused a
// connection, the first step of its breaker.
const cooldown = 5 * time.Second

// epoch is the wall time of virtual time 0.
var epoch = time.Unix(1_000_000_000, 0)

func newGateway(w *world, number int) (*gateway, error) {
	policy, err := route.New(w.Policy, w.Route)
	if err != nil {
		return nil, err
	}
	n := len(w.engines)
	cfg := index.Default()
	if w.IndexBytes > 0 {
		cfg.Memory = w.IndexBytes
	}
	g := &gateway{
		w:          w,
		number:     number,
		away:       make([]route.Exclusion, n),
		index:      index.New(cfg),
		policy:     policy,
		hold:       holdBound(w.Route),
		cooling:    make([]time.Duration, n),
		pending:    make([][]*flight, n),
		draws:      stream(w.Seed+uint64(number), drawPolicy),
		candidates: make([]route.Candidate, n),
		held:       make([]index.Held, n),
	}
	for i, p := range w.Profiles {
		name := "sim-" + strconv.Itoa(i)
		prior, ok := route.Prior(p.Name)
		if !ok {
			return nil, fmt.Errorf("no prior speed for engine %q", p.Name)
		}
		prior.KVTokens = g.told(i)
		g.ledgers = append(g.ledgers, route.NewLedger(prior))
		g.names = append(g.names, name)
		g.hashes = append(g.hashes, route.Hash(name))
		if w.comesLater(i) {
			g.away[i] = route.Unready
			continue
		}
		g.join(i)
	}
	return g, nil
}

// told is the cache size in tokens that the gateway is told of an instance.
func (g *gateway) told(instance int) int {
	return int(g.w.Assumed * float64(g.w.capacity(instance)))
}

// join lets an instance into the fleet.
func (g *gateway) join(instance int) {
	g.away[instance] = route.Eligible
	g.index.Join(prefix.InstanceID(instance), g.names[instance], g.told(instance)/indexBlockTokens)
	g.rebind()
}

// drain lets an instance finish what it has and gives it nothing more.
func (g *gateway) drain(instance int) {
	g.away[instance] = route.Draining
	g.index.Leave(prefix.InstanceID(instance))
}

// comesLater reports whether an instance is not in the fleet at the start.
func (w *world) comesLater(instance int) bool {
	for _, e := range w.events {
		if e.Instance == instance && (e.Add || e.Remove) {
			return e.Add
		}
	}
	return false
}

// holdBound is how long the policies hold a request at most.
func holdBound(cfg route.Config) time.Duration {
	if cfg.TTFTObjective > 0 {
		return min(cfg.MaxHold, cfg.TTFTObjective/4)
	}
	return cfg.MaxHold
}

// capacity is the size of an instance's cache in tokens at the start.
func (w *world) capacity(instance int) int { return capacityOf(&w.Settings, instance) }

func capacityOf(s *Settings, instance int) int {
	if s.KVTokens > 0 {
		return s.KVTokens
	}
	return s.Profiles[instance].KVTokens
}

func (g *gateway) now() time.Time { return epoch.Add(g.w.now) }

// arrive routes a new request.
func (g *gateway) arrive(f *flight) {
	f.instance = -1
	if f.failed == nil {
		f.failed = make([]bool, len(g.ledgers))
	}
	if f.copies == nil && !g.w.vine.off {
		f.copies = make([]copied, max(g.w.Replicas, 1))
	}
	g.place(f)
}

// place lets the policy choose for a request and does what it says. It reports
// whether the request has left the gateway's hands.
func (g *gateway) place(f *flight) bool {
	for {
		r := g.request(f)
		g.consider(f)
		d := g.policy.Choose(&r, g.candidates)
		switch {
		case d.Hold:
			g.keep(f, d)
			return false
		case d.Index < 0:
			g.w.end(f, errRefused)
			return true
		case g.dispatch(f, d.Index):
			return true
		case f.attempts >= maxAttempts:
			g.w.end(f, errRefused)
			return true
		}
	}
}

// request is what the policy gets to know.
func (g *gateway) request(f *flight) route.Request {
	chain := f.chain.blocks[:f.onPrompt]
	r := route.Request{
		Now:    g.now(),
		Tokens: f.prompt,
		Output: int(g.output),
		Draw:   g.draws.Uint64(),
		Waited: g.w.now - f.At,
		Simple: f.simpleKey(),
	}
	if len(chain) > 0 {
		r.Home = uint64(chain[0])
	}
	if f.Session != 0 {
		r.Session = mix(f.Session, drawPolicy)
	}
	return r
}

// simpleKey stands for the hash of a prompt's first hundred characters, which
// are about 25 tokens: one block of an engine and a half.
func (f *flight) simpleKey() uint64 {
	var c chainer[uint64]
	c.reset(25)
	left := 25
	for _, s := range f.Prompt {
		s.Tokens = min(s.Tokens, left)
		c.add(s)
		left -= s.Tokens
	}
	return c.hash
}

// consider fills the candidates for a request.
func (g *gateway) consider(f *flight) {
	g.held = g.index.Match(prefix.Chain(f.chain.blocks[:f.onPrompt]), g.held)
	now := g.now()
	for i := range g.candidates {
		c := &g.candidates[i]
		l := g.ledgers[i]
		*c = route.Candidate{ID: prefix.InstanceID(i), Name: g.names[i], NameHash: g.hashes[i], Load: l.Load(now), Speed: l.Speed()}
		c.Match, c.Known = g.match(f, i)
		switch {
		case g.away[i] != route.Eligible:
			c.Excluded = g.away[i]
		case f.failed[i]:
			c.Excluded = route.Failed
		case g.w.now < g.cooling[i]:
			c.Excluded = route.Open
		}
	}
}

// match is how many leading tokens an instance is believed to hold, and how
// many it was given once.
func (g *gateway) match(f *flight, instance int) (resident, known int) {
	if g.w.Knowledge == Exact {
		n := g.exact(f, instance)
		return n, n
	}
	most := f.prompt - 1
	if instance >= len(g.held) {
		return 0, 0
	}
	h := g.held[instance]
	return min(int(h.Resident)*indexBlockTokens, most), min(int(h.Known)*indexBlockTokens, most)
}

// exact asks the engine. What it is about to compute counts too: a burst of
// siblings must see itself.
func (g *gateway) exact(f *flight, instance int) int {
	n := g.w.engines[instance].Cached(f.engine.Prompt, f.prompt)
	for _, other := range g.pending[instance] {
		shared := prefix.Chain(f.chain.blocks[:f.onPrompt]).Common(other.chain.blocks[:other.onPrompt])
		n = max(n, min(shared*indexBlockTokens, f.prompt-1))
	}
	return n
}

// keep holds a request back until something ends, at most for its time.
func (g *gateway) keep(f *flight, d route.Decision) {
	if f.held != nil {
		return // it is in the hall already
	}
	prefill := time.Duration(0)
	if d.Index >= 0 {
		c := &g.candidates[d.Index]
		prefill = seconds(float64(f.prompt-c.Match) * c.Speed.PrefillToken)
	}
	f.held = g.hall.Add(f, epoch.Add(f.At), prefill, epoch.Add(f.At+g.hold))
}

// wake is when a held request has waited long enough.
func (g *gateway) wake() time.Duration {
	until, ok := g.hall.Next()
	if !ok {
		return never
	}
	return max(until.Sub(epoch), g.w.now)
}

// rebind offers every held request again: an instance has room, or a hold is over.
func (g *gateway) rebind() {
	g.hall.Each(func(f *flight) bool {
		left := g.place(f)
		if left {
			f.held = nil
		}
		return left
	})
}

// dispatch sends a request to an instance and enters it in the books. It
// reports false when the instance refuses.
func (g *gateway) dispatch(f *flight, instance int) (sent bool) {
	f.attempts++
	if !g.w.send(f, instance) {
		f.failed[instance] = true
		g.cooling[instance] = g.w.now + cooldown
		return false
	}
	f.instance = instance
	f.match = g.candidates[instance].Match
	f.ticket = g.ledgers[instance].Dispatch(g.now(), f.prompt-f.match, f.prompt, int(g.output))
	g.index.Place(prefix.InstanceID(instance), f.chain.blocks[:f.onPrompt], &f.placement)
	g.tell(noticeSent, f, f.prompt-f.match)
	if g.w.Knowledge == Exact {
		g.pending[instance] = append(g.pending[instance], f)
	}
	return true
}

// first hears of a request's first token.
func (g *gateway) first(f *flight) {
	g.settled(f)
	g.ledgers[f.instance].FirstToken(g.now(), &f.ticket)
	g.index.Confirm(&f.placement)
	g.tell(noticeFirst, f, 0)
	g.rebind()
}

// settled forgets that a request has something to prefill.
func (g *gateway) settled(f *flight) {
	if i := slices.Index(g.pending[f.instance], f); i >= 0 {
		g.pending[f.instance] = slices.Delete(g.pending[f.instance], i, i+1)
	}
}

// token hears of the n-th token of an answer.
func (g *gateway) token(f *flight, n int) {
	g.ledgers[f.instance].Token(g.now(), &f.ticket, n-f.answered)
	f.answered = n
}

// done hears of a request's end and learns from it.
func (g *gateway) done(f *flight) {
	g.ledgers[f.instance].End(g.now(), &f.ticket)
	g.finish(f, &f.placement)
	g.tell(noticeDone, f, 0)
	if g.output == 0 {
		g.output = float64(f.Answer.Tokens)
	}
	g.output += outputWeight * (float64(f.Answer.Tokens) - g.output)
	g.rebind()
}

// finish tells the index of an end, and of what the engine reported.
func (g *gateway) finish(f *flight, p *index.Placement) {
	g.index.Finish(p, f.chain.blocks)
	if g.w.Knowledge == Reports {
		g.index.Learn(p, index.TokenReport(f.engine.Cached, f.prompt, int64(f.prompt)*blockBytes/indexBlockTokens, blockBytes))
	}
}

// outputWeight is how much one answer changes the expected length of answers.
const outputWeight = 0.02

// failed hears that a request was lost on its instance. Until its first token
// it is tried elsewhere; afterwards the client has part of the answer.
func (g *gateway) failed(f *flight) {
	g.settled(f)
	g.ledgers[f.instance].End(g.now(), &f.ticket)
	g.index.TakeBack(&f.placement)
	g.tell(noticeFailed, f, 0)
	f.failed[f.instance] = true
	if f.first > 0 || f.attempts >= maxAttempts || errors.Is(f.engine.Err, sim.ErrTooLong) {
		g.w.end(f, f.engine.Err)
	} else {
		g.place(f)
	}
	g.rebind()
}
