package bench

import (
	"math"
	"math/rand/v2"
	"sort"
	"time"
)

// Length is a distribution of token counts. With Sigma 0 it is uniform over
// Min..Max, and Max below Min means always Min. Otherwise it is log-normal
// with the given Mean and Sigma (standard deviation of the logarithm), clipped
// to Min..Max when Max is set.
type Length struct {
	Min, Max int
	Mean     float64
	Sigma    float64
}

// Fixed is the distribution that always gives n.
func Fixed(n int) Length { return Length{Min: n, Max: n} }

// Between is uniform over low..high, both included.
func Between(low, high int) Length { return Length{Min: low, Max: high} }

func (l Length) draw(r *rand.Rand) int {
	if l.Sigma == 0 {
		return l.Min + r.IntN(max(l.Max-l.Min, 0)+1)
	}
	// A log-normal variable with median m has mean m*exp(sigma^2/2).
	n := int(math.Round(l.Mean * math.Exp(l.Sigma*r.NormFloat64()-l.Sigma*l.Sigma/2)))
	n = max(n, l.Min)
	if l.Max > 0 {
		n = min(n, l.Max)
	}
	return n
}

// zipf draws ranks 0..n-1 with probability proportional to 1/(rank+1)^s, for
// any s >= 0 (math/rand/v2's Zipf needs s > 1).
type zipf struct{ cumulative []float64 }

func newZipf(n int, s float64) zipf {
	z := zipf{make([]float64, n)}
	sum := 0.0
	for i := range n {
		sum += math.Pow(float64(i+1), -s)
		z.cumulative[i] = sum
	}
	for i := range n {
		z.cumulative[i] /= sum
	}
	return z
}

func (z zipf) draw(r *rand.Rand) int {
	return min(sort.SearchFloat64s(z.cumulative, r.Float64()), len(z.cumulative)-1)
}

// share is the probability of a rank.
func (z zipf) share(rank int) float64 {
	if rank == 0 {
		return z.cumulative[0]
	}
	return z.cumulative[rank] - z.cumulative[rank-1]
}

// gap draws the time to the next arrival of a Poisson process of rate per
// second.
func gap(r *rand.Rand, rate float64) time.Duration {
	return seconds(r.ExpFloat64() / rate)
}

// stream gives independent generators for one seed: the popularity draws of a
// workload stay the same when its lengths change.
func stream(seed, purpose uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, mix(purpose, 0x9e3779b97f4a7c15)))
}

// Purposes of random streams.
const (
	drawArrivals = iota + 1
	drawContent
	drawLengths
	drawPolicy
	drawReplica
)
