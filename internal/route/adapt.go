package route

import (
	"fmt"
	"time"
)

// Evidence is what a number of requests came to.
type Evidence struct {
	Requests int           // with a time to first token
	TTFT     time.Duration // sum of times to first token
	Prompt   int           // prompt tokens
	Cached   int           // of these, in the cache
}

// Mean is the mean time to first token; zero without requests.
func (e Evidence) Mean() time.Duration { return e.TTFT / time.Duration(max(e.Requests, 1)) }

// HitRate is the share of prompt tokens that were in the cache, 0 to 1.
func (e Evidence) HitRate() float64 { return float64(e.Cached) / float64(max(e.Prompt, 1)) }

// Arm is a policy that may be chosen, with what is predicted of it.
type Arm struct {
	Name string
	Evidence
}

// Window is the evidence of a stretch of time: the same requests, as predicted under each arm, and as they really went.
type Window struct {
	End    time.Time
	Arms   []Arm
	Actual Evidence
}

// Bounds of the controller. Each guards against a way to be wrong.
const (
	adaptRequests  = 200              // requests that a window must have to count
	adaptGain      = 0.15             // by how much an arm must be better in mean time to first token
	adaptLeast     = time.Millisecond // differences below it are nobody's business
	adaptWindows   = 3                // windows in a row in which it must be
	adaptCoolDown  = 10 * time.Minute // between two changes
	adaptTrust     = 3.0              // factor between prediction and reality of the live arm beyond which predictions say nothing
	adaptRegret    = 1.25             // factor by which reality may be worse after a change than before it
	adaptBanishing = 6 * time.Hour    // how long an arm is left alone that was worse in reality
)

// Adapter decides which of several arms is live, by windows of evidence. It changes only when one arm is predicted to be clearly
// better in several windows in a row, the last change is long enough ago, and the prediction for the live arm is near what really
// happened. When reality is worse after a change than before it, and not because of more load, which the predictions see too, the
// change is taken back and the arm left alone for hours. It is pure; its owner locks, and puts into force what it says.
type Adapter struct {
	live     string
	better   string // the arm that was better in the last windows
	streak   int    // windows in a row
	changed  time.Time
	previous string        // live before the last change; "" when that has proved itself
	before   time.Duration // real mean before the last change
	honesty  float64       // real mean over predicted mean before it
	banished map[string]time.Time
}

// NewAdapter starts with the configured arm live.
func NewAdapter(home string) *Adapter {
	return &Adapter{live: home, banished: make(map[string]time.Time)}
}

// Live names the arm that is to be live.
func (a *Adapter) Live() string { return a.live }

// Change is a decision of an Adapter.
type Change struct {
	From, To string
	Kind     ChangeKind
	Reason   string // for people: the numbers that decided
}

// ChangeKind says what a change is.
type ChangeKind string

// The kinds of changes, fit for a metric label.
const (
	Switched ChangeKind = "switched" // evidence favours another arm
	Reverted ChangeKind = "reverted" // reality was worse than before
)

// Observe takes one window and says whether another arm is to be live.
func (a *Adapter) Observe(w Window) (Change, bool) {
	live, best := a.find(w)
	if w.Actual.Requests < adaptRequests || live == nil || live.Requests < adaptRequests {
		return Change{}, false
	}
	if c, ok := a.regret(w, live); ok {
		return c, true
	}
	honesty := float64(w.Actual.Mean()) / float64(max(live.Mean(), 1))
	if best == nil || !clearly(best, live) || honesty > adaptTrust || honesty < 1/adaptTrust {
		a.better, a.streak = "", 0
		return Change{}, false
	}
	if best.Name != a.better {
		a.better, a.streak = best.Name, 0
	}
	a.streak++
	if a.streak < adaptWindows || w.End.Sub(a.changed) < adaptCoolDown {
		return Change{}, false
	}
	c := Change{From: a.live, To: best.Name, Kind: Switched, Reason: fmt.Sprintf(
		"predicted mean time to first token %s instead of %s in the last of %d windows, hit rate %.1f%% instead of %.1f%%; actual %s and %.1f%%",
		short(best.Mean()), short(live.Mean()), a.streak, 100*best.HitRate(), 100*live.HitRate(), short(w.Actual.Mean()), 100*w.Actual.HitRate())}
	a.previous, a.before, a.honesty = a.live, w.Actual.Mean(), honesty
	a.change(w.End, best.Name)
	return c, true
}

// regret takes the last change back if reality has become worse. It looks at the windows until the end of its cool-down.
func (a *Adapter) regret(w Window, live *Arm) (Change, bool) {
	if a.previous == "" {
		return Change{}, false
	}
	if w.End.Sub(a.changed) >= adaptCoolDown {
		a.previous = ""
		return Change{}, false
	}
	actual := float64(w.Actual.Mean())
	if actual <= adaptRegret*float64(a.before) || actual <= adaptRegret*a.honesty*float64(live.Mean()) {
		return Change{}, false
	}
	c := Change{From: a.live, To: a.previous, Kind: Reverted, Reason: fmt.Sprintf(
		"actual mean time to first token %s after the change, %s before it; predicted %s",
		short(w.Actual.Mean()), short(a.before), short(live.Mean()))}
	a.banished[a.live] = w.End.Add(adaptBanishing)
	a.change(w.End, a.previous)
	a.previous = ""
	return c, true
}

// find is the live arm of the window and the best other one that may be chosen. Ties go to the earlier arm.
func (a *Adapter) find(w Window) (live, best *Arm) {
	for i := range w.Arms {
		x := &w.Arms[i]
		switch {
		case x.Name == a.live:
			live = x
		case x.Requests < adaptRequests || w.End.Before(a.banished[x.Name]):
		case best == nil || x.Mean() < best.Mean():
			best = x
		}
	}
	return live, best
}

// clearly reports whether one arm is so much better than the live one that noise does not explain it.
func clearly(x, live *Arm) bool {
	return live.Mean()-x.Mean() >= adaptLeast && float64(x.Mean()) <= (1-adaptGain)*float64(live.Mean())
}

func (a *Adapter) change(now time.Time, to string) {
	a.live, a.changed, a.better, a.streak = to, now, "", 0
}

// short rounds a time for people.
func short(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
