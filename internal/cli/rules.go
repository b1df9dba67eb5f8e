package cli

import (
	"cmp"
	"log/slog"
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
	log *slog.Logger

	mu      sync.RWMutex // guards below
	routing config.Routing
	byPool  map[*fleet.Pool]rule
}

// rule is a pool's rule and the name of the policy that it was made of.
type rule struct {
	name string
	proxy.Rule
}

func newRules(log *slog.Logger, r config.Routing) *rules {
	return &rules{log: log, routing: r, byPool: make(map[*fleet.Pool]rule)}
}

// set makes the settings those of all pools. Rules of unchanged settings stay.
func (rs *rules) set(r config.Routing) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if r.Config != rs.routing.Config || r.HashChars != rs.routing.HashChars {
		clear(rs.byPool)
	}
	rs.routing = r
}

// of returns the pool's rule.
func (rs *rules) of(p *fleet.Pool) proxy.Rule {
	rs.mu.RLock()
	r, ok := rs.byPool[p]
	name := cmp.Or(p.Policy(), rs.routing.Policy)
	rs.mu.RUnlock()
	if ok && r.name == name {
		return r.Rule
	}
	return rs.make(p)
}

func (rs *rules) make(p *fleet.Pool) proxy.Rule {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	name := cmp.Or(p.Policy(), rs.routing.Policy)
	if r, ok := rs.byPool[p]; ok && r.name == name {
		return r.Rule
	}
	policy, err := route.New(name, rs.routing.Config)
	if err != nil {
		// Names are validated before they come here, by the same list.
		rs.log.Error("BUG: a validated policy is not known; the default takes its place", slog.String("pool", p.Name()), slog.String("error", err.Error()))
		policy, _ = route.New(route.Cost, rs.routing.Config)
	}
	made := rule{name: name, Rule: proxy.Rule{Policy: policy, MaxHold: maxHold(rs.routing.Config)}}
	if name == route.PrefixHash || name == route.PrefixHashBounded {
		made.HeadChars = rs.routing.HashChars
	}
	rs.byPool[p] = made
	return made.Rule
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
