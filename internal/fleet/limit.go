package fleet

import "time"

// Constants of the adaptive limit. Additive increase and multiplicative decrease
// as in TCP: it settles just below what the instance accepts.
const (
	limitFloor    = 4                // never less: an instance that takes nothing cannot show that it recovered
	limitShrink   = 0.8              // of the requests in flight, when it says it is full
	limitForget   = 60 * time.Second // without a word of being full, the limit goes away
	limitPatience = time.Second      // a burst of refusals is one word
)

// limit is the number of requests that an instance is believed to take at once.
// Its owner locks; the zero value limits nothing.
type limit struct {
	max  float64   // 0 means no limit
	last time.Time // when the instance last said that it is full
}

// full notes that the instance refused a request because it is full.
func (l *limit) full(now time.Time, inFlight int) {
	if l.max > 0 && now.Sub(l.last) < limitPatience {
		return
	}
	l.last = now
	bound := float64(inFlight)
	if l.max > 0 {
		bound = min(bound, l.max)
	}
	l.max = max(limitFloor, bound*limitShrink)
}

// served notes a good request. The limit grows by one for each round of as many
// requests as it admits, and only while it binds.
func (l *limit) served(now time.Time, inFlight int) {
	if l.max == 0 {
		return
	}
	if now.Sub(l.last) > limitForget {
		l.max = 0
		return
	}
	if float64(inFlight) >= l.max/2 {
		l.max += 1 / l.max
	}
}

// reached reports whether one more request would be too many.
func (l *limit) reached(inFlight int) bool { return l.max > 0 && inFlight >= int(l.max) }
