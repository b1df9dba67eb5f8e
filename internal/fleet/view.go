package fleet

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/prefix"
)

// View is the state of one instance at one moment, for people and metrics.
type View struct {
	ID       prefix.InstanceID `json:"id"`
	Name     string            `json:"name"`
	URL      string            `json:"url"`
	Engine   Engine            `json:"engine"`
	Models   []string          `json:"models,omitzero"` // that it lists itself
	State    string            `json:"state"`           // ready, full, cooling, open, credential, unready, starting, asleep or draining
	Breaker  string            `json:"breaker"`         // closed, open or half_open
	Reason   string            `json:"reason,omitzero"` // of the last bad probe
	InFlight int               `json:"in_flight"`       // leases since the last restart
	Leases   int               `json:"leases"`          // all leases that are out
	// Limit is the number of requests in flight that it may have: the configured
	// or the adaptive one, whichever is less; 0 when there is none.
	Limit int `json:"limit"`
	// Results counts ended leases by Result.String.
	Results map[string]uint64 `json:"results"`
	// Opened counts how often the breaker opened.
	Opened   uint64      `json:"opened"`
	Restarts int         `json:"restarts"`
	Load     route.Load  `json:"load"`
	Speed    route.Speed `json:"speed"`
	// Facts is the last scrape; Stale says that it is too old to go by.
	Facts       Facts         `json:"facts"`
	Stale       bool          `json:"stale"`
	Scraped     time.Time     `json:"scraped,omitzero"`
	ScrapeError string        `json:"scrape_error,omitzero"`
	Probed      time.Time     `json:"probed,omitzero"`
	ProbeTook   time.Duration `json:"probe_took_ns"`
	// CoolUntil and OpenUntil are set while they lie ahead.
	CoolUntil time.Time `json:"cool_until,omitzero"`
	OpenUntil time.Time `json:"open_until,omitzero"`
}

// View describes the instance.
func (in *Instance) View(now time.Time) View {
	c := in.Config()
	in.mu.Lock()
	defer in.mu.Unlock()
	v := View{
		ID:          in.id,
		Name:        in.name,
		URL:         c.URL,
		Engine:      in.engine,
		Models:      modelIDs(in.models),
		State:       in.stateLocked(now),
		Breaker:     in.breaker.state(now).String(),
		Reason:      in.health.reason,
		InFlight:    in.inFlight,
		Leases:      in.out,
		Limit:       c.MaxInflight,
		Results:     make(map[string]uint64, ClientGone),
		Opened:      in.opened,
		Restarts:    in.epoch,
		Load:        in.ledger.Load(now),
		Speed:       in.ledger.Speed(),
		Facts:       in.scrape.facts,
		Stale:       in.scrape.stale(),
		Scraped:     in.scrape.good,
		ScrapeError: in.scrape.err,
		Probed:      in.health.last,
		ProbeTook:   in.health.took,
	}
	if adaptive := int(in.limit.max); adaptive > 0 && (v.Limit == 0 || adaptive < v.Limit) {
		v.Limit = adaptive
	}
	for r := Served; r <= ClientGone; r++ {
		v.Results[r.String()] = in.counts[r]
	}
	if in.cool.After(now) {
		v.CoolUntil = in.cool
	}
	if in.breaker.until.After(now) {
		v.OpenUntil = in.breaker.until
	}
	return v
}

// stateLocked names what the instance is up to.
func (in *Instance) stateLocked(now time.Time) string {
	switch ex := in.exclusionLocked(now); {
	case ex == route.Eligible:
		return "ready"
	case ex == route.Unready && in.scrape.facts.Asleep:
		return "asleep"
	case ex == route.Unready && !in.health.everReady:
		return "starting"
	case ex == route.Open && in.credential.dead:
		return "credential"
	default:
		return ex.String()
	}
}

// SourceView is the state of one place that instances are found in.
type SourceView struct {
	Name      string    `json:"name"`
	Instances int       `json:"instances"`
	Good      time.Time `json:"good,omitzero"`  // of the last good look
	Error     string    `json:"error,omitzero"` // of the last look
}

// Sources yields the state of each file and DNS name, in the order of their
// names.
func (f *Fleet) Sources() iter.Seq[SourceView] {
	f.mu.Lock()
	defer f.mu.Unlock()
	var views []SourceView
	for _, key := range slices.Sorted(maps.Keys(f.sources)) {
		s := f.sources[key]
		v := SourceView{Name: key, Instances: len(s.found), Good: s.good}
		if s.err != nil {
			v.Error = s.err.Error()
		}
		views = append(views, v)
	}
	return slices.Values(views)
}
