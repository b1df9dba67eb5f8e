package fleet

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/prefix"
)

// plan is what a configuration comes to with what the sources have found.
type plan struct {
	wanted  []InstanceConfig // in one form and unique by key
	parts   [][]part         // of each group
	refused []string         // instances that cannot be, and why
}

// part is an instance in a group.
type part struct {
	key    string
	model  string   // in a group with a model: what the instance calls it
	models []string // in a group without: what it serves; nil means to ask it
}

// makePlan puts groups and sources together. Faults of single instances, which
// only sources can bring, leave those instances out.
func makePlan(groups []PoolConfig, sources map[string]*source) plan {
	p := plan{parts: make([][]part, len(groups))}
	names := make(map[string]string) // instance name -> key
	for i, g := range groups {
		list := slices.Clone(g.Instances)
		for _, spec := range sourceSpecs(g) {
			list = append(list, sources[spec.key()].found...)
		}
		for _, c := range list {
			p.add(i, g, c.with(g.Defaults), names)
		}
	}
	return p
}

func (p *plan) add(group int, g PoolConfig, c InstanceConfig, names map[string]string) {
	c, err := c.normal()
	if err != nil {
		p.refused = append(p.refused, c.Name+": "+err.Error())
		return
	}
	key := c.key()
	if old, ok := names[c.Name]; ok && old != key {
		p.refused = append(p.refused, c.Name+": the name belongs to another instance")
		return
	} else if !ok {
		names[c.Name] = key
		p.wanted = append(p.wanted, c)
	}
	if slices.ContainsFunc(p.parts[group], func(q part) bool { return q.key == key }) {
		return
	}
	p.parts[group] = append(p.parts[group], part{
		key:    key,
		model:  cmp.Or(c.Model, g.UpstreamModel, g.Model),
		models: c.Models,
	})
}

// refresh follows what a source has found. What cannot be sent to is left out,
// and said.
func (f *Fleet) refresh(s *source, found []InstanceConfig) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sources[s.key()] != s {
		return // the configuration has dropped it meanwhile
	}
	if reflect.DeepEqual(s.found, found) && len(f.plan.refused) == 0 {
		return
	}
	s.found = found
	next := makePlan(f.groups, f.sources)
	senders := make(map[string]http.RoundTripper)
	next.wanted = slices.DeleteFunc(next.wanted, func(c InstanceConfig) bool {
		if in := f.instances[c.key()]; in != nil && reflect.DeepEqual(in.Config(), c) {
			return false
		}
		rt, err := f.deps.Transport(c)
		if err != nil {
			next.refused = append(next.refused, c.Name+": "+err.Error())
			return f.instances[c.key()] == nil
		}
		senders[c.key()] = rt
		return false
	})
	f.followLocked(next, senders, time.Now())
}

// followLocked makes the instances and pools those of the plan.
func (f *Fleet) followLocked(next plan, senders map[string]http.RoundTripper, now time.Time) {
	for _, why := range next.refused {
		if slices.Contains(f.plan.refused, why) {
			continue // said before
		}
		f.deps.Log.LogAttrs(context.Background(), slog.LevelWarn, "instance refused", slog.String("reason", why))
	}
	f.plan = next
	keep := make(map[string]bool, len(next.wanted))
	for _, c := range next.wanted {
		key := c.key()
		keep[key] = true
		if in, ok := f.instances[key]; ok {
			if rt := senders[key]; rt != nil {
				f.adjustLocked(in, c, rt, now)
			}
			continue
		}
		if rt := senders[key]; rt != nil {
			f.joinLocked(c, rt)
		}
	}
	var gone []*Instance
	for key, in := range f.instances {
		if !keep[key] {
			delete(f.instances, key)
			gone = append(gone, in)
		}
	}
	slices.SortFunc(gone, func(a, b *Instance) int { return cmp.Compare(a.id, b.id) })
	f.leaving = append(f.leaving, gone...)
	f.rebuildLocked()
	for _, in := range gone {
		if in.stop != nil {
			in.stop()
		}
		in.retire()
		f.deps.Log.LogAttrs(context.Background(), slog.LevelInfo, "instance drains", slog.String("instance", in.name))
	}
	f.wake()
}

// joinLocked adds an instance under the lowest free ID.
func (f *Fleet) joinLocked(c InstanceConfig, sender http.RoundTripper) {
	id := slices.Index(f.slots, nil)
	if id < 0 {
		id = len(f.slots)
		f.slots = append(f.slots, nil)
	}
	in := newInstance(prefix.InstanceID(id), c, sender, f.priorLocked(c), &f.cfg)
	f.slots[id] = in
	f.instances[in.key] = in
	f.emitLocked(in, Event{Kind: Joined, KVTokens: c.KVTokens})
}

// adjustLocked gives an instance that stays its new settings.
func (f *Fleet) adjustLocked(in *Instance, c InstanceConfig, sender http.RoundTripper, now time.Time) {
	old := in.Config()
	in.settings.Store(newSettings(c, sender))
	if old.Engine != c.Engine {
		in.mu.Lock()
		in.engine = c.Engine
		in.scrape.forget()
		in.mu.Unlock()
	}
	if c.KVTokens > 0 && c.KVTokens != old.KVTokens {
		in.mu.Lock()
		in.ledger.Correct(now, route.Facts{KVUsed: -1, KVTokens: c.KVTokens})
		in.mu.Unlock()
		f.emitLocked(in, Event{Kind: Capacity, KVTokens: c.KVTokens})
	}
}

// priorLocked is the speed assumed of a new instance: its profile's, or the
// median of those in its groups of which something is known.
func (f *Fleet) priorLocked(c InstanceConfig) route.Speed {
	prior, ok := route.Prior(c.Profile)
	if !ok {
		prior = f.medianLocked(c.key())
	}
	if c.KVTokens > 0 {
		prior.KVTokens = c.KVTokens
	}
	return prior
}

func (f *Fleet) medianLocked(key string) route.Speed {
	var known []route.Speed
	for _, parts := range f.plan.parts {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.key == key }) {
			continue
		}
		for _, p := range parts {
			if s, ok := f.speedLocked(p.key); ok {
				known = append(known, s)
			}
		}
	}
	if len(known) == 0 {
		return route.Speed{}
	}
	slices.SortStableFunc(known, func(a, b route.Speed) int { return cmp.Compare(a.PrefillToken, b.PrefillToken) })
	s := known[(len(known)-1)/2]
	s.KVTokens = 0
	return s
}

// provenServed is how many first tokens make a measured speed worth copying.
const provenServed = 32

// speedLocked returns the speed of an instance of the plan, when a profile or
// enough requests tell it.
func (f *Fleet) speedLocked(key string) (route.Speed, bool) {
	if in, ok := f.instances[key]; ok {
		in.mu.Lock()
		defer in.mu.Unlock()
		if in.ledger.Served() >= provenServed {
			return in.ledger.Speed(), true
		}
	}
	return route.Prior(key[strings.LastIndexByte(key, 0)+1:])
}

// rebuildLocked makes the pools anew from the plan and from the models that
// instances list.
func (f *Fleet) rebuildLocked() {
	b := builder{f: f, old: f.pools.Load(), pools: make(map[string]*draft)}
	for i, g := range f.groups {
		if g.Model != "" {
			b.named(g, f.plan.parts[i])
		}
	}
	for i, g := range f.groups {
		switch {
		case g.Model == "":
			b.asked(g, f.plan.parts[i])
		case g.Adapters:
			b.adapters(g, f.plan.parts[i])
		}
	}
	f.pools.Store(b.directory())
}

// draft is a pool in the making.
type draft struct {
	traits  traits
	named   bool // by the configuration: what instances list does not add to it
	members []member
}

type builder struct {
	f     *Fleet
	old   *directory
	pools map[string]*draft

	discovering bool
}

func (b *builder) draft(name string, t traits) *draft {
	d := b.pools[name]
	if d == nil {
		d = &draft{traits: t}
		b.pools[name] = d
	}
	return d
}

func (d *draft) add(in *Instance, model string) {
	if !slices.ContainsFunc(d.members, func(m member) bool { return m.in == in }) {
		d.members = append(d.members, member{in: in, model: model})
	}
}

func (b *builder) named(g PoolConfig, parts []part) {
	d := b.draft(g.Model, traits{policy: g.Policy, aliases: g.Aliases})
	d.named = true
	for _, p := range parts {
		if in := b.f.instances[p.key]; in != nil {
			d.add(in, p.model)
		}
	}
}

func (b *builder) asked(g PoolConfig, parts []part) {
	heard := false
	defer func() { b.discovering = b.discovering || !heard }()
	for _, p := range parts {
		in := b.f.instances[p.key]
		if in == nil {
			continue
		}
		served := in.served()
		if p.models != nil {
			served = nil
			for _, name := range p.models {
				served = append(served, servedModel{id: name})
			}
		}
		heard = heard || len(served) > 0
		for _, m := range served {
			b.offer(g, in, m, m.parent)
		}
	}
}

func (b *builder) adapters(g PoolConfig, parts []part) {
	for _, p := range parts {
		in := b.f.instances[p.key]
		if in == nil {
			continue
		}
		for _, m := range in.served() {
			if m.parent != "" && m.parent == p.model {
				b.offer(g, in, m, g.Model)
			}
		}
	}
}

// offer adds an instance to the pool of a model that it lists.
func (b *builder) offer(g PoolConfig, in *Instance, m servedModel, base string) {
	if b.taken(m.id) {
		return
	}
	b.draft(m.id, traits{policy: g.Policy, base: base}).add(in, m.id)
}

// taken reports whether the configuration gives the name to a pool.
func (b *builder) taken(name string) bool {
	for pool, d := range b.pools {
		if d.named && (pool == name || slices.Contains(d.traits.aliases, name)) {
			return true
		}
	}
	return false
}

func (b *builder) directory() *directory {
	dir := &directory{byName: make(map[string]*Pool, len(b.pools)), discovering: b.discovering}
	for name, d := range b.pools {
		p := b.old.byName[name]
		if p == nil || p.name != name {
			p = newPool(name)
		}
		slices.SortFunc(d.members, func(x, y member) int { return cmp.Compare(x.in.id, y.in.id) })
		p.members.Store(&d.members)
		p.traits.Store(&d.traits)
		dir.list = append(dir.list, p)
		dir.byName[name] = p
		for _, a := range d.traits.aliases {
			dir.byName[a] = p
		}
	}
	// A pool that is gone may still be held by a request: it has nobody to give.
	for _, p := range b.old.list {
		if b.pools[p.name] == nil {
			p.members.Store(&[]member{})
		}
	}
	slices.SortFunc(dir.list, func(a, b *Pool) int { return cmp.Compare(a.name, b.name) })
	return dir
}

// drain waits until a removed instance has no leases, at most for the grace, and
// then lets go of it. Its ID stays taken while leases are out: their owners
// still use it.
func (f *Fleet) drain(ctx context.Context, in *Instance) {
	grace := time.NewTimer(f.cfg.DrainGrace)
	defer grace.Stop()
	select {
	case <-in.idle:
	case <-grace.C:
	case <-ctx.Done():
		return
	}
	close(in.gone)
	f.mu.Lock()
	f.emitLocked(in, Event{Kind: Left})
	f.mu.Unlock()
	select {
	case <-in.idle:
	case <-ctx.Done():
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.slots[in.id] = nil
	f.leaving = slices.DeleteFunc(f.leaving, func(other *Instance) bool { return other == in })
}
