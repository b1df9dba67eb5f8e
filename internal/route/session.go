package route

import (
	"math"

	"github.com/warmroute/warmroute/prefix"
)

// session keeps a conversation on one instance, for clients that name it and engines whose cache cannot be followed. The first
// request of a session, and each without one, is placed by cost. A pin yields when its instance may not be chosen or is too full,
// and moves with the request: the new instance is the warm one afterwards.
type session struct {
	cost *cost
	cfg  Config
	pins []pin // sets of pinWays
}

// pin binds a session to an instance. The table of pins is set-associative: bounded memory, no allocation, and the session
// unused for longest in its set makes room.
type pin struct {
	session uint64 // 0 means empty
	last    int64  // nanoseconds since 1970
	id      prefix.InstanceID
	name    uint64 // NameHash: the number of an instance that has left may be given to another
}

const pinWays = 4

func newSession(cfg Config) *session {
	return &session{cost: newCost(cfg), cfg: cfg, pins: make([]pin, cfg.Sessions)}
}

// Name implements Policy.
func (*session) Name() string { return Session }

// Choose implements Policy.
func (p *session) Choose(r *Request, cs []Candidate) Decision {
	if r.Session == 0 {
		return p.cost.Choose(r, cs)
	}
	slot, q := p.find(r), p.cost.quote(r, cs)
	if slot.session == r.Session {
		if i := p.pinned(slot, cs); i >= 0 && p.hasRoom(&q, &cs[i], cs) {
			slot.last = r.Now.UnixNano()
			total, _ := p.cost.price(&q, &cs[i])
			return Decision{Index: i, Reason: Pinned, Cost: total}
		}
	}
	d := p.cost.Choose(r, cs)
	if d.Index >= 0 && !d.Hold {
		*slot = pin{session: r.Session, last: r.Now.UnixNano(), id: cs[d.Index].ID, name: cs[d.Index].NameHash}
	}
	return d
}

// find is the session's own pin, or the one to be overwritten by it.
func (p *session) find(r *Request) *pin {
	sets := uint64(len(p.pins) / pinWays)
	at := mix(r.Session) % sets * pinWays
	set := p.pins[at : at+pinWays]
	oldest := &set[0]
	for i := range set {
		x := &set[i]
		if x.session == r.Session {
			if r.Now.UnixNano()-x.last > int64(p.cfg.SessionTTL) {
				x.session = 0
			}
			return x
		}
		if x.last < oldest.last {
			oldest = x
		}
	}
	return oldest
}

// pinned is the position of the pin's instance if it may be chosen, or -1.
func (p *session) pinned(x *pin, cs []Candidate) int {
	for i := range cs {
		if cs[i].ID == x.id && cs[i].NameHash == x.name && cs[i].Excluded == Eligible {
			return i
		}
	}
	return -1
}

// hasRoom reports whether the instance can take one more request of its sessions: without a bound pinned sessions fill one
// instance's cache until each evicts the next, and its hit rate collapses.
func (p *session) hasRoom(q *quote, x *Candidate, cs []Candidate) bool {
	if c := float64(x.Speed.KVTokens); c > 0 && x.Load.Used+p.cost.uncached(q, x) > c {
		return false
	}
	if x.Load.InFlight < p.cfg.SessionFloor {
		return true
	}
	return float64(x.Load.InFlight) < math.Ceil(fairShare(cs)*p.cfg.SessionLoad*x.weight())
}
