package cli

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/warmroute/warmroute/internal/config"
	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/proxy"
	"github.com/warmroute/warmroute/internal/route"
)

// rules gives each pool its policy. A policy may keep state (pinned sessions,
// turns of a round robin), so a pool keeps the one it has until its name or the
// settings change.
type rules struct {
	// Set once, before the rules are used.
	log     *slog.Logger
	shadows shadows

	mu      sync.RWMutex // guards below
	routing config.Routing
	byPool  map[*fleet.Pool]rule
}

// rule is a pool's rule and what it was made of.
type rule struct {
	name  string // of the configured policy
	stale bool   // the settings of its shadows have changed
	proxy.Rule
	*contest // nil: nothing runs beside the policy
}

func newRules(log *slog.Logger, r config.Routing, s shadows) *rules {
	return &rules{log: log, routing: r, shadows: s, byPool: make(map[*fleet.Pool]rule)}
}

// set makes the settings those of all pools. Rules of unchanged settings stay.
func (rs *rules) set(r config.Routing) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if r.Config != rs.routing.Config || r.HashChars != rs.routing.HashChars {
		clear(rs.byPool)
	}
	if !sameShadows(&r, &rs.routing) {
		for p, old := range rs.byPool {
			old.stale = true
			rs.byPool[p] = old
		}
	}
	rs.routing = r
}

func sameShadows(a, b *config.Routing) bool {
	return slices.Equal(a.Shadow, b.Shadow) && a.ShadowSample == b.ShadowSample && a.ShadowMemory == b.ShadowMemory && a.Adaptive == b.Adaptive
}

// of returns the pool's rule.
func (rs *rules) of(p *fleet.Pool) proxy.Rule {
	rs.mu.RLock()
	r, ok := rs.byPool[p]
	name := cmp.Or(p.Policy(), rs.routing.Policy)
	rs.mu.RUnlock()
	if ok && r.name == name && !r.stale {
		return r.Rule
	}
	return rs.make(p)
}

func (rs *rules) make(p *fleet.Pool) proxy.Rule {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	name := cmp.Or(p.Policy(), rs.routing.Policy)
	old, ok := rs.byPool[p]
	if ok && old.name == name && !old.stale {
		return old.Rule
	}
	made := rule{name: name, Rule: proxy.Rule{MaxHold: maxHold(rs.routing.Config)}}
	if ok && old.name == name && !old.moved() {
		made.Policy = old.Policy
	} else {
		made.Policy = rs.policy(p, arm{name: name, policy: name, config: rs.routing.Config})
	}
	arms := armsOf(name, &rs.routing)
	if len(arms) > 1 {
		made.contest = rs.contestLocked(p, arms)
		made.Shadow = made.shadow
	}
	if slices.ContainsFunc(arms, arm.hashes) {
		made.HeadChars = rs.routing.HashChars
	}
	rs.byPool[p] = made
	return made.Rule
}

// policy makes the policy of an arm.
func (rs *rules) policy(p *fleet.Pool, a arm) route.Policy {
	policy, err := route.New(a.policy, a.config)
	if err != nil {
		// Names are validated before they come here, by the same list.
		rs.log.Error("BUG: a validated policy is not known; the default takes its place", slog.String("pool", p.Name()), slog.String("error", err.Error()))
		policy, _ = route.New(route.Cost, a.config)
	}
	return policy
}

// keep drops the rules of pools that are gone.
func (rs *rules) keep(f *fleet.Fleet) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for p := range rs.byPool {
		if now, ok := f.Pool(p.Name()); !ok || now != p {
			delete(rs.byPool, p)
		}
	}
}

// maxHold is the bound of late binding: a quarter of the time to first token
// that is aimed at, if there is an aim.
func maxHold(c route.Config) time.Duration {
	if c.TTFTObjective > 0 {
		return min(c.MaxHold, c.TTFTObjective/4)
	}
	return c.MaxHold
}
