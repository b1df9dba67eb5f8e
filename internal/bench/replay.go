package bench

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/internal/sim"
)

// Workload is the log's requests as they came, speed times as fast. A log that
// does not tell when they came gets them at a rate per second, evenly.
func (l *RequestLog) Workload(rate, speed float64) *Trace {
	t := &Trace{name: l.Name, records: l.records, blockTokens: l.BlockTokens, speed: speed}
	if l.Timed {
		return t
	}
	t.records = slices.Clone(l.records)
	for i := range t.records {
		t.records[i].Timestamp = int64(1000 * float64(i) / rate)
	}
	return t
}

// Length is the time from the first request to the last; zero when the log does
// not tell.
func (l *RequestLog) Length() time.Duration {
	if !l.Timed || len(l.records) == 0 {
		return 0
	}
	return time.Duration(l.records[len(l.records)-1].Timestamp-l.records[0].Timestamp) * time.Millisecond
}

// Replay asks what a log's requests would have met under each policy, on fleets
// of several sizes, in virtual time.
type Replay struct {
	Log       *RequestLog
	Workload  *Trace // of the log
	Engine    string
	Instances []int
	KVTokens  []int // of one instance; 0 is the engine's
	Policies  []string
	// Baseline is the policy that savings are counted against.
	Baseline string
	// Price is what an instance costs per hour; zero leaves money out.
	Price   float64
	WarmUp  time.Duration
	Seed    uint64
	Workers int
	// Progress is that of [Experiment].
	Progress func(done, all int, what string)
}

// ReplayReport is the answer. Its cells are those of [Report], one for each
// fleet.
type ReplayReport struct {
	Log ReplayLog `json:"log"`
	Report
	Baseline string  `json:"baseline"`
	Price    float64 `json:"price_per_instance_hour,omitempty"`
	// Savings has an entry for each cell and policy but the baseline.
	Savings []Saving `json:"savings"`
}

// ReplayLog says what was read.
type ReplayLog struct {
	Name        string         `json:"name"`
	Requests    int            `json:"requests"`
	BadLines    int            `json:"bad_lines"`
	BlockTokens int            `json:"block_tokens"`
	Timed       bool           `json:"timed"`
	Length      float64        `json:"length_s"`
	Models      map[string]int `json:"models"`
	Formats     map[string]int `json:"formats"`
	Estimated   int            `json:"estimated_prompts"`
}

// Saving is what a policy saves in a cell against the baseline. A negative
// number is a loss.
type Saving struct {
	Cell   string `json:"cell"`
	Policy string `json:"policy"`
	// Tokens are prompt tokens that need no prefill, of the measured requests.
	Tokens float64 `json:"prefill_tokens"`
	// InstanceHours are the time that an instance would have spent on them, by
	// the engine's cost of a prefilled token; GPUHours that times its GPUs.
	InstanceHours float64 `json:"instance_hours"`
	GPUHours      float64 `json:"gpu_hours"`
	// MonthGPUHours is the same for 30 days of the same traffic, MonthCost its
	// price; 0 when the log does not tell how long it took, or no price is given.
	MonthGPUHours float64 `json:"gpu_hours_per_30_days,omitempty"`
	MonthCost     float64 `json:"cost_per_30_days,omitempty"`
	// TTFT is the mean time to first token over the baseline's.
	TTFT float64 `json:"ttft_mean_over_baseline"`
}

// Run plays every policy on every fleet. When ctx ends before all is done, the
// report holds the cells that are complete, and the error says so.
func (r Replay) Run(ctx context.Context) (*ReplayReport, error) {
	profile, err := sim.LookupProfile(r.Engine)
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	e := Experiment{
		Title:    fmt.Sprintf("What %s would save: %d requests on %s", r.Log.Name, r.Log.Requests, r.Engine),
		Policies: r.Policies, Seeds: []uint64{r.Seed}, Route: route.Default(), Workers: r.Workers, Detail: true, Progress: r.Progress,
	}
	if !slices.Contains(e.Policies, r.Baseline) {
		e.Policies = append([]string{r.Baseline}, e.Policies...)
	}
	for _, n := range r.Instances {
		for _, kv := range r.KVTokens {
			e.Cells = append(e.Cells, r.cell(profile, n, kv))
		}
	}
	report, err := e.Run(ctx)
	out := &ReplayReport{Baseline: r.Baseline, Price: r.Price, Savings: []Saving{}}
	if report != nil {
		out.Report = *report
	}
	out.Log = ReplayLog{
		Name: r.Log.Name, Requests: r.Log.Requests, BadLines: r.Log.Bad, BlockTokens: r.Log.BlockTokens, Timed: r.Log.Timed,
		Length: secondsOf(r.Log.Length()), Models: r.Log.Models, Formats: r.Log.Formats, Estimated: r.Log.Estimated,
	}
	for i := range out.Cells {
		out.Savings = append(out.Savings, r.savings(&out.Cells[i], profile)...)
	}
	return out, err
}

// curveReplaySteps is how many points a curve of a replay has, about.
const curveReplaySteps = 60

func (r *Replay) cell(profile sim.Profile, instances, kvTokens int) Cell {
	if kvTokens == 0 {
		kvTokens = profile.KVTokens
	}
	last := r.Workload.records[len(r.Workload.records)-1].Timestamp - r.Workload.records[0].Timestamp
	length := seconds(float64(last) / 1000 / r.Workload.speed)
	return Cell{
		Name: fmt.Sprintf("%d x %s tokens", instances, shortNumber(float64(kvTokens))),
		Settings: Settings{
			Workload: r.Workload, Profiles: slices.Repeat([]sim.Profile{profile}, instances), KVTokens: kvTokens,
			Assumed: 1, WarmUp: r.WarmUp, CurveStep: max((length-r.WarmUp)/curveReplaySteps, time.Second),
		},
	}
}

// gpusIn finds the number of GPUs in an engine's name, such as 8xh100.
var gpusIn = regexp.MustCompile(`-(\d+)x[a-z]`)

func gpus(engine string) int {
	m := gpusIn.FindStringSubmatch(engine)
	if m == nil {
		return 1
	}
	n, _ := strconv.Atoi(m[1]) // digits
	return max(n, 1)
}

// month is the time that savings are projected to.
const month = 30 * 24 * time.Hour

// savings compares a cell's policies with the baseline.
func (r *Replay) savings(c *CellReport, profile sim.Profile) []Saving {
	i := slices.IndexFunc(c.Policies, func(p PolicyReport) bool { return p.Name == r.Baseline })
	if i < 0 {
		return nil
	}
	base := &c.Policies[i]
	prior, _ := route.Prior(profile.Name) // of a profile, so it is there
	var out []Saving
	for j := range c.Policies {
		p := &c.Policies[j]
		if j == i {
			continue
		}
		// All tokens of the log's measured part, at each policy's hit rate: failed
		// requests must not look like savings.
		tokens := (p.HitRate.Actual - base.HitRate.Actual) * c.Offered * c.span(r)
		hours := tokens * prior.PrefillToken / 3600
		s := Saving{
			Cell: c.Name, Policy: p.Name, Tokens: rounded(tokens, 0), InstanceHours: rounded(hours, 4),
			GPUHours: rounded(hours*float64(gpus(profile.Name)), 4), TTFT: rounded(ratio(p.TTFT.Mean, base.TTFT.Mean), 4),
		}
		if span := c.span(r); r.Log.Timed && span > 0 {
			months := month.Seconds() / span
			s.MonthGPUHours = rounded(s.GPUHours*months, 1)
			s.MonthCost = rounded(hours*months*r.Price, 2)
		}
		out = append(out, s)
	}
	return out
}

// span is the time of measured arrivals in seconds.
func (c *CellReport) span(r *Replay) float64 {
	records := r.Workload.records
	last := float64(records[len(records)-1].Timestamp-records[0].Timestamp) / 1000 / r.Workload.speed
	return max(last-c.WarmUp, 0)
}

// Page is the report as HTML.
func (r *ReplayReport) Page() *Page {
	p := r.Report.Page()
	if r.Log.BadLines > 0 {
		p.Warnings = append(p.Warnings, fmt.Sprintf("%d lines of the log could not be used.", r.Log.BadLines))
	}
	t := PageTable{
		Caption: "Against " + r.Baseline,
		Head:    []string{"fleet", "policy", "prefill tokens saved", "GPU hours saved", "GPU hours per 30 days", "cost per 30 days", "mean TTFT over " + r.Baseline + "'s"},
	}
	for _, s := range r.Savings {
		t.Rows = append(t.Rows, []string{
			s.Cell, s.Policy, number(s.Tokens, 0), number(s.GPUHours, 3), number(s.MonthGPUHours, 1), number(s.MonthCost, 2), number(s.TTFT, 2),
		})
	}
	p.Sections = append([]PageSection{{Title: "What it would save", Tables: []PageTable{t}}}, p.Sections...)
	return p
}
