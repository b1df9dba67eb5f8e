package route

import "github.com/warmroute/warmroute/prefix"

// Explanation says why a decision was what it was. It is made only when somebody asks.
type Explanation struct {
	Policy     string               `json:"policy"`
	Reason     string               `json:"reason"`
	Chosen     string               `json:"chosen,omitempty"`
	Hold       bool                 `json:"hold,omitempty"`
	RetryAfter float64              `json:"retry_after_s,omitempty"`
	Tokens     int                  `json:"prompt_tokens"`
	Output     int                  `json:"expected_output_tokens,omitempty"`
	Waited     float64              `json:"waited_s,omitempty"`
	Candidates []CandidateExplained `json:"candidates"`
}

// CandidateExplained is one candidate of an Explanation.
type CandidateExplained struct {
	ID       prefix.InstanceID `json:"id"`
	Name     string            `json:"name"`
	Chosen   bool              `json:"chosen,omitempty"`
	Excluded string            `json:"excluded,omitempty"`
	Match    int               `json:"match_tokens"`
	Known    int               `json:"known_tokens"`
	InFlight int               `json:"in_flight"`
	Queued   float64           `json:"queued_tokens"`
	Decoding float64           `json:"decoding"`
	Terms
	Ready float64 `json:"expected_ttft_s"`
	Cost  float64 `json:"cost_s"`
}

// Explain prices every candidate, the excluded ones too. For a policy without prices of its own the terms are those that the cost
// policy would have seen.
func Explain(p Policy, r *Request, cs []Candidate, d Decision) Explanation {
	prices := pricesOf(p)
	q := prices.quote(r, cs)
	e := Explanation{
		Policy: p.Name(), Reason: d.Reason.String(), Hold: d.Hold, RetryAfter: d.RetryAfter.Seconds(),
		Tokens: r.Tokens, Output: r.Output, Waited: r.Waited.Seconds(),
		Candidates: make([]CandidateExplained, len(cs)),
	}
	if d.Index >= 0 {
		e.Chosen = cs[d.Index].Name
	}
	for i := range cs {
		x := &cs[i]
		t := prices.terms(&q, x)
		e.Candidates[i] = CandidateExplained{
			ID: x.ID, Name: x.Name, Chosen: i == d.Index, Excluded: x.Excluded.String(),
			Match: x.Match, Known: x.Known,
			InFlight: x.Load.InFlight, Queued: x.Load.Queued, Decoding: x.Load.Decoding,
			Terms: t, Ready: t.Ready(), Cost: t.Total(),
		}
	}
	return e
}

func pricesOf(p Policy) *cost {
	switch p := p.(type) {
	case *cost:
		return p
	case *session:
		return p.cost
	}
	return newCost(Default())
}
