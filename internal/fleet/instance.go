package fleet

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/prefix"
)

// Instance is one thing that holds one KV cache.
type Instance struct {
	// Set once.
	id   prefix.InstanceID
	key  string // InstanceConfig.key
	name string
	hash uint64 // route.Hash of the name
	conf *Config
	gone chan struct{} // closed when the drain grace is over
	idle chan struct{} // closed when it drains and the last lease has ended

	settings atomic.Pointer[settings] // never nil

	// Guarded by Fleet.mu.
	stop    context.CancelFunc // ends its loops; nil before Run started them
	drained bool               // somebody waits for its end

	mu         sync.Mutex // guards below; taken after Fleet.mu
	ledger     *route.Ledger
	breaker    breaker
	limit      limit
	health     health
	credential credential
	cool       time.Time // not before
	progress   time.Time // last sign of life in a request
	leases     *Lease    // all that are out
	out        int       // how many those are
	inFlight   int       // those since the last restart
	epoch      int       // restarts seen
	draining   bool
	counts     [ClientGone + 1]uint64
	opened     uint64 // times the breaker opened
	engine     Engine // as configured, or as found out
	models     []servedModel
	scrape     scrapeState
}

// settings is what a reload may change about an instance.
type settings struct {
	config InstanceConfig
	sender http.RoundTripper
	origin string // scheme and host of the URL: the sender adds the base's path
}

func newSettings(c InstanceConfig, sender http.RoundTripper) *settings {
	s := &settings{config: c, sender: sender}
	if u, err := ParseURL(c.URL); err == nil {
		s.origin = u.Scheme + "://" + u.Host
	}
	return s
}

func newInstance(id prefix.InstanceID, c InstanceConfig, sender http.RoundTripper, prior route.Speed, conf *Config) *Instance {
	in := &Instance{
		id:      id,
		key:     c.key(),
		name:    c.Name,
		hash:    route.Hash(c.Name),
		conf:    conf,
		gone:    make(chan struct{}),
		idle:    make(chan struct{}),
		ledger:  route.NewLedger(prior),
		breaker: breaker{cfg: conf.Breaker},
		engine:  c.Engine,
	}
	in.health.ready = conf.Health.Interval == 0
	in.health.everReady = in.health.ready
	in.settings.Store(newSettings(c, sender))
	return in
}

// ID returns the instance's number.
func (in *Instance) ID() prefix.InstanceID { return in.id }

// Name returns the instance's name.
func (in *Instance) Name() string { return in.name }

// Config returns the settings as of the last Apply.
func (in *Instance) Config() InstanceConfig { return in.settings.Load().config }

// Engine returns the kind of engine, as configured or as found out; Auto while
// it is not known.
func (in *Instance) Engine() Engine {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.engine
}

// RoundTrip sends a request to the instance. It takes no place: see
// [Pool.Acquire].
func (in *Instance) RoundTrip(req *http.Request) (*http.Response, error) {
	return in.settings.Load().sender.RoundTrip(req)
}

// Gone is closed when the instance was removed and its drain grace is over:
// requests that still run there should be ended.
func (in *Instance) Gone() <-chan struct{} { return in.gone }

// health is what probes found.
type health struct {
	ready     bool
	everReady bool
	good, bad int    // in a row
	refused   bool   // a probe found nobody listening since the last good one
	reason    string // of the last bad probe
	last      time.Time
	took      time.Duration
}

// credential is what answers said about the gateway's key.
type credential struct {
	dead  bool
	until time.Time     // no probe revives it before
	wait  time.Duration // how long that was
}

// The pause before a probe may revive a refused credential. A key without
// credit still lists models, so revival by itself proves little.
const (
	credentialWait    = 30 * time.Second
	credentialWaitMax = 10 * time.Minute
)

// badness orders instances that may not be chosen by how much they may be
// trusted all the same.
type badness uint8

const (
	none   badness = iota // may be chosen, or soon
	opened                // breaker open, probes pass
	unwell                // was ready once, probes fail now
	beyond                // never: drains, starts, sleeps, refuses our key
)

// wellLocked reports whether the instance takes part as far as its health goes.
func (in *Instance) wellLocked() bool {
	return in.health.ready && !in.draining && !in.scrape.facts.Asleep && !in.credential.dead
}

// exclusionLocked says why the instance may not be chosen.
func (in *Instance) exclusionLocked(now time.Time) route.Exclusion {
	switch {
	case in.draining:
		return route.Draining
	case !in.health.ready || in.scrape.facts.Asleep:
		return route.Unready
	case in.credential.dead || !in.breaker.allows(now):
		return route.Open
	case now.Before(in.cool):
		return route.Cooling
	case in.fullLocked():
		return route.Full
	}
	return route.Eligible
}

func (in *Instance) fullLocked() bool {
	bound := in.settings.Load().config.MaxInflight
	return bound > 0 && in.inFlight >= bound || in.limit.reached(in.inFlight)
}

func (in *Instance) badnessLocked(now time.Time) badness {
	switch ex := in.exclusionLocked(now); {
	case hopeful(ex):
		return none
	case in.draining || in.credential.dead || in.scrape.facts.Asleep || !in.health.everReady || in.fullLocked():
		return beyond
	case ex == route.Open:
		return opened
	}
	return unwell
}

func (in *Instance) badness(now time.Time) badness {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.badnessLocked(now)
}

// candidate describes the instance to a policy.
func (in *Instance) candidate(now time.Time) route.Candidate {
	c := route.Candidate{ID: in.id, Name: in.name, NameHash: in.hash, Weight: in.settings.Load().config.Weight}
	in.mu.Lock()
	defer in.mu.Unlock()
	c.Excluded = in.exclusionLocked(now)
	c.Load = in.ledger.Load(now)
	c.Speed = in.ledger.Speed()
	return c
}

// outage says why the instance may not be chosen and how long that lasts.
func (in *Instance) outage(now time.Time) (OutageKind, time.Duration) {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch in.exclusionLocked(now) {
	case route.Eligible:
		return Available, 0
	case route.Full:
		return Busy, 0
	case route.Cooling:
		return Resting, in.cool.Sub(now)
	case route.Open:
		if in.credential.dead {
			return Credentials, in.credential.until.Sub(now)
		}
		return Broken, in.breaker.until.Sub(now)
	case route.Failed, route.Draining, route.Unready:
	}
	if in.health.everReady && !in.draining {
		return Broken, in.conf.Health.Interval
	}
	return Starting, in.conf.Health.Interval
}

// admit enters the lease, unless the instance is excluded for another reason
// than the badness that the caller has decided to accept.
func (in *Instance) admit(l *Lease, now time.Time, accept badness) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.exclusionLocked(now) != route.Eligible {
		if accept == none || in.badnessLocked(now) != accept {
			return false
		}
		l.failOpen = true
	}
	l.how = in.breaker.start(now)
	l.epoch = in.epoch
	l.ticket = in.ledger.Dispatch(now, l.charge.Uncached, l.charge.Prompt, l.charge.Output)
	l.next = in.leases
	if in.leases != nil {
		in.leases.prev = l
	}
	in.leases = l
	in.out++
	in.inFlight++
	return true
}

// leaveLocked takes the lease out of everything that counts it.
func (in *Instance) leaveLocked(l *Lease, now time.Time) {
	in.ledger.End(now, &l.ticket)
	if l.prev != nil {
		l.prev.next = l.next
	} else {
		in.leases = l.next
	}
	if l.next != nil {
		l.next.prev = l.prev
	}
	l.prev, l.next = nil, nil
	in.out--
	if l.epoch == in.epoch {
		in.inFlight--
	}
	if in.draining && in.out == 0 {
		close(in.idle)
	}
}

// judgeLocked tells breaker, limit and counters how a request ended. An unknown
// result counts as a transient fault. What died with an earlier process says
// nothing about this one.
func (in *Instance) judgeLocked(l *Lease, now time.Time, o Outcome) {
	if o.Result == 0 || o.Result > ClientGone {
		o.Result = TransientFault
	}
	in.counts[o.Result]++
	if l.epoch != in.epoch {
		return
	}
	switch o.Result {
	case Served:
		if !l.first {
			in.breaker.success(now, l.how)
		}
		in.limit.served(now, in.inFlight+1)
		in.progress = now
		in.credential = credential{}
	case TransientFault, Truncated:
		if in.breaker.failure(now, l.how) {
			in.opened++
		}
		if o.RetryAfter > 0 {
			in.coolLocked(now, o.RetryAfter)
		}
	case CapacityFault:
		in.breaker.neutral(l.how)
		in.coolLocked(now, o.RetryAfter)
		if in.conf.AdaptiveLimit {
			in.limit.full(now, in.inFlight+1)
		}
	case CredentialFault:
		in.breaker.neutral(l.how)
		in.refuseKeyLocked(now)
	case ClientFault, ClientGone:
		in.breaker.neutral(l.how)
	}
}

// coolLocked leaves the instance alone for as long as it asked. A shorter pause
// never ends a longer one.
func (in *Instance) coolLocked(now time.Time, asked time.Duration) {
	if asked <= 0 {
		asked = in.conf.CoolDown
	}
	until := now.Add(min(asked, in.conf.MaxCoolDown))
	if until.After(in.cool) {
		in.cool = until
	}
}

// refuseKeyLocked notes that the instance refuses the gateway's key. Requests
// that were under way with the same key are no news.
func (in *Instance) refuseKeyLocked(now time.Time) {
	if in.credential.dead {
		return
	}
	wait := min(max(credentialWait, 2*in.credential.wait), credentialWaitMax)
	in.credential = credential{dead: true, wait: wait, until: now.Add(wait)}
}

// reviveKey gives the credential another try after a probe used it with success.
func (in *Instance) reviveKey(now time.Time) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.credential.dead && !now.Before(in.credential.until) {
		in.credential.dead = false
	}
}

// keyIsDue reports whether a refused credential should be probed.
func (in *Instance) keyIsDue(now time.Time) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.credential.dead && !now.Before(in.credential.until)
}

// forgive gives a refused credential another try, because a reload may have
// brought a new one.
func (in *Instance) forgive() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.credential = credential{}
}

// restarted starts everything that depends on the engine's process at 0. Its
// requests died with it: their leases stay out until their owners notice, and
// then change nothing.
func (in *Instance) restarted(now time.Time) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for l := in.leases; l != nil; l = l.next {
		in.ledger.End(now, &l.ticket)
	}
	in.ledger.Restart()
	in.epoch++
	in.inFlight = 0
	in.limit = limit{}
	in.cool = time.Time{}
	in.breaker.retry(now)
}

// retire takes the instance out of service.
func (in *Instance) retire() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.draining = true
	if in.out == 0 {
		close(in.idle)
	}
}
