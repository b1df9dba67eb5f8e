package bench

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/warmroute/warmroute/prefix"
)

// Arrivals spaces requests in place of a workload's own times. It suits
// workloads whose requests do not wait for answers.
type Arrivals struct {
	Rate float64 // requests per second
	// Burstiness is the shape of the gamma distribution that gaps are drawn
	// from, its mean being 1/Rate: 1 makes a Poisson process, less makes bursts,
	// more makes arrivals even. Positive infinity spaces them equally. The
	// meaning is that of vLLM's bench serve --burstiness.
	Burstiness float64
}

// gap draws the time to the next arrival.
func (a Arrivals) gap(r *rand.Rand) time.Duration {
	if math.IsInf(a.Burstiness, 1) {
		return seconds(1 / a.Rate)
	}
	return seconds(gamma(r, a.Burstiness) / (a.Burstiness * a.Rate))
}

// gamma draws from the gamma distribution of the given shape and scale 1, after
// Marsaglia and Tsang, "A simple method for generating gamma variables", ACM
// TOMS 26 (2000); shapes below 1 by their boost of shape+1.
func gamma(r *rand.Rand, shape float64) float64 {
	boost := 1.0
	if shape < 1 {
		boost = math.Pow(r.Float64(), 1/shape)
		shape++
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := r.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		if math.Log(r.Float64()) < x*x/2+d-d*v+d*math.Log(v) {
			return d * v * boost
		}
	}
}

// Spaced is a workload with other arrival times.
func Spaced(w Workload, a Arrivals) Workload { return spaced{w, a} }

type spaced struct {
	Workload
	arrivals Arrivals
}

// Source implements [Workload].
func (w spaced) Source(seed uint64) Source {
	s := &spacedSource{Source: w.Workload.Source(seed), arrivals: w.arrivals, draws: stream(seed, drawArrivals)}
	s.at = w.arrivals.gap(s.draws)
	return s
}

type spacedSource struct {
	Source
	arrivals Arrivals
	draws    *rand.Rand
	at       time.Duration
}

func (s *spacedSource) Next() (time.Duration, bool) {
	_, ok := s.Source.Next()
	return s.at, ok
}

func (s *spacedSource) Take(r *Request) {
	s.Source.Take(r)
	r.At = s.at
	s.at += s.arrivals.gap(s.draws)
}

// Planned is how many requests a workload will send, 0 when that depends on the
// answers.
func Planned(w Workload) int {
	switch w := w.(type) {
	case spaced:
		return Planned(w.Workload)
	case RAG:
		return w.Requests
	case Groups:
		return w.Requests
	case *Trace:
		return w.Len()
	}
	return 0
}

// Independent reports whether no request of a workload waits for an answer.
func Independent(w Workload) bool { return Planned(w) > 0 }

// Until returns the trace's requests that arrive within a time, at its speed;
// at least one.
func (t *Trace) Until(length time.Duration) *Trace {
	most := t.records[0].Timestamp + int64(float64(length.Milliseconds())*t.speed)
	n, _ := slices.BinarySearchFunc(t.records, most+1, func(r prefix.Record, at int64) int { return cmp.Compare(r.Timestamp, at) })
	return t.Head(max(n, 1))
}
