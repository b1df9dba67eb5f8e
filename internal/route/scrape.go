package route

import "time"

// Facts is what an engine says about itself in a scrape of its metrics.
type Facts struct {
	Running  int     // requests in the batch
	Waiting  int     // requests waiting to be scheduled
	KVUsed   float64 // share of the KV cache held by running requests, 0..1; negative means not reported
	KVTokens int     // capacity of the KV cache; 0 means not reported
	// StepTokens is the engine's token budget per step; 0 means not reported.
	StepTokens int
}

// factsLive is how long a scrape counts. After that the ledger stands alone: a failed scrape is not "idle".
const factsLive = 10 * time.Second

// foreign is what scrapes show beyond the ledger: requests of other gateways.
type foreign struct {
	at               time.Time
	seen             bool
	running, waiting int // beyond ours at the last scrape
	counted          foreignLoad
}

type foreignLoad struct {
	queued, decoding, context float64
	requests                  int
}

// Correct takes the facts of a scrape. They add to the ledger what others have sent, they never take away what we have sent: a
// scrape is older than the ledger, and an engine that reports zero may not have started on what is on the wire.
func (l *Ledger) Correct(now time.Time, f Facts) {
	if f.KVTokens > 0 {
		l.speed.KVTokens = f.KVTokens
	}
	if f.StepTokens > 0 {
		l.speed.StepTokens = f.StepTokens
	}
	running := max(f.Running+f.Waiting-l.InFlight(), 0)
	waiting := min(max(f.Waiting-l.prefilling, 0), running)

	// What only one of two scrapes shows was in passing: a request that ended between the engine's clock and ours.
	last := &l.foreign
	steady := foreign{at: now, seen: true, running: running, waiting: waiting}
	if last.seen && now.Sub(last.at) < factsLive {
		n, w := min(running, last.running), min(waiting, last.waiting)
		w = min(w, n)
		steady.counted = foreignLoad{
			queued:   float64(w) * l.size.mean,
			decoding: float64(n - w),
			context:  float64(n-w) * l.meanContext(),
			requests: n,
		}
	}
	if f.KVUsed >= 0 && l.speed.KVTokens > 0 {
		l.learnPrivate(f.KVUsed * float64(l.speed.KVTokens))
	}
	l.foreign = steady
}

// meanContext guesses the context of a request of which nothing is known: like ours.
func (l *Ledger) meanContext() float64 {
	if n := l.InFlight(); n > 0 {
		return float64(l.context) / float64(n)
	}
	return l.size.mean
}

func (l *Ledger) foreignAt(now time.Time) foreignLoad {
	if l.foreign.seen && now.Sub(l.foreign.at) < factsLive {
		return l.foreign.counted
	}
	return foreignLoad{}
}

// privatePrior is the share assumed until a scrape tells: conversations share little, a common system prompt is shared by all.
const (
	privatePrior  = 0.25
	privateWeight = 0.3
)

// learnPrivate compares the KV tokens that the engine holds for its running requests with those of the streams in the ledger.
func (l *Ledger) learnPrivate(held float64) {
	if l.cachedDecoding == 0 || l.foreign.counted.requests > 0 {
		return
	}
	share := (held - float64(l.used-l.queued)) / float64(l.cachedDecoding)
	l.private += privateWeight * (min(max(share, 0), 1) - l.private)
}

// usedAt is the number of KV tokens held by requests in flight.
func (l *Ledger) usedAt(now time.Time) float64 {
	f := l.foreignAt(now)
	return float64(l.used) + l.private*float64(l.cached) + f.queued + f.context
}
