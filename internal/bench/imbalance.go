package bench

// Imbalance measures how unevenly unfinished prefill lies on the instances.
//
// At each arrival it compares what a prompt of average length would find on
// the busiest instance with what it would find on the average one:
//
//	imbalance = mean over arrivals of (max_i Q_i + n) / (mean_i Q_i + n)
//
// where Q_i are the prompt tokens that instance i has been sent, does not hold
// in its cache and has not finished prefilling (the request has no first
// token yet), and n is the mean prompt length. It is the ratio of the times to
// first token of a cold prompt on the busiest and on the average instance:
// 1 means even, 2 that a request may wait twice as long as it would have to.
// n in both terms keeps an idle fleet at 1 instead of 0/0.
type Imbalance struct {
	queued   []float64 // Q_i
	prompts  float64
	requests int

	sum     float64
	samples int
}

// NewImbalance starts with n idle instances.
func NewImbalance(n int) *Imbalance { return &Imbalance{queued: make([]float64, n)} }

// Arrive takes the arrival of a prompt into account; with count it is also one
// of the moments that are averaged.
func (m *Imbalance) Arrive(promptTokens int, count bool) {
	m.prompts += float64(promptTokens)
	m.requests++
	if !count {
		return
	}
	n := m.prompts / float64(m.requests)
	busiest, sum := 0.0, 0.0
	for _, q := range m.queued {
		busiest = max(busiest, q)
		sum += q
	}
	m.sum += (busiest + n) / (sum/float64(len(m.queued)) + n)
	m.samples++
}

// Send adds a request's uncached tokens to an instance.
func (m *Imbalance) Send(instance, uncached int) { m.queued[instance] += float64(uncached) }

// Prefilled takes them off again: the first token came, or the request ended
// without one.
func (m *Imbalance) Prefilled(instance, uncached int) { m.queued[instance] -= float64(uncached) }

// Value is the mean so far, 1 before the first arrival.
func (m *Imbalance) Value() float64 {
	if m.samples == 0 {
		return 1
	}
	return m.sum / float64(m.samples)
}
