package proxy

import (
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmroute/warmroute/internal/dialect"
	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/index"
	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/internal/upstream"
	"github.com/warmroute/warmroute/prefix"
)

// Deps is what a Gateway needs from the rest of the program.
type Deps struct {
	// Fleet finds pools and instances. It must not be nil.
	Fleet *fleet.Fleet
	// Index knows who holds what. It must not be nil.
	Index *index.Index
	// BlockBytes is the index's block size. Zero means prefix.DefaultBlockBytes.
	BlockBytes int
	// Rule returns how a pool chooses. It is asked for each request, so that a
	// reload takes effect at once. It must not be nil.
	Rule func(*fleet.Pool) Rule
	// Admit checks the client's key and names its tenant. A refusal is answered
	// as it is. Nil admits everybody, without a tenant.
	Admit func(*http.Request) (tenant string, refused *dialect.Error)
	// Recorder is told what happens. Nil tells nobody.
	Recorder Recorder
	// Log takes what an operator must look at. Nil discards it.
	Log *slog.Logger
}

// Rule is how one pool chooses instances.
type Rule struct {
	// Policy chooses. It belongs to one pool, because it may keep state.
	Policy route.Policy
	// MaxHold bounds late binding. Zero never holds a request that could be sent.
	MaxHold time.Duration
	// HeadChars is the number of Unicode characters of the prompt that make the
	// key of the hash policies. Zero means that the policy needs none.
	HeadChars int
	// Shadow runs other policies beside it. Nil runs none.
	Shadow *Shadow
}

// Gateway is the data plane: an [http.Handler] that sends each request to the
// instance of its model that is best placed to answer it. See [New].
type Gateway struct {
	// Set once by New.
	cfg    Config
	deps   Deps
	start  time.Time
	budget *budget

	waiting atomic.Int64 // held requests in all pools
	running roster
	threads threads

	mu    sync.RWMutex // guards below; taken before desk.mu
	desks map[*fleet.Pool]*desk
}

// New returns a Gateway. It starts nothing.
func New(cfg Config, deps Deps) (*Gateway, error) {
	if err := errors.Join(cfg.Validate()...); err != nil {
		return nil, err
	}
	if deps.Fleet == nil || deps.Index == nil || deps.Rule == nil {
		return nil, errors.New("BUG: proxy.Deps lacks Fleet, Index or Rule")
	}
	if deps.BlockBytes <= 0 {
		deps.BlockBytes = prefix.DefaultBlockBytes
	}
	if deps.Recorder == nil {
		deps.Recorder = noRecorder{}
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	return &Gateway{
		cfg:    cfg,
		deps:   deps,
		start:  time.Now(),
		budget: newBudget(cfg.RetryShare, cfg.RetryFloor),
		desks:  make(map[*fleet.Pool]*desk),
	}, nil
}

// ServeHTTP answers one request; see the package comment for its life.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := g.open(w, r)
	defer x.close()
	if kind, ok := endpoints[r.URL.Path]; ok {
		x.kind, x.rec.Kind = kind, kind
		x.finish(x.run())
		return
	}
	x.finish(x.serveModels())
}

// Watch is to be told what happens in the fleet: it lets held requests look
// again and ends what still runs on an instance that has left. It returns at
// once and calls nobody.
func (g *Gateway) Watch(e fleet.Event) {
	if e.Kind == fleet.Left || e.Kind == fleet.Restarted {
		g.forget(e.ID)
	}
	if e.Kind == fleet.Left {
		g.running.cancel(e.ID, upstream.NewFault(upstream.Transient, "removed", "the instance was removed and its time to drain is over"))
	}
	if g.waiting.Load() == 0 {
		return
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, d := range g.desks {
		d.nudge()
	}
}

func (g *Gateway) forget(id prefix.InstanceID) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, d := range g.desks {
		d.lessons.forget(id)
	}
}

// Held counts the requests that wait for an instance.
func (g *Gateway) Held() int { return int(g.waiting.Load()) }

// desk returns the desk of a pool.
func (g *Gateway) desk(p *fleet.Pool) *desk {
	g.mu.RLock()
	d := g.desks[p]
	g.mu.RUnlock()
	if d != nil {
		return d
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if d = g.desks[p]; d != nil {
		return d
	}
	// Pools come and go with the models that instances list; a new one is the
	// moment to drop the desks of those that are gone.
	for old, desk := range g.desks {
		if now, ok := g.deps.Fleet.Pool(old.Name()); (!ok || now != old) && desk.waiting.Load() == 0 {
			delete(g.desks, old)
		}
	}
	d = newDesk(g, p)
	g.desks[p] = d
	return d
}

// wake lets held requests of all pools but one look again, after an instance has
// got room: it may serve several.
func (g *Gateway) wake(now time.Time, but *desk) {
	if g.waiting.Load() == 0 {
		return
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, d := range g.desks {
		if d != but {
			d.wake(now)
		}
	}
}

// recovered answers after a panic in a handler.
func (x *exchange) recovered(v any) {
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		x.cut = true
		x.ended(upstream.NewFault(upstream.ClientGone, "aborted", ""))
		return
	}
	x.g.deps.Log.LogAttrs(x.r.Context(), slog.LevelError, "BUG: panic in a request",
		slog.String("id", x.rec.ID), slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
	x.finish(&refusal{
		public: &dialect.Error{Status: http.StatusInternalServerError, Type: "server_error", Code: "internal_error", Message: "The gateway failed."},
		class:  upstream.Transient, cause: "panic",
	})
}
