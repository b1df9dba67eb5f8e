package proxy

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/index"
	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/prefix"
)

// order is what is to be placed: one request, as often as it is tried.
type order struct {
	req     route.Request
	rule    Rule
	chain   prefix.Chain
	perTok  float64 // canonical bytes per token of this prompt
	indexed bool    // the index knows of such requests
	thread  uint64  // Candidate.NameHash of the one instance that can go on; 0: any
	since   time.Time
	held    time.Duration       // waited so far
	failed  []prefix.InstanceID // have failed this request
	explain bool

	seat seat // the outcome
}

// seat is the place that an order got.
type seat struct {
	lease     *fleet.Lease    // nil: none
	placement index.Placement // in use when the order is indexed
	decision  route.Decision
	ready     time.Duration // expected from dispatch to first token
	match     int           // tokens believed to be cached there
	best      int           // tokens believed to be cached at the best instance
	// why is nil unless asked for. It is made under the desk's lock, which guards
	// the policy, too.
	why *route.Explanation
}

// desk places the requests of one pool. Match, choice, acquisition and the note
// in the index are one step under its lock, so that each request of a burst sees
// those before it.
type desk struct {
	// Set once by newDesk.
	g       *Gateway
	pool    *fleet.Pool
	kick    chan struct{} // holds a token when the fleet has changed
	lessons lessons

	waiting atomic.Int32 // len of hall

	mu         sync.Mutex // guards below; taken before Instance.mu and the index's lock
	hall       route.Hall[*waiter]
	checked    time.Time         // last recheck
	snapshot   []route.Candidate // the instances at one moment
	candidates []route.Candidate // the snapshot as one order sees it
	held       []index.Held
}

func newDesk(g *Gateway, p *fleet.Pool) *desk {
	return &desk{g: g, pool: p, kick: make(chan struct{}, 1)}
}

// waiter is a held request.
type waiter struct {
	order  *order
	until  time.Time
	ready  chan struct{} // closed when the order has its seat
	ticket *route.Held[*waiter]
}

// recheckEvery is how often held requests look by themselves. What frees an
// instance wakes the desk; this is for what only time brings, such as the end of
// a pause.
const recheckEvery = 500 * time.Millisecond

// A wake-up comes with each first token and each end, so looking through those
// who wait must be short: those in front come first, and all are looked at once
// in a while.
const (
	wakeBudget    = 200 * time.Microsecond
	recheckBudget = 5 * time.Millisecond
)

// place finds the order a seat and waits for one when it should. Without a seat,
// order.seat says why.
func (d *desk) place(ctx context.Context, o *order) {
	for {
		w := d.step(o)
		if w == nil {
			return
		}
		from := time.Now()
		d.wait(ctx, w)
		o.held += time.Since(from)
		d.leave(w)
		if o.seat.lease != nil || ctx.Err() != nil {
			return
		}
	}
}

// step chooses for the order. It returns nil when that is final, with or without
// a seat, and the waiter in the hall when the order is held.
func (d *desk) step(o *order) *waiter {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lookLocked(now)
	d.chooseLocked(o, now)
	until := d.holdUntil(o)
	if o.seat.lease != nil || !now.Before(until) || d.hall.Len() >= d.g.cfg.QueueLength {
		d.settleLocked(o, now)
		return nil
	}
	w := &waiter{order: o, until: until, ready: make(chan struct{})}
	w.ticket = d.hall.Add(w, o.since, d.prefillLocked(o), until)
	d.countLocked()
	// What came free after the snapshot, and before the count, woke nobody.
	d.lookLocked(now)
	if d.chooseLocked(o, now); o.seat.lease != nil {
		d.hall.Remove(w.ticket)
		d.countLocked()
		return nil
	}
	return w
}

// leave takes the waiter out of the hall, if nobody else has.
func (d *desk) leave(w *waiter) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hall.Remove(w.ticket)
	d.countLocked()
}

// wait blocks until the waiter has a seat, its time is up or its client is gone.
func (d *desk) wait(ctx context.Context, w *waiter) {
	timer := time.NewTimer(min(recheckEvery, time.Until(w.until)))
	defer timer.Stop()
	for {
		select {
		case <-w.ready:
			return
		case <-ctx.Done():
			return
		case <-d.kick:
			d.wake(time.Now())
		case <-timer.C:
			now := time.Now()
			if !now.Before(w.until) {
				return
			}
			d.recheck(now)
			timer.Reset(min(recheckEvery, w.until.Sub(now)))
		}
	}
}

// holdUntil is until when the order may be held, by what was decided about it;
// the past when it is not to be held.
func (d *desk) holdUntil(o *order) time.Time {
	switch dec := &o.seat.decision; {
	case dec.Index < 0 && dec.Reason == route.AllFull:
		return o.since.Add(d.g.cfg.QueueTime)
	case dec.Index >= 0 && dec.Hold:
		return o.since.Add(o.rule.MaxHold)
	}
	return time.Time{}
}

// settleLocked takes what there is for an order that is not held any longer: the
// instance that would have been best a moment later, or none.
func (d *desk) settleLocked(o *order, now time.Time) {
	if dec := &o.seat.decision; o.seat.lease == nil && dec.Index >= 0 && dec.Hold {
		dec.Hold = false
		d.takeLocked(o, now)
		if o.seat.why != nil {
			o.seat.why.Hold = false
		}
	}
}

// lookLocked takes the snapshot of the instances from which is chosen, and
// reports whether any may be.
func (d *desk) lookLocked(now time.Time) bool {
	d.snapshot = d.pool.Candidates(d.snapshot[:0], now)
	for i := range d.snapshot {
		if d.snapshot[i].Excluded == route.Eligible {
			return true
		}
	}
	return false
}

// chooseLocked lets the policy choose from the snapshot and takes the seat, if it
// is not to be held.
func (d *desk) chooseLocked(o *order, now time.Time) {
	o.req.Now, o.req.Waited = now, now.Sub(o.since)
	o.req.MaxHold = o.rule.MaxHold
	if o.rule.MaxHold <= 0 {
		o.req.MaxHold = -1
	}
	d.candidates = append(d.candidates[:0], d.snapshot...)
	d.matchLocked(o)
	d.restrictLocked(o)
	for {
		o.seat.decision = o.rule.Policy.Choose(&o.req, d.candidates)
		dec := &o.seat.decision
		if dec.Index < 0 || dec.Hold || d.takeLocked(o, now) {
			break
		}
		// Somebody else took the last place since the snapshot: choose again. Each
		// turn excludes one more candidate, so this ends.
		d.candidates[dec.Index].Excluded = route.Full
	}
	if o.explain {
		o.seat.why = new(route.Explain(o.rule.Policy, &o.req, d.candidates, o.seat.decision))
	}
}

// matchLocked writes into each candidate what it holds of the prompt, in tokens.
func (d *desk) matchLocked(o *order) {
	o.seat.best = 0
	if !o.indexed || len(o.chain) == 0 {
		return
	}
	d.held = d.g.deps.Index.Match(o.chain, d.held)
	perBlock := float64(d.g.deps.BlockBytes) / o.perTok
	for i := range d.candidates {
		c := &d.candidates[i]
		if int(c.ID) >= len(d.held) {
			continue
		}
		h := d.held[c.ID]
		c.Match = min(int(float64(h.Resident)*perBlock), o.req.Tokens)
		c.Known = min(int(float64(h.Known)*perBlock), o.req.Tokens)
		o.seat.best = max(o.seat.best, c.Match)
	}
}

// restrictLocked excludes those that have failed the request, and, when one
// alone can go on with the conversation, the others.
func (d *desk) restrictLocked(o *order) {
	for i := range d.candidates {
		c := &d.candidates[i]
		for _, id := range o.failed {
			if c.ID == id {
				c.Excluded = route.Failed
			}
		}
		if o.thread != 0 && c.NameHash == o.thread && lives(c.Excluded) {
			d.candidates = append(d.candidates[:0], *c)
			return
		}
	}
}

// lives reports whether an instance that may not be chosen now still has what it
// made before.
func lives(e route.Exclusion) bool {
	return e == route.Eligible || e == route.Full || e == route.Cooling || e == route.Failed
}

// takeLocked acquires the chosen instance and reports whether it could.
func (d *desk) takeLocked(o *order, now time.Time) bool {
	c := &d.candidates[o.seat.decision.Index]
	charge := fleet.Charge{Uncached: int(uncached(o, c)), Prompt: o.req.Tokens, Output: o.req.Output}
	lease, ok := d.pool.Acquire(c.ID, charge, now)
	if !ok {
		return false
	}
	o.seat.lease, o.seat.match = lease, c.Match
	o.seat.ready = prefill(o, c) + waiting(o, c)
	if o.indexed {
		d.g.deps.Index.Place(c.ID, o.chain, &o.seat.placement)
	}
	return true
}

// prefillLocked is the expected prefill of the order where it would go to.
func (d *desk) prefillLocked(o *order) time.Duration {
	i := max(o.seat.decision.Index, 0)
	if i >= len(d.candidates) {
		return 0
	}
	return prefill(o, &d.candidates[i])
}

// prefill is the expected prefill of the order on a candidate.
func prefill(o *order, c *route.Candidate) time.Duration {
	n, u := float64(o.req.Tokens), uncached(o, c)
	return seconds(u * (c.Speed.PrefillToken + c.Speed.PrefillQuad*(n-u/2)))
}

// waiting is the expected time that a candidate spends on others before the first
// token of the order.
func waiting(o *order, c *route.Candidate) time.Duration {
	steps := math.Ceil((c.Load.Queued + uncached(o, c)) / float64(max(c.Speed.StepTokens, 1)))
	return seconds(c.Speed.PrefillToken*c.Load.Queued + steps*(c.Speed.DecodeBase+c.Speed.DecodeCtx*c.Load.Context))
}

// uncached is how many tokens of the order a candidate would have to prefill:
// engines do at least the last one again.
func uncached(o *order, c *route.Candidate) float64 { return float64(max(o.req.Tokens-c.Match, 1)) }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// wake offers held requests what there is now.
func (d *desk) wake(now time.Time) {
	if d.waiting.Load() == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.offerLocked(now, wakeBudget)
}

// recheck is a wake-up by time. However many wait, they look once in a while
// together.
func (d *desk) recheck(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now.Sub(d.checked) >= recheckEvery {
		d.checked = now
		d.offerLocked(now, recheckBudget)
	}
}

// release gives a lease back. While others wait, that is one step with the offer
// to them, or a newcomer would get the place that they wait for.
func (d *desk) release(l *fleet.Lease, o fleet.Outcome) {
	now := time.Now()
	if d.waiting.Load() == 0 {
		l.Release(now, o)
	} else {
		d.releaseAndOffer(l, o, now)
	}
	d.g.wake(now, d)
}

func (d *desk) releaseAndOffer(l *fleet.Lease, o fleet.Outcome, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l.Release(now, o)
	d.offerLocked(now, wakeBudget)
}

// offerLocked offers held requests what there is, those in front first, for so
// long.
func (d *desk) offerLocked(now time.Time, budget time.Duration) {
	more := d.lookLocked(now)
	if !more {
		return
	}
	stop := time.Now().Add(budget)
	d.hall.Each(func(w *waiter) bool {
		if !more {
			return false
		}
		d.chooseLocked(w.order, now)
		if w.order.seat.lease == nil {
			more = time.Now().Before(stop)
			return false
		}
		close(w.ready)
		more = d.lookLocked(now)
		return true
	})
	d.countLocked()
}

// countLocked brings the counters of held requests up to date.
func (d *desk) countLocked() {
	n := int32(d.hall.Len())
	d.g.waiting.Add(int64(n - d.waiting.Swap(n)))
}

// nudge lets one held request wake the desk. It never blocks.
func (d *desk) nudge() {
	if d.waiting.Load() == 0 {
		return
	}
	select {
	case d.kick <- struct{}{}:
	default:
	}
}
