package route

import "time"

// Load is a Ledger at one moment, as the policies see it. Other senders' requests, where a scrape shows them, are in it.
type Load struct {
	// Queued is Q: uncached prompt tokens dispatched and not past their first token.
	Queued float64 `json:"queued_tokens"`
	// Decoding is D: streams past their first token.
	Decoding float64 `json:"decoding"`
	// Context is the number of prompt and answer tokens of all requests in flight.
	Context float64 `json:"context_tokens"`
	// Used is the number of KV tokens that the requests in flight hold, without those that they share.
	Used float64 `json:"kv_used_tokens"`
	// InFlight counts requests dispatched and not ended.
	InFlight int `json:"in_flight"`
	// Fresh says that no first token has been seen yet, so that nothing proves that the instance works.
	Fresh bool `json:"fresh"`
	// Work is the number of uncached tokens dispatched lately: it halves every ten minutes. Ties go to the least.
	Work float64 `json:"work_tokens"`
	// Arrivals is the rate of dispatches per second, with a half-life of ten seconds.
	Arrivals float64 `json:"arrivals_per_s"`
	// HitRate is the recent share of prompt tokens that were in the cache, 0..1.
	HitRate float64 `json:"hit_rate"`
	// Turnover says how many times over the KV cache has been written: from 1 on the instance evicts. Zero means unknown.
	Turnover float64 `json:"turnover"`
	// Stay is the usual time in seconds from first token to end.
	Stay float64 `json:"stay_s"`
}

// phase is where a ticket is in its life.
type phase uint8

const (
	noTicket phase = iota
	prefilling
	decoding
	ended
)

// Ticket is one request in a Ledger. It must not be copied once it is in use: the copy could end a second time.
type Ticket struct {
	phase    phase
	assumed  bool      // its first token was assumed, not seen
	bound    bool      // the KV cache was full at dispatch: the time to first token says nothing about prefill
	at       time.Time // dispatch
	first    time.Time // first token
	last     time.Time // last token
	uncached int
	context  int     // prompt and answer tokens so far
	used     int     // uncached and answer tokens so far
	cached   int     // prompt tokens that were in the cache already
	ahead    int     // Q just after dispatch, its own tokens included
	steps    float64 // seconds of decode steps expected before the first token
}

// Ledger keeps what one instance has been given by us and has not finished, and what it has taught. It counts at dispatch,
// first token and end, never by polling, so that a burst sees itself. The zero Ledger is not usable; see NewLedger. A Ledger
// does not lock: its owner does.
type Ledger struct {
	// What is in flight: whole numbers, so that they are exactly zero when all tickets have ended.
	queued, context, used  int
	cached, cachedDecoding int
	prefilling, decoding   int
	served                 uint64
	quiet                  time.Time // since when nobody waits for a first token

	arrivals decaying // dispatches, 10 s
	work     decaying // uncached tokens, 10 min
	prompts  decaying // prompt tokens, 10 min
	hits     decaying // cached prompt tokens, 10 min
	written  float64  // tokens written to the cache since Restart
	stay     average  // seconds from first token to end
	private  float64  // share of the cached tokens of requests in flight that no two of them share
	size     average  // uncached tokens per request

	prior   Speed
	speed   Speed
	prefill prefillLearner
	gaps    gapLearner

	foreign foreign
}

// Half-lives of what decays. Ten seconds is the window of the congestion price in the studies behind the cost policy. Ten minutes
// is about the time in which a busy cache turns over, which is what ties by work are about.
const (
	arrivalHalfLife = 10 * time.Second
	workHalfLife    = 10 * time.Minute
)

// NewLedger starts the ledger of an instance. The prior is Prior's, or the median of the pool's, or Speed{}.
func NewLedger(prior Speed) *Ledger {
	l := &Ledger{}
	l.arrivals.halfLife, l.work.halfLife = arrivalHalfLife, workHalfLife
	l.prompts.halfLife, l.hits.halfLife = workHalfLife, workHalfLife
	l.private = privatePrior
	l.setPrior(prior)
	return l
}

func (l *Ledger) setPrior(prior Speed) {
	l.prior = prior
	width := knownClip
	if !prior.Known() {
		l.prior = Unknown()
		l.prior.KVTokens = prior.KVTokens
		if prior.StepTokens > 0 {
			l.prior.StepTokens = prior.StepTokens
		}
		width = unknownClip
	}
	l.speed = l.prior
	l.prefill = newPrefillLearner(l.prior.PrefillToken, width)
	l.gaps = newGapLearner(l.prior.DecodeBase, l.prior.DecodeCtx, width)
}

// Dispatch enters a request that is being sent: uncached tokens to prefill out of prompt, with output tokens expected.
func (l *Ledger) Dispatch(now time.Time, uncached, prompt, output int) Ticket {
	prompt = max(prompt, 1)
	uncached = min(max(uncached, 1), prompt)
	bound := l.speed.KVTokens > 0 && l.usedAt(now)+float64(uncached) > float64(l.speed.KVTokens)

	l.queued += uncached
	l.context += prompt
	l.used += uncached
	l.cached += prompt - uncached
	l.prefilling++
	l.arrivals.add(now, 1)
	l.work.add(now, float64(uncached))
	l.prompts.add(now, float64(prompt))
	l.hits.add(now, float64(prompt-uncached))
	l.size.add(float64(uncached))
	l.written += float64(uncached)

	steps := ceil(float64(l.queued) / float64(l.speed.StepTokens))
	return Ticket{
		phase: prefilling, bound: bound, at: now,
		uncached: uncached, context: prompt, used: uncached, cached: prompt - uncached,
		ahead: l.queued,
		steps: steps * (l.speed.DecodeBase + l.speed.DecodeCtx*float64(l.context-prompt)),
	}
}

// FirstToken notes that the prompt has been prefilled. It learns the prefill rate. Later calls for the same ticket do nothing.
func (l *Ledger) FirstToken(now time.Time, t *Ticket) {
	if t.assumed {
		t.assumed = false
		l.served++
	}
	if t.phase != prefilling {
		return
	}
	l.prefilled(now, t)
	l.served++
	if !t.bound && l.prefill.observe(now.Sub(t.at).Seconds(), t.steps, t.ahead) {
		l.speed.PrefillToken = l.prefill.rate
	}
}

// Assume takes the prompt to have been prefilled, of a request whose first token nobody sees because its answer comes whole. Nothing is
// learned from it, and it proves nothing: FirstToken still counts when the answer is there.
func (l *Ledger) Assume(now time.Time, t *Ticket) {
	if t.phase == prefilling {
		t.assumed = true
		l.prefilled(now, t)
	}
}

// prefilled moves the ticket to those that decode.
func (l *Ledger) prefilled(now time.Time, t *Ticket) {
	t.phase = decoding
	t.last, t.first = now, now
	l.leave(now, t)
	l.cachedDecoding += t.cached
	l.decoding++
}

// leave takes the ticket out of those that wait for their first token.
func (l *Ledger) leave(now time.Time, t *Ticket) {
	l.queued -= t.uncached
	l.prefilling--
	if l.prefilling == 0 {
		l.quiet = now
	}
}

// Token notes n more tokens of the answer. The first call is also the first token.
func (l *Ledger) Token(now time.Time, t *Ticket, n int) {
	switch t.phase {
	case prefilling:
		l.FirstToken(now, t)
	case decoding:
		if !t.assumed {
			l.learnGap(now, t, n)
		}
	default:
		return
	}
	if n <= 0 {
		return
	}
	t.last = now
	t.context += n
	t.used += n
	l.context += n
	l.used += n
	l.written += float64(n)
}

// learnGap takes the gap before a token as the length of a decode step, when nothing of ours was being prefilled all the while.
func (l *Ledger) learnGap(now time.Time, t *Ticket, n int) {
	if l.prefilling > 0 || t.last.Before(l.quiet) || n <= 0 {
		return
	}
	l.gaps.observe(now.Sub(t.last).Seconds()/float64(n), float64(l.context)+l.foreignAt(now).context)
	l.speed.DecodeBase, l.speed.DecodeCtx = l.gaps.base, l.gaps.perToken
}

// End takes the request out, however it ended. Only the first call for a ticket counts.
func (l *Ledger) End(now time.Time, t *Ticket) {
	switch t.phase {
	case prefilling:
		l.leave(now, t)
	case decoding:
		l.decoding--
		l.cachedDecoding -= t.cached
		l.stay.add(now.Sub(t.first).Seconds())
	default:
		return
	}
	t.phase = ended
	l.context -= t.context
	l.used -= t.used
	l.cached -= t.cached
}

// Restart notes that the engine has started again, with an empty cache. Tickets stay: their requests end by themselves.
func (l *Ledger) Restart() {
	l.written = 0
	l.served = 0
	l.foreign = foreign{}
}

// Speed is the prior as far as corrected by what has been measured.
func (l *Ledger) Speed() Speed { return l.speed }

// InFlight counts our requests that have been dispatched and have not ended.
func (l *Ledger) InFlight() int { return l.prefilling + l.decoding }

// Served counts first tokens since the start or Restart.
func (l *Ledger) Served() uint64 { return l.served }

// Load is the ledger at one moment.
func (l *Ledger) Load(now time.Time) Load {
	f := l.foreignAt(now)
	v := Load{
		Queued:   float64(l.queued) + f.queued,
		Decoding: float64(l.decoding) + f.decoding,
		Context:  float64(l.context) + f.context,
		Used:     l.usedAt(now),
		InFlight: l.prefilling + l.decoding + f.requests,
		Fresh:    l.served == 0,
		Work:     l.work.at(now),
		Arrivals: l.arrivals.perSecond(now),
		Stay:     l.stay.mean,
	}
	if p := l.prompts.at(now); p > 0 {
		v.HitRate = l.hits.at(now) / p
	}
	if l.speed.KVTokens > 0 {
		v.Turnover = l.written / float64(l.speed.KVTokens)
	}
	return v
}
