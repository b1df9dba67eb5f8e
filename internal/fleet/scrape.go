package fleet

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/warmroute/warmroute/internal/route"
)

const (
	metricsPath = "/metrics"
	loadsPath   = "/v1/loads?include=core,queues,memory"
	propsPath   = "/props"
	// staleAfter is how many scrapes in a row may fail before the facts are stale.
	staleAfter = 3
	// absentInterval is the pause between looks for metrics that an instance does
	// not have.
	absentInterval = time.Minute
	// resetPause bounds how often falling counters count as a restart: behind one
	// address there may be several processes that answer in turn.
	resetPause = time.Minute
	// startSlack is how much later a process must have started to be another one.
	startSlack = 1.0 // seconds
)

var (
	errNoMetrics = errors.New("instance has no metrics")
	errNoLoads   = errors.New("no load of this rank in the answer")
)

// scrapeState is what scrapes found. It is guarded by Instance.mu.
type scrapeState struct {
	facts   Facts
	good    time.Time // of the last good scrape
	misses  int       // in a row
	absent  bool      // the instance has no metrics
	started float64   // latest start time seen, in seconds since 1970; 0 when never told
	reset   time.Time // when falling counters last counted as a restart
	told    int       // capacity that was passed on
	err     string    // of the last scrape
}

// forget drops what belongs to another kind of engine.
func (s *scrapeState) forget() { *s = scrapeState{started: s.started} }

// stale reports whether the facts are too old to go by.
func (s *scrapeState) stale() bool { return s.good.IsZero() || s.misses >= staleAfter }

// scraper reads one instance's metrics. It belongs to the scrape loop.
type scraper struct {
	f       *Fleet
	in      *Instance
	epoch   int
	noPage  bool // /metrics does not exist
	noLoads bool // /v1/loads does not exist
	props   int  // capacity by /props; -1 when it does not tell
}

// scrapeLoop keeps the instance's facts up to date until ctx is done. A failed
// scrape never makes an instance look idle: the ledger stands.
func (f *Fleet) scrapeLoop(ctx context.Context, in *Instance) {
	if f.cfg.Scrape.Interval == 0 {
		return
	}
	s := scraper{f: f, in: in}
	for {
		pause := f.cfg.Scrape.Interval
		if in.Engine() == OpenAI || s.scrape(ctx) {
			pause = max(pause, absentInterval)
		}
		if !s.wait(ctx, jitter(pause)) {
			return
		}
	}
}

// wait sleeps, but looks sooner when the instance restarts: it may have metrics
// then.
func (s *scraper) wait(ctx context.Context, d time.Duration) bool {
	for step := s.f.cfg.Scrape.Interval; d > step; d -= step {
		if !sleep(ctx, step) {
			return false
		}
		if _, epoch := s.in.standing(); epoch != s.epoch {
			return true
		}
	}
	return sleep(ctx, d)
}

// scrape reads the facts once. It reports whether the instance has none to give.
func (s *scraper) scrape(ctx context.Context) (absent bool) {
	ready, epoch := s.in.standing()
	if epoch != s.epoch {
		*s = scraper{f: s.f, in: s.in, epoch: epoch}
	}
	facts, err := s.read(ctx)
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		absent = errors.Is(err, errNoMetrics)
		s.missed(ctx, err, absent)
		return absent && ready
	}
	s.f.learn(ctx, s.in, facts, time.Now())
	return false
}

// missed notes a failed scrape.
func (s *scraper) missed(ctx context.Context, err error, absent bool) {
	s.in.mu.Lock()
	state := &s.in.scrape
	state.misses++
	news := state.misses == staleAfter && !state.good.IsZero()
	state.absent, state.err = absent, err.Error()
	if state.stale() {
		state.facts.Asleep = false // what nobody confirms must not keep it out
	}
	s.in.mu.Unlock()
	if news {
		s.f.deps.Log.LogAttrs(ctx, slog.LevelWarn, "metrics are stale; routing by our own ledger",
			slog.String("instance", s.in.name), slog.String("error", err.Error()))
	}
}

// read asks for all that the instance's engine tells.
func (s *scraper) read(ctx context.Context) (Facts, error) {
	rank := s.in.Config().Rank
	facts, err := s.readPage(ctx, rank)
	if err != nil && !errors.Is(err, errNoMetrics) {
		return facts, err
	}
	engine := facts.Engine
	if err != nil {
		engine = s.in.Engine()
	}
	if (engine == SGLang || err != nil && engine == Auto) && !s.noLoads {
		lerr := s.readLoads(ctx, &facts, rank)
		if lerr == nil {
			return facts, nil
		}
		if err != nil {
			return facts, lerr
		}
	}
	if err == nil && engine == LlamaCPP {
		s.readProps(ctx, &facts)
	}
	return facts, err
}

func (s *scraper) readPage(ctx context.Context, rank *int) (Facts, error) {
	none := Facts{WaitingTokens: -1, KVUsed: -1, CachedTokens: -1}
	if s.noPage {
		return none, errNoMetrics
	}
	var samples page
	status, err := s.in.fetch(ctx, metricsPath, s.f.cfg.Scrape.Timeout, s.f.cfg.Scrape.MaxBytes, func(status int, body io.Reader) error {
		if status != http.StatusOK {
			return nil
		}
		_, err := readSamples(body, wantedMetric, func(m sample) { samples = append(samples, m) })
		return err
	})
	if err != nil {
		return none, err
	}
	if facts, ok := decode(samples, rank); status == http.StatusOK && ok {
		return facts, nil
	}
	// Not remembered for good: SGLang's page is empty before its first request.
	s.noPage = missing(status)
	if status == http.StatusOK || missing(status) || status == http.StatusUnauthorized || status == http.StatusForbidden {
		return none, errNoMetrics
	}
	return none, statusError(status)
}

// statusError is an answer of a status that tells nothing.
type statusError int

func (e statusError) Error() string { return "status " + http.StatusText(int(e)) }

func (s *scraper) readLoads(ctx context.Context, facts *Facts, rank *int) error {
	status, err := s.in.fetch(ctx, loadsPath, s.f.cfg.Scrape.Timeout, s.f.cfg.Scrape.MaxBytes, func(status int, body io.Reader) error {
		if status != http.StatusOK {
			return nil
		}
		return facts.addLoads(body, rank)
	})
	switch {
	case err != nil:
		return err
	case missing(status):
		s.noLoads = true
		return errNoMetrics
	case status != http.StatusOK:
		return statusError(status)
	}
	return nil
}

// readProps asks once for each process of the engine.
func (s *scraper) readProps(ctx context.Context, facts *Facts) {
	if s.props == 0 {
		status, err := s.in.fetch(ctx, propsPath, s.f.cfg.Scrape.Timeout, maxAnswer, func(status int, body io.Reader) error {
			if status != http.StatusOK {
				return nil
			}
			return facts.addProps(body)
		})
		if err != nil {
			return // asked again with the next scrape
		}
		s.props = facts.KVTokens
		if status != http.StatusOK || s.props == 0 {
			s.props = -1
		}
	}
	facts.KVTokens = max(s.props, 0)
}

// learn takes the facts of a good scrape.
func (f *Fleet) learn(ctx context.Context, in *Instance, facts Facts, now time.Time) {
	in.mu.Lock()
	reason := in.scrape.restartedBy(facts, now)
	in.mu.Unlock()
	if reason != "" {
		f.restart(in, now, reason)
	}
	configured := in.Config().KVTokens
	in.mu.Lock()
	s := &in.scrape
	if in.engine == Auto {
		in.engine = facts.Engine
	}
	warn := facts.NoCache && !s.facts.NoCache
	s.facts, s.good, s.misses, s.absent, s.err = facts, now, 0, false, ""
	s.started = max(s.started, facts.Started)
	capacity := facts.KVTokens
	if configured > 0 {
		capacity = 0 // what the operator says stands
	}
	news := capacity > 0 && capacity != s.told
	if news {
		s.told = capacity
	}
	in.ledger.Correct(now, route.Facts{Running: facts.Running, Waiting: facts.Waiting, KVUsed: facts.KVUsed, KVTokens: capacity})
	in.mu.Unlock()
	if news {
		f.notify(in, Event{Kind: Capacity, KVTokens: capacity})
	}
	if warn {
		f.deps.Log.LogAttrs(ctx, slog.LevelWarn, "engine runs without a prefix cache: routing by prefix gains nothing there", slog.String("instance", in.name))
	}
}

// restartedBy says how the facts prove that the engine's process is another one
// than before; "" when they do not. A start time that jumps back is another
// process behind the same address, not a new one.
func (s *scrapeState) restartedBy(facts Facts, now time.Time) string {
	if s.good.IsZero() {
		return ""
	}
	if facts.Started > 0 && s.started > 0 {
		if facts.Started > s.started+startSlack {
			return "start_time"
		}
		return ""
	}
	fell := facts.PromptTokens < s.facts.PromptTokens || facts.OutputTokens < s.facts.OutputTokens
	if fell && now.Sub(s.reset) >= resetPause {
		s.reset = now
		return "counters"
	}
	return ""
}
