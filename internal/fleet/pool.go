package fleet

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/prefix"
)

// Pool is the instances that serve one model. It stays the same while the model
// is served; its instances come and go.
type Pool struct {
	name    string
	members atomic.Pointer[[]member] // by ID; never nil
	traits  atomic.Pointer[traits]   // never nil
}

// traits is what may change about a pool besides its members.
type traits struct {
	policy  string
	base    string
	aliases []string
}

// member is an instance in a pool.
type member struct {
	in    *Instance
	model string // what the instance calls the pool's model
}

func newPool(name string) *Pool {
	p := &Pool{name: name}
	p.members.Store(&[]member{})
	p.traits.Store(&traits{})
	return p
}

// Name returns the model's name.
func (p *Pool) Name() string { return p.name }

// Policy returns the name of the pool's policy; empty means the default.
func (p *Pool) Policy() string { return p.traits.Load().policy }

// Base returns the model that this one is a LoRA adapter of, or "".
func (p *Pool) Base() string { return p.traits.Load().base }

// Size returns the number of instances.
func (p *Pool) Size() int { return len(*p.members.Load()) }

// Model describes the pool's model.
func (p *Pool) Model() Model {
	t, members := p.traits.Load(), *p.members.Load()
	m := Model{Name: p.name, Base: t.base, Aliases: t.aliases, Instances: len(members)}
	for _, mb := range members {
		mb.in.mu.Lock()
		if mb.in.wellLocked() {
			m.Ready++
		}
		for _, served := range mb.in.models {
			if served.id == mb.model {
				m.MaxTokens = max(m.MaxTokens, served.maxTokens)
			}
		}
		mb.in.mu.Unlock()
	}
	return m
}

// Candidates appends one candidate for each instance to dst, in the order of
// their IDs, with load, speed and exclusion as of now; Match and Known are left
// at 0. It allocates nothing when dst has room.
//
// When nobody may be chosen and nobody will be within moments, because all are
// broken, the least bad are made eligible rather than refusing everything; the
// lease of such a choice says so.
func (p *Pool) Candidates(dst []route.Candidate, now time.Time) []route.Candidate {
	members := *p.members.Load()
	first := len(dst)
	hope := false
	for _, m := range members {
		c := m.in.candidate(now)
		hope = hope || hopeful(c.Excluded)
		dst = append(dst, c)
	}
	if hope {
		return dst
	}
	least := leastBad(members, now)
	if least == beyond {
		return dst
	}
	for i, m := range members {
		if m.in.badness(now) == least {
			dst[first+i].Excluded = route.Eligible
		}
	}
	return dst
}

// hopeful reports whether an instance may be chosen now or after a pause that it
// asked for itself.
func hopeful(e route.Exclusion) bool {
	return e == route.Eligible || e == route.Full || e == route.Cooling
}

// leastBad returns the badness of the best instances of a pool in which nobody
// is hopeful; beyond when there is nobody to fall back to.
func leastBad(members []member, now time.Time) badness {
	least := beyond
	for _, m := range members {
		b := m.in.badness(now)
		if b == none {
			return beyond
		}
		least = min(least, b)
	}
	return least
}

// Charge is what a request will cost an instance, in tokens.
type Charge struct {
	// Uncached is the part of the prompt that must be computed.
	Uncached int
	// Prompt is the whole prompt.
	Prompt int
	// Output is the answer's expected length. Zero means unknown.
	Output int
}

// Acquire takes one of the instance's places and charges it. It judges anew,
// because the choice was made on a snapshot: refused means to choose again. The
// lease must be released on every path.
func (p *Pool) Acquire(id prefix.InstanceID, c Charge, now time.Time) (*Lease, bool) {
	members := *p.members.Load()
	i, ok := slices.BinarySearchFunc(members, id, func(m member, id prefix.InstanceID) int { return cmp.Compare(m.in.id, id) })
	if !ok {
		return nil, false
	}
	m := members[i]
	l := &Lease{in: m.in, model: m.model, charge: c}
	if m.in.admit(l, now, none) {
		return l, true
	}
	if least := leastBad(members, now); least != beyond && m.in.badness(now) == least {
		return l, m.in.admit(l, now, least)
	}
	return nil, false
}

// OutageKind says why nobody of a pool may be chosen.
type OutageKind uint8

// The kinds of outage, from the one that passes soonest to the one that lasts.
const (
	Available   OutageKind = iota // somebody may be chosen
	Busy                          // all who are well have as much as they take
	Resting                       // all who are well asked for a pause
	Broken                        // breakers are open or probes fail
	Starting                      // nobody has been ready yet, or the pool is empty
	Credentials                   // every credential is refused
)

// String returns the kind as it stands in metrics and logs.
func (k OutageKind) String() string {
	switch k {
	case Available:
		return "available"
	case Busy:
		return "busy"
	case Resting:
		return "resting"
	case Broken:
		return "broken"
	case Starting:
		return "starting"
	case Credentials:
		return "credentials"
	}
	return "unknown"
}

// Outage is why nobody of a pool may be chosen, and when to ask again.
type Outage struct {
	Kind OutageKind
	// RetryAfter is the time until the first instance may be chosen, as far as
	// known; at least a second unless somebody is available.
	RetryAfter time.Duration
}

// Outage tells why a request cannot be placed. An instance that would be used
// only for lack of a better one counts as broken.
func (p *Pool) Outage(now time.Time) Outage {
	out := Outage{Kind: Credentials, RetryAfter: time.Hour}
	members := *p.members.Load()
	if len(members) == 0 {
		return Outage{Kind: Starting, RetryAfter: time.Second}
	}
	for _, m := range members {
		kind, wait := m.in.outage(now)
		if kind < out.Kind {
			out = Outage{Kind: kind, RetryAfter: wait}
		} else if kind == out.Kind {
			out.RetryAfter = min(out.RetryAfter, wait)
		}
	}
	if out.Kind != Available {
		out.RetryAfter = max(out.RetryAfter, time.Second)
	}
	return out
}
