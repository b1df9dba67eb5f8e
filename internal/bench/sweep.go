package bench

import (
	"context"
	"math"
	"time"
)

// Sweep raises the rate until every policy is saturated: until its P90 TTFT is
// beyond the objective.
type Sweep struct {
	Experiment
	// Cell makes the cell of a rate.
	Cell func(rate float64) (Cell, error)
	// Start is a usual rate; the sweep begins at half of it.
	Start     float64
	Objective time.Duration
}

// Rates of a sweep: each is a fifth more than the one before, and there are at
// most so many, which is a factor of 37 in all.
const (
	sweepFactor = 1.2
	sweepRates  = 20
)

// Run plays one rate after the other. A policy that is saturated plays no
// more.
func (s Sweep) Run(ctx context.Context) (*Report, error) {
	report := &Report{Title: s.Title, Seeds: s.Seeds}
	objective := milliseconds(s.Objective)
	knees := map[string]*Knee{}
	for _, p := range s.Policies {
		report.Knees = append(report.Knees, Knee{Name: p, ObjectiveMS: objective})
	}
	for i := range report.Knees {
		knees[report.Knees[i].Name] = &report.Knees[i]
	}
	e := s.Experiment
	for i := 0; i < sweepRates && len(e.Policies) > 0; i++ {
		cell, err := s.Cell(roundedRate(s.Start / 2 * math.Pow(sweepFactor, float64(i))))
		if err != nil {
			return report, err
		}
		e.Cells = []Cell{cell}
		if err := e.Validate(); err != nil {
			return nil, err
		}
		part, err := e.Run(ctx)
		if err != nil {
			return report, err
		}
		report.Cells = append(report.Cells, part.Cells...)
		e.Policies = nil
		for _, p := range part.Cells[0].Policies {
			if k := knees[p.Name]; p.TTFT.P90 <= objective {
				k.Rate, k.Beyond = cell.Rate, true
				e.Policies = append(e.Policies, p.Name)
			} else {
				k.Beyond = false
			}
		}
	}
	return report, nil
}

// roundedRate keeps three digits.
func roundedRate(rate float64) float64 {
	scale := math.Pow(10, 2-math.Floor(math.Log10(rate)))
	return math.Round(rate*scale) / scale
}
