package bench

import (
	"errors"
	"fmt"
	"time"

	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/internal/sim"
)

// Knowledge is what the simulated gateway gets to know of the engines' caches.
type Knowledge uint8

// The kinds of knowledge, from the usual to the impossible.
const (
	Reports   Knowledge = iota // the cached tokens of each answer, as engines report them
	NoReports                  // nothing: the index believes itself
	Exact                      // the engine's own cache at each decision: the yardstick
)

// String names the kind in snake_case.
func (k Knowledge) String() string {
	switch k {
	case Reports:
		return "reports"
	case NoReports:
		return "no_reports"
	case Exact:
		return "exact"
	}
	return "unknown"
}

// Settings describes one run: a policy, a workload, a fleet.
type Settings struct {
	Policy   string
	Route    route.Config
	Workload Workload
	Seed     uint64

	// Profiles holds one engine per instance; instances of one kind repeat it.
	Profiles []sim.Profile
	// KVTokens is the size of every instance's cache. Zero takes the profile's.
	KVTokens int
	// Engine sets up the engines further; KVTokens above wins. Blocks of 64
	// tokens instead of 16 make long runs about three times as fast.
	Engine sim.Options

	// Knowledge is what the gateway learns of the caches.
	Knowledge Knowledge
	// Assumed is the capacity that the gateway is told, as a multiple of the
	// true one. Zero tells it nothing.
	Assumed float64
	// IndexBytes caps the index. Zero takes its default.
	IndexBytes int64

	// Replicas is the number of gateways, each with its own index and books;
	// arrivals are spread over them at random. Zero means one. ShareDelay is
	// how late they hear of each other's requests; below 0 they never do.
	Replicas   int
	ShareDelay time.Duration

	// Events happen to engines during the run.
	Events []Event
	// WarmUp is how much of the run's beginning is left out of the numbers.
	WarmUp time.Duration
	// CurveStep is the width of a point of [Result.Curve]. Zero makes none.
	CurveStep time.Duration
}

// Fleet is n instances of one named engine.
func Fleet(engine string, n int) ([]sim.Profile, error) {
	p, err := sim.LookupProfile(engine)
	if err != nil {
		return nil, err
	}
	out := make([]sim.Profile, n)
	for i := range out {
		out[i] = p
	}
	return out, nil
}

func (s *Settings) validate() error {
	var faults []error
	if s.Workload == nil {
		faults = append(faults, errors.New("no workload"))
	}
	if len(s.Profiles) == 0 {
		faults = append(faults, errors.New("no instances"))
	}
	if s.Assumed < 0 {
		faults = append(faults, fmt.Errorf("assumed capacity %g: must not be negative", s.Assumed))
	}
	for _, e := range s.Events {
		if e.Instance < 0 || e.Instance >= len(s.Profiles) {
			faults = append(faults, fmt.Errorf("event at %v: instance %d of %d", e.At, e.Instance, len(s.Profiles)))
		}
	}
	return errors.Join(faults...)
}

// Event is something that happens to an engine. Of restarts and sizes nobody
// tells the gateway.
type Event struct {
	At       time.Duration
	Instance int
	// Restart empties the engine: its cache is gone, and so is everything that
	// runs on it.
	Restart bool
	// Down refuses requests for so long after a restart.
	Down time.Duration
	// KVTokens, when set, is the size of the cache from now on.
	KVTokens int
	// Add lets the instance join the fleet, which it was not in before; Remove
	// lets it finish what it has and leave. The gateway knows of both.
	Add, Remove bool
}
