package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmroute/warmroute/prefix"
)

// Deps is what a Fleet needs from the rest of the program.
type Deps struct {
	// Log takes changes of state. Nil discards them.
	Log *slog.Logger
	// Transport returns the RoundTripper that sends to an instance. It is given
	// requests whose URL path is below the instance's base, and sees to the base
	// URL and the credential. It is asked again on each Apply, because
	// credentials change. It must not be nil.
	Transport func(InstanceConfig) (http.RoundTripper, error)
	// Watch is told what happens to instances, in order, while the Fleet's lock
	// is held: it must return soon and must not call the Fleet. Nil ignores it.
	Watch func(Event)
	// Resolver looks up names. Nil means net.DefaultResolver.
	Resolver Resolver
}

// EventKind is what happened to an instance.
type EventKind uint8

// The events. Joined comes before the instance is a candidate anywhere, and Left
// after its last lease, or after the drain grace; its ID then may name another.
const (
	Joined    EventKind = iota + 1
	Left                // it is gone
	Restarted           // its process is another one: its cache is empty
	Capacity            // its engine told the capacity of its KV cache
	Up                  // it became ready
	Down                // it became unready
)

// String returns the kind as it stands in metrics and logs.
func (k EventKind) String() string {
	switch k {
	case Joined:
		return "joined"
	case Left:
		return "left"
	case Restarted:
		return "restarted"
	case Capacity:
		return "capacity"
	case Up:
		return "up"
	case Down:
		return "down"
	}
	return "unknown"
}

// Event is one thing that happened to an instance.
type Event struct {
	Kind EventKind
	ID   prefix.InstanceID
	Name string
	// KVTokens is the capacity of the KV cache in tokens, 0 when unknown. Set for
	// Joined and Capacity.
	KVTokens int
	// Reason is set for Restarted (start_time, counters or refused) and for Down
	// (what the last probe found, for people).
	Reason string
}

// Fleet keeps all instances.
type Fleet struct {
	cfg      Config
	deps     Deps
	pollOnly bool // files are polled, never watched; for tests on fake time

	running atomic.Bool
	changed chan struct{} // holds one token when Run has something to start
	pools   atomic.Pointer[directory]

	mu        sync.Mutex // guards below; taken before Instance.mu
	groups    []PoolConfig
	sources   map[string]*source
	plan      plan                 // what groups and sources come to
	instances map[string]*Instance // by InstanceConfig.key; the ones in service
	leaving   []*Instance          // draining, or given up with leases still out
	slots     []*Instance          // by ID; nil is free
}

// errRunning says that Run was called before.
var errRunning = errors.New("fleet runs already, or did")

// New returns a Fleet without instances; see Apply and Run. It fails when
// Config.Validate finds faults or Deps.Transport is missing.
func New(cfg Config, deps Deps) (*Fleet, error) {
	if err := errors.Join(cfg.Validate()...); err != nil {
		return nil, err
	}
	if deps.Transport == nil {
		return nil, errors.New("BUG: fleet.Deps.Transport is nil")
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Watch == nil {
		deps.Watch = func(Event) {}
	}
	if deps.Resolver == nil {
		deps.Resolver = defaultResolver()
	}
	f := &Fleet{
		cfg:       cfg,
		deps:      deps,
		changed:   make(chan struct{}, 1),
		sources:   make(map[string]*source),
		instances: make(map[string]*Instance),
	}
	f.pools.Store(&directory{})
	return f, nil
}

// Apply makes pools the configuration. Instances that stay keep their ledger,
// breaker, counters and ID; removed ones drain. On an error nothing changes; it
// joins all faults. It may be called before Run and while it runs.
func (f *Fleet) Apply(pools []PoolConfig) error {
	if err := errors.Join(ValidatePools(pools)...); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	groups := slices.Clone(pools)
	sources := f.sourcesLocked(groups)
	plan := makePlan(groups, sources)
	senders, err := f.senders(plan.wanted)
	if err != nil {
		return err
	}
	f.groups = groups
	f.swapSourcesLocked(sources)
	f.followLocked(plan, senders, time.Now())
	for _, in := range f.instances {
		in.forgive()
	}
	return nil
}

// Run watches instances and sources until ctx is done, waits for everything it
// started and returns the context's cause. It runs once.
func (f *Fleet) Run(ctx context.Context) error {
	if !f.running.CompareAndSwap(false, true) {
		return errRunning
	}
	var wg sync.WaitGroup
	for {
		f.start(ctx, &wg)
		select {
		case <-f.changed:
		case <-ctx.Done():
			wg.Wait()
			return context.Cause(ctx)
		}
	}
}

// start starts the loops of what is new.
func (f *Fleet) start(ctx context.Context, wg *sync.WaitGroup) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, in := range f.instances {
		if in.stop != nil {
			continue
		}
		own, cancel := context.WithCancel(ctx)
		in.stop = cancel
		wg.Go(func() { f.probeLoop(own, in) })
		wg.Go(func() { f.scrapeLoop(own, in) })
	}
	for _, in := range f.leaving {
		if in.drained {
			continue
		}
		in.drained = true
		wg.Go(func() { f.drain(ctx, in) })
	}
	for _, s := range f.sources {
		if s.stop != nil {
			continue
		}
		own, cancel := context.WithCancel(ctx)
		s.stop = cancel
		wg.Go(func() { f.follow(own, s) })
	}
}

// wake lets Run look for what is new.
func (f *Fleet) wake() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// notify passes an event on, unless the instance has left.
func (f *Fleet) notify(in *Instance, e Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.instances[in.key] != in {
		return
	}
	f.emitLocked(in, e)
}

func (f *Fleet) emitLocked(in *Instance, e Event) {
	e.ID, e.Name = in.id, in.name
	f.deps.Watch(e)
	level := slog.LevelInfo
	if e.Kind == Down || e.Kind == Restarted {
		level = slog.LevelWarn
	}
	attrs := []slog.Attr{slog.String("event", e.Kind.String()), slog.String("instance", in.name), slog.Int("id", int(in.id))}
	if e.KVTokens > 0 {
		attrs = append(attrs, slog.Int("kv_tokens", e.KVTokens))
	}
	if e.Reason != "" {
		attrs = append(attrs, slog.String("reason", e.Reason))
	}
	f.deps.Log.LogAttrs(context.Background(), level, "instance changed", attrs...)
}

// directory is the pools of one moment.
type directory struct {
	byName map[string]*Pool // by model and alias
	list   []*Pool          // by name
	// discovering says that a group of instances has not named any model yet.
	discovering bool
}

// Pool returns the pool that serves a model, by name or alias.
func (f *Fleet) Pool(model string) (*Pool, bool) {
	p, ok := f.pools.Load().byName[model]
	return p, ok
}

// Pools yields all pools in the order of their names.
func (f *Fleet) Pools() iter.Seq[*Pool] { return slices.Values(f.pools.Load().list) }

// Model is one model that the fleet serves.
type Model struct {
	Name string `json:"name"`
	// Base is the model that this one is a LoRA adapter of; empty for others.
	Base    string   `json:"base,omitzero"`
	Aliases []string `json:"aliases,omitzero"`
	// MaxTokens is the longest context that an instance declared; 0 when none did.
	MaxTokens int `json:"max_tokens,omitzero"`
	// Instances counts the pool's instances, Ready those that may be chosen as
	// far as health goes.
	Instances int `json:"instances"`
	Ready     int `json:"ready"`
}

// Models lists the models in the order of their names.
func (f *Fleet) Models() []Model {
	var models []Model
	for p := range f.Pools() {
		models = append(models, p.Model())
	}
	return models
}

// Ready reports whether at least one instance of one pool is well.
func (f *Fleet) Ready() bool {
	for p := range f.Pools() {
		if p.Model().Ready > 0 {
			return true
		}
	}
	return false
}

// Discovering reports whether a group without a model has not heard from any of
// its instances yet, so that a model nobody knows may still turn up.
func (f *Fleet) Discovering() bool { return f.pools.Load().discovering }

// All yields the state of each instance, in the order of their IDs, those that
// drain included.
func (f *Fleet) All() iter.Seq[View] {
	f.mu.Lock()
	all := slices.AppendSeq(slices.Clone(f.leaving), maps.Values(f.instances))
	f.mu.Unlock()
	slices.SortFunc(all, func(a, b *Instance) int { return cmp.Compare(a.id, b.id) })
	return func(yield func(View) bool) {
		for _, in := range all {
			if !yield(in.View(time.Now())) {
				return
			}
		}
	}
}

// senders asks for a transport for each wanted instance and joins what fails.
func (f *Fleet) senders(wanted []InstanceConfig) (map[string]http.RoundTripper, error) {
	senders := make(map[string]http.RoundTripper, len(wanted))
	var errs []error
	for _, c := range wanted {
		rt, err := f.deps.Transport(c)
		if err != nil {
			errs = append(errs, fmt.Errorf("instance %s: %w", c.Name, err))
			continue
		}
		senders[c.key()] = rt
	}
	return senders, errors.Join(errs...)
}
