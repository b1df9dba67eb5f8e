package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/index"
	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/prefix"
)

// ShadowConfig says what a [Shadow] runs, and whom it tells.
type ShadowConfig struct {
	// Arms are the policies, each with a name of its own: a twin of the live one,
	// so that it is judged by the same model, and those to compare with it. They
	// keep state and must belong to this Shadow alone.
	Arms []ShadowArm
	// Index is the gateway's own: it knows how large the caches are. It must not
	// be nil.
	Index *index.Index
	// Memory caps the index of each arm, in bytes.
	Memory int64
	// Sample is the share of the requests that is looked at, above 0 to 1. The
	// virtual clock slows down as much, so that the load stays what it is.
	Sample float64
	// Predicted is told of each request under each arm. Nil tells nobody.
	Predicted func(arm string, ttft time.Duration, prompt, cached int)
	// Skipped is told of each request that was left out for want of time.
	Skipped func()
	// Window is told what a minute has shown. It may take its time.
	Window func(route.Window)
	// Log takes what an operator must look at. Nil discards it.
	Log *slog.Logger
}

// ShadowArm is one policy of a [Shadow].
type ShadowArm struct {
	Name   string
	Policy route.Policy
}

// Shadow runs policies on a pool's requests beside the live one and predicts what
// they would have come to. Each has a fleet of its own that exists in predictions
// only: its index holds what it would have placed where, and its load is what it
// would have caused. A Shadow never touches a request, and what it does happens
// while the request is under way.
type Shadow struct {
	// Set once by NewShadow.
	cfg   ShadowConfig
	start time.Time

	watching atomic.Int32
	broken   atomic.Bool

	mu         sync.Mutex // guards below; taken before Instance.mu and the indexes' locks
	arms       []*imagined
	members    []prefix.InstanceID // who has joined the arms' indexes
	flushes    map[prefix.InstanceID]uint64
	refreshed  time.Time
	opened     time.Time // of the window
	actual     route.Evidence
	snapshot   []route.Candidate
	candidates []route.Candidate
	held       []index.Held
}

// imagined is the world as it would be under one policy.
type imagined struct {
	ShadowArm
	index  *index.Index
	fleet  route.Virtual
	window route.Evidence
}

const (
	// shadowWindow is the length of a window of evidence.
	shadowWindow = time.Minute
	// shadowRefresh is how often learned sizes of caches are taken over.
	shadowRefresh = 10 * time.Second
	// maxWatching is how many requests may wait for the Shadow's lock. More come
	// faster than it can think.
	maxWatching = 32
)

// NewShadow returns a Shadow for one pool. It starts nothing.
func NewShadow(cfg ShadowConfig) *Shadow {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	now := time.Now()
	s := &Shadow{cfg: cfg, start: now, opened: now, flushes: make(map[prefix.InstanceID]uint64)}
	for _, a := range cfg.Arms {
		s.arms = append(s.arms, &imagined{ShadowArm: a, index: index.New(index.Config{Memory: cfg.Memory})})
	}
	return s
}

// glimpse is one request as a Shadow sees it.
type glimpse struct {
	shadow     *Shadow
	pool       *fleet.Pool
	req        route.Request
	chain      prefix.Chain // nil: the index knows nothing of such requests
	perBlock   float64      // tokens
	placements []index.Placement
	done       chan struct{}
}

// watch lets the Shadow see a request that is about to be placed. It returns nil
// when it does not look at it. [glimpse.end] must be called before the chain's
// memory is used again.
func (s *Shadow) watch(pool *fleet.Pool, o *order, blockBytes int) *glimpse {
	if s == nil || s.broken.Load() || !s.samples(&o.req) {
		return nil
	}
	if s.watching.Add(1) > maxWatching {
		s.watching.Add(-1)
		if s.cfg.Skipped != nil {
			s.cfg.Skipped()
		}
		return nil
	}
	g := &glimpse{
		shadow: s, pool: pool, req: o.req, perBlock: float64(blockBytes) / o.perTok,
		placements: make([]index.Placement, len(s.arms)), done: make(chan struct{}),
	}
	if o.indexed {
		g.chain = o.chain
	}
	go g.run()
	return g
}

// samples reports whether a request is looked at. Sessions are in or out as a
// whole, or their later turns would find nothing.
func (s *Shadow) samples(r *route.Request) bool {
	key := r.Draw
	if r.Session != 0 {
		key = r.Session
	}
	return float64(key>>11)/(1<<53) < s.cfg.Sample
}

// run imagines the request under each arm.
func (g *glimpse) run() {
	s := g.shadow
	defer close(g.done)
	defer s.watching.Add(-1)
	defer func() {
		if v := recover(); v != nil && !s.broken.Swap(true) {
			s.cfg.Log.LogAttrs(context.Background(), slog.LevelError, "BUG: panic in a shadow policy; shadows of this pool are off",
				slog.String("pool", g.pool.Name()), slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
		}
	}()
	if w, ok := s.imagine(g); ok && s.cfg.Window != nil {
		s.cfg.Window(w)
	}
}

// imagine returns the window that the request was the first to come after.
func (s *Shadow) imagine(g *glimpse) (w route.Window, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(s.opened) >= shadowWindow {
		w, closed = s.closeLocked(now), true
	}
	s.lookLocked(g.pool, now)
	at := s.start.Add(time.Duration(float64(now.Sub(s.start)) * s.cfg.Sample))
	for i, a := range s.arms {
		s.sendLocked(g, a, at, &g.placements[i])
	}
	return w, closed
}

// closeLocked ends the window.
func (s *Shadow) closeLocked(now time.Time) route.Window {
	w := route.Window{End: now, Actual: s.actual}
	for _, a := range s.arms {
		w.Arms = append(w.Arms, route.Arm{Name: a.Name, Evidence: a.window})
		a.window = route.Evidence{}
	}
	s.opened, s.actual = now, route.Evidence{}
	return w
}

// lookLocked takes a snapshot of the instances as they really are.
func (s *Shadow) lookLocked(pool *fleet.Pool, now time.Time) {
	s.snapshot = pool.Candidates(s.snapshot[:0], now)
	same := len(s.members) == len(s.snapshot)
	for i := 0; same && i < len(s.snapshot); i++ {
		same = s.snapshot[i].ID == s.members[i]
	}
	if !same {
		s.joinLocked()
	}
	if !same || now.Sub(s.refreshed) >= shadowRefresh {
		s.refreshed = now
		s.refreshLocked()
	}
}

// joinLocked makes the instances of the snapshot those of the arms.
func (s *Shadow) joinLocked() {
	is := func(id prefix.InstanceID) func(route.Candidate) bool {
		return func(c route.Candidate) bool { return c.ID == id }
	}
	for _, a := range s.arms {
		for _, id := range s.members {
			if !slices.ContainsFunc(s.snapshot, is(id)) {
				a.index.Leave(id)
				a.fleet.Leave(id)
			}
		}
		for i := range s.snapshot {
			if c := &s.snapshot[i]; !slices.Contains(s.members, c.ID) {
				a.index.Join(c.ID, fmt.Sprintf("%s/%d", c.Name, c.ID), 0)
			}
		}
	}
	s.members = s.members[:0]
	for i := range s.snapshot {
		s.members = append(s.members, s.snapshot[i].ID)
	}
	for id := range s.flushes {
		if !slices.Contains(s.members, id) {
			delete(s.flushes, id)
		}
	}
}

// refreshLocked takes over what has been learned about the caches: their sizes,
// and which of them have been emptied.
func (s *Shadow) refreshLocked() {
	for in := range s.cfg.Index.Instances() {
		if in.Absent || !slices.Contains(s.members, in.ID) {
			continue
		}
		before, known := s.flushes[in.ID]
		s.flushes[in.ID] = in.Flushes
		for _, a := range s.arms {
			if known && in.Flushes > before {
				a.index.Flush(in.ID)
			}
			a.index.SetCapacity(in.ID, int(in.Capacity))
		}
	}
}

// sendLocked places the request where the arm would have, without holding it
// back: that is the gateway's doing, not the policy's alone.
func (s *Shadow) sendLocked(g *glimpse, a *imagined, at time.Time, p *index.Placement) {
	s.candidates = append(s.candidates[:0], s.snapshot...)
	cs := s.candidates
	a.fleet.Look(at, cs)
	r := g.req
	r.Now, r.Waited, r.MaxHold, r.Budget = at, 0, -1, -1
	if len(g.chain) > 0 {
		s.held = a.index.Match(g.chain, s.held)
		for i := range cs {
			if c := &cs[i]; int(c.ID) < len(s.held) {
				c.Match = min(int(float64(s.held[c.ID].Resident)*g.perBlock), r.Tokens)
				c.Known = min(int(float64(s.held[c.ID].Known)*g.perBlock), r.Tokens)
			}
		}
	}
	d := a.Policy.Choose(&r, cs)
	if d.Index < 0 {
		return // Nobody may be chosen in reality either.
	}
	c := &cs[d.Index]
	ttft := a.fleet.Dispatch(at, &r, c)
	if len(g.chain) > 0 {
		a.index.Place(c.ID, g.chain, p)
	}
	add(&a.window, ttft, r.Tokens, c.Match)
	if s.cfg.Predicted != nil {
		s.cfg.Predicted(a.Name, ttft, r.Tokens, c.Match)
	}
}

// end tells the Shadow how the request really went. The chain is that of the
// prompt, with the answer if it has joined. It waits for the Shadow, which then
// keeps nothing of the chain.
func (g *glimpse) end(r *Record, c prefix.Chain) {
	if g == nil {
		return
	}
	<-g.done
	s := g.shadow
	for i, a := range s.arms {
		if r.First.IsZero() {
			a.index.TakeBack(&g.placements[i])
		} else {
			a.index.Finish(&g.placements[i], c)
		}
	}
	// Only a stream shows its first token.
	if ttft, ok := r.TTFT(); ok && r.Streamed && r.Class == Served {
		prompt, cached := 0, 0
		if r.CachedKnown {
			prompt, cached = r.PromptTokens, r.CachedTokens
		}
		s.mu.Lock()
		add(&s.actual, ttft, prompt, cached)
		s.mu.Unlock()
	}
}

// add enters a request into the evidence.
func add(e *route.Evidence, ttft time.Duration, prompt, cached int) {
	e.Requests++
	e.TTFT += ttft
	e.Prompt += prompt
	e.Cached += cached
}
