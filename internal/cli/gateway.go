package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/warmroute/warmroute/internal/config"
	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/index"
	"github.com/warmroute/warmroute/internal/prompt"
	"github.com/warmroute/warmroute/internal/proxy"
	"github.com/warmroute/warmroute/internal/telemetry"
	"github.com/warmroute/warmroute/internal/upstream"
	"github.com/warmroute/warmroute/prefix"
)

// world is what a gateway touches outside of itself. The zero world is the real
// one; tests put a network of pipes in its place.
type world struct {
	listen  func(ctx context.Context, address string) (net.Listener, error) // nil: TCP
	dial    upstream.DialFunc                                               // nil: TCP
	hangups <-chan os.Signal                                                // each asks for a reload; nil: none come
	watch   bool                                                            // whether changes of files ask for reloads
}

// gateway is all parts of a running Warmroute. Build one with newGateway, then
// run it once.
type gateway struct {
	// Set once by newGateway.
	world    world
	load     func() (*config.Config, error) // reads the configuration again
	log      *slog.Logger
	level    *slog.LevelVar
	sieve    *sieve
	started  time.Time
	registry *prometheus.Registry
	metrics  *telemetry.Metrics
	index    *index.Index
	snapshot *snapshot
	upstream *upstream.Upstream
	fleet    *fleet.Fleet
	rules    *rules
	recorder *recorder
	proxy    *proxy.Gateway

	madeToken string // for an admin listener that others can reach and that has no token; else empty

	draining atomic.Bool
	cfg      atomic.Pointer[config.Config]

	reloading sync.Mutex    // one reload at a time
	replaced  chan struct{} // holds a token when cfg is new to the watcher
}

// newGateway builds all parts. It starts nothing and opens no socket; the fleet
// has its instances, and the index what its snapshot held.
func newGateway(cfg *config.Config, load func() (*config.Config, error), w world, out *sieve) (*gateway, error) {
	g := &gateway{world: w, load: load, level: new(slog.LevelVar), sieve: out, started: time.Now(), replaced: make(chan struct{}, 1)}
	out.learn(cfg.Secrets()...)
	setLevel(g.level, cfg.Log.Level)
	g.log = newLogger(out, cfg.Log.Format, g.level)
	g.cfg.Store(cfg)
	if cfg.Admin.Listen != "" && !config.Loopback(cfg.Admin.Listen) && cfg.Admin.Token == "" {
		g.madeToken = rand.Text()
	}

	g.registry = prometheus.NewRegistry()
	g.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	g.metrics = telemetry.New(g.registry)
	g.recorder = &recorder{log: g.log, metrics: g.metrics}
	if cfg.Log.Trace.File != "" {
		g.recorder.trace = newTraceFile(cfg.Log.Trace, g.log)
	}

	g.index = index.New(cfg.Cache)
	g.snapshot = &snapshot{path: cfg.Cache.Snapshot, index: g.index, log: g.log, metrics: g.metrics}
	g.snapshot.load()

	var err error
	if g.upstream, err = upstream.New(cfg.Upstream, w.dial); err != nil {
		return nil, fmt.Errorf("build upstream: %w", err)
	}
	g.fleet, err = fleet.New(cfg.Fleet, fleet.Deps{Log: g.log, Transport: g.transport, Watch: g.watch})
	if err != nil {
		return nil, fmt.Errorf("build fleet: %w", err)
	}
	g.rules = newRules(g.log, cfg.Routing, shadows{index: g.index, metrics: g.metrics})
	g.proxy, err = proxy.New(cfg.Proxy, proxy.Deps{
		Fleet: g.fleet, Index: g.index, BlockBytes: cfg.Cache.BlockBytes,
		Rule: g.rules.of, Recorder: g.recorder, Log: g.log,
	})
	if err != nil {
		return nil, fmt.Errorf("build proxy: %w", err)
	}
	g.recorder.models = g.model
	g.metrics.Read(g.sources())
	if err := g.fleet.Apply(cfg.Pools); err != nil {
		return nil, fmt.Errorf("apply pools: %w", err)
	}
	g.settle(cfg)
	g.metrics.ConfigRead(g.started)
	return g, nil
}

// settle puts into force what any configuration may change while the gateway
// runs, the fleet excepted, which may refuse.
func (g *gateway) settle(cfg *config.Config) {
	setLevel(g.level, cfg.Log.Level)
	g.recorder.access.Store(cfg.Log.Access)
	g.rules.set(cfg.Routing)
	g.rules.keep(g.fleet)
	for _, m := range g.fleet.Models() {
		g.metrics.Know(m.Name, m.Aliases...)
	}
	g.cfg.Store(cfg)
}

// adminToken is what the admin side asks for; empty admits this machine only.
func (g *gateway) adminToken() string {
	return cmp.Or(g.cfg.Load().Admin.Token.Reveal(), g.madeToken)
}

// transport is how the fleet reaches an instance.
func (g *gateway) transport(c fleet.InstanceConfig) (http.RoundTripper, error) {
	return g.upstream.Instance(upstream.Target{
		Name: c.Name, URL: c.URL, Key: upstream.NewSecret(c.APIKey.Reveal()), KeyHeader: c.KeyHeader, Rank: c.Rank,
	})
}

// watch follows the fleet: the index must know an instance before a request can
// go there, and forget it before its number names another. It is called under
// the fleet's lock.
func (g *gateway) watch(e fleet.Event) {
	switch e.Kind {
	case fleet.Joined:
		g.index.Join(e.ID, e.Name, g.blocks(e.KVTokens))
		g.metrics.Joined(e.Name)
	case fleet.Capacity:
		g.index.SetCapacity(e.ID, g.blocks(e.KVTokens))
	case fleet.Restarted:
		g.index.Flush(e.ID)
	case fleet.Left:
		g.index.Leave(e.ID)
		g.metrics.Left(e.Name)
	case fleet.Up, fleet.Down: // its cache is as it was
	}
	g.proxy.Watch(e)
}

// blocks is how many blocks of the canonical prompt fill a cache of so many
// tokens, by the usual length of a token: a start for the index to learn from.
func (g *gateway) blocks(tokens int) int {
	var ratio prompt.Ratio // before any token was counted
	size := cmp.Or(g.cfg.Load().Cache.BlockBytes, prefix.DefaultBlockBytes)
	return int(float64(tokens) * ratio.BytesPerToken() / float64(size))
}

// model finds a model of the fleet by any of its names.
func (g *gateway) model(name string) (fleet.Model, bool) {
	p, ok := g.fleet.Pool(name)
	if !ok {
		return fleet.Model{}, false
	}
	return p.Model(), true
}

// sources are what the metrics read at each scrape.
func (g *gateway) sources() telemetry.Sources {
	return telemetry.Sources{
		Instances: g.instances,
		Index: func() telemetry.Index {
			s := g.index.Stats()
			return telemetry.Index{Bytes: s.Bytes, LimitBytes: s.Limit, Blocks: s.Blocks, Runs: s.Runs, Forgotten: s.Forgotten}
		},
		Held:     g.proxy.Held,
		Policies: g.rules.live,
	}
}

// instances yields each instance once for each model that it serves; those that
// serve none any more, because they drain, once under no model.
func (g *gateway) instances(yield func(telemetry.Instance) bool) {
	cached := make(map[prefix.InstanceID]index.InstanceStats)
	for s := range g.index.Instances() {
		if !s.Absent {
			cached[s.ID] = s
		}
	}
	idle := make(map[prefix.InstanceID]telemetry.Instance)
	all := make(map[prefix.InstanceID]telemetry.Instance)
	for v := range g.fleet.All() {
		s := cached[v.ID]
		all[v.ID] = telemetry.Instance{
			Name: v.Name, Model: "none", State: v.State, Breaker: v.Breaker,
			InFlight: v.InFlight, Streaming: int(v.Load.Decoding), QueuedTokens: int(v.Load.Queued),
			PrefillSeconds: v.Speed.PrefillToken, DecodeSeconds: v.Speed.DecodeBase + v.Speed.DecodeCtx*v.Load.Context,
			CapacityBlocks: s.Capacity, ResidentBlocks: s.ResidentBlocks, KnownBlocks: s.KnownBlocks, Flushes: s.Flushes,
		}
		idle[v.ID] = all[v.ID]
	}
	for p := range g.fleet.Pools() {
		for _, c := range p.Candidates(nil, time.Now()) {
			in, ok := all[c.ID]
			if !ok {
				continue // joined since
			}
			delete(idle, c.ID)
			in.Model = p.Name()
			if !yield(in) {
				return
			}
		}
	}
	for _, in := range idle {
		if !yield(in) {
			return
		}
	}
}
