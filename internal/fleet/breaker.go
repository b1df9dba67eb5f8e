package fleet

import "time"

// breakerState is where a breaker stands.
type breakerState uint8

const (
	closed   breakerState = iota // requests pass
	open                         // none pass before until
	halfOpen                     // one real request may try
)

// String returns the state as it stands in metrics and logs.
func (s breakerState) String() string {
	switch s {
	case closed:
		return "closed"
	case open:
		return "open"
	case halfOpen:
		return "half_open"
	}
	return "unknown"
}

// breakerBuckets is how finely the window moves.
const breakerBuckets = 10

// breaker is the circuit breaker of one instance. Its owner locks.
type breaker struct {
	cfg     BreakerConfig
	buckets [breakerBuckets]struct {
		slot    int64
		ok, bad int
	}
	row    int           // failures since the last success
	until  time.Time     // when open ends; zero while closed
	wait   time.Duration // how long it was open the last time
	closed time.Time     // when it closed the last time
	trial  bool          // the one request of half-open is on its way
}

// state returns where the breaker stands.
func (b *breaker) state(now time.Time) breakerState {
	switch {
	case b.until.IsZero():
		return closed
	case now.Before(b.until):
		return open
	}
	return halfOpen
}

// allows reports whether a request may pass: any while closed, one while half
// open.
func (b *breaker) allows(now time.Time) bool {
	switch b.state(now) {
	case closed:
		return true
	case halfOpen:
		return !b.trial
	case open:
	}
	return false
}

// passage is how a request got past the breaker.
type passage uint8

const (
	ordinary passage = iota // the breaker was closed
	trial                   // the one request of half-open
	forced                  // sent while open, because all other instances are worse
)

// start notes a request that is sent and returns how it passes.
func (b *breaker) start(now time.Time) passage {
	if b.until.IsZero() {
		return ordinary
	}
	if b.allows(now) {
		b.trial = true
		return trial
	}
	return forced
}

// bucket returns the counts of the current slot.
func (b *breaker) bucket(now time.Time) (ok, bad *int) {
	slot := now.UnixNano() / max(1, int64(b.cfg.Window)/breakerBuckets)
	p := &b.buckets[slot%breakerBuckets]
	if p.slot != slot {
		p.slot, p.ok, p.bad = slot, 0, 0
	}
	return &p.ok, &p.bad
}

// counts returns the successes and failures within the window.
func (b *breaker) counts(now time.Time) (ok, bad int) {
	slot := now.UnixNano() / max(1, int64(b.cfg.Window)/breakerBuckets)
	for _, p := range b.buckets {
		if p.slot > slot-breakerBuckets && p.slot <= slot {
			ok, bad = ok+p.ok, bad+p.bad
		}
	}
	return ok, bad
}

// success counts a good request. One that passed an open breaker closes it.
func (b *breaker) success(now time.Time, how passage) {
	ok, _ := b.bucket(now)
	*ok++
	b.row = 0
	if how != ordinary && !b.until.IsZero() {
		b.until, b.trial, b.closed = time.Time{}, false, now
		clear(b.buckets[:])
	}
}

// failure counts a bad request. It reports whether the breaker opened.
func (b *breaker) failure(now time.Time, how passage) (opened bool) {
	_, bad := b.bucket(now)
	*bad++
	b.row++
	if b.until.IsZero() {
		if !b.tooBad(now) {
			return false
		}
		if now.Sub(b.closed) > b.cfg.OpenMax {
			b.wait = 0
		}
		b.open(now)
		return true
	}
	// Requests that were under way when it opened, or were forced, may fail too:
	// that is no news. Only a failed trial keeps it open.
	if how == trial {
		b.open(now)
	}
	return false
}

// neutral ends a request that says nothing about the instance: another one may
// be the trial.
func (b *breaker) neutral(how passage) {
	if how == trial {
		b.trial = false
	}
}

// tooBad reports whether one of the two conditions holds.
func (b *breaker) tooBad(now time.Time) bool {
	if b.cfg.Consecutive > 0 && b.row >= b.cfg.Consecutive {
		return true
	}
	ok, bad := b.counts(now)
	return b.cfg.FailureRatio > 0 && ok+bad >= b.cfg.MinRequests &&
		float64(bad) >= b.cfg.FailureRatio*float64(ok+bad)
}

// open opens for twice as long as the last time.
func (b *breaker) open(now time.Time) {
	b.wait = min(max(b.cfg.OpenMin, 2*b.wait), b.cfg.OpenMax)
	b.until, b.trial = now.Add(b.wait), false
}

// retry makes an open breaker half open at once: something proves that the
// instance is another process now.
func (b *breaker) retry(now time.Time) {
	if !b.until.IsZero() {
		b.until, b.trial = now, false
	}
}
