package bench

import (
	"cmp"
	"slices"
	"time"
)

// Summarize makes a policy's numbers from the answers to a list of calls.
// ceilings are those of [Ceilings]. speed is how many simulated seconds a
// second of wall time holds; latencies are given in simulated time. instances
// is how many there are at least: one that answered nothing is idle.
func Summarize(name string, answers []Answer, ceilings []float64, speed float64, instances int) PolicyResult {
	p := PolicyResult{Name: name, Requests: len(answers)}
	var ttft Sample
	var prompt, cached, predicted, most float64
	served := 0
	for i := range answers {
		a := &answers[i]
		if a.Err != nil {
			continue
		}
		served++
		ttft.Add(seconds((a.First - a.Sent).Seconds() * speed))
		prompt += float64(a.Usage.Prompt)
		cached += float64(a.Usage.Cached)
		predicted += float64(a.Match)
		most += ceilings[i] * float64(a.Usage.Prompt)
	}
	p.TTFT = ttft.Summary()
	p.HitRate = HitRate{Actual: ratio(cached, prompt), Predicted: ratio(predicted, prompt), Ceiling: ratio(most, prompt)}
	p.SuccessRate = ratio(float64(served), float64(len(answers)))
	p.Imbalance = imbalanceOf(answers, instances)
	return p.rounded()
}

// imbalanceOf replays the answers in order of what happened to them. Time in
// the gateway's waiting room counts as time on the instance that was chosen in
// the end: an answer does not tell them apart.
func imbalanceOf(answers []Answer, instances int) float64 {
	type step struct {
		at       time.Duration
		answer   int
		prefills bool // else it was sent
	}
	numbers := map[string]int{}
	var steps []step
	for i := range answers {
		a := &answers[i]
		if a.Err != nil || a.Instance == "" {
			continue
		}
		if _, ok := numbers[a.Instance]; !ok {
			numbers[a.Instance] = len(numbers)
		}
		steps = append(steps, step{at: a.Sent, answer: i}, step{at: a.First, answer: i, prefills: true})
	}
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	m := NewImbalance(max(len(numbers), instances, 1))
	for _, s := range steps {
		a := &answers[s.answer]
		uncached := a.Usage.Prompt - a.Usage.Cached
		if s.prefills {
			m.Prefilled(numbers[a.Instance], uncached)
			continue
		}
		m.Arrive(a.Usage.Prompt, true)
		m.Send(numbers[a.Instance], uncached)
	}
	return m.Value()
}

// PerInstance adds up the answers of each instance, by name.
func PerInstance(answers []Answer) map[string]InstanceResult {
	out := map[string]InstanceResult{}
	for i := range answers {
		a := &answers[i]
		if a.Err != nil {
			continue
		}
		in := out[a.Instance]
		in.Requests++
		in.PromptTokens += int64(a.Usage.Prompt)
		in.CachedTokens += int64(a.Usage.Cached)
		in.OutputTokens += int64(a.Usage.Output)
		out[a.Instance] = in
	}
	return out
}
