package bench

import (
	"math"
	"slices"
	"time"
)

// Sample collects durations and answers for their quantiles. It keeps every
// value, 8 bytes each, so quantiles are exact.
type Sample struct {
	seconds []float64
	sum     float64
	sorted  bool
}

// Add records one duration.
func (s *Sample) Add(d time.Duration) {
	s.seconds = append(s.seconds, d.Seconds())
	s.sum += d.Seconds()
	s.sorted = false
}

// Len is the number of durations recorded.
func (s *Sample) Len() int { return len(s.seconds) }

// Mean is the arithmetic mean, 0 for an empty sample.
func (s *Sample) Mean() time.Duration {
	if len(s.seconds) == 0 {
		return 0
	}
	return seconds(s.sum / float64(len(s.seconds)))
}

// Quantile is the q-quantile, q from 0 to 1, interpolated linearly between the
// two nearest ranks (type 7 of Hyndman and Fan, numpy's default): the value at
// position q*(n-1) of the sorted sample. It is 0 for an empty sample.
func (s *Sample) Quantile(q float64) time.Duration {
	if len(s.seconds) == 0 {
		return 0
	}
	if !s.sorted {
		slices.Sort(s.seconds)
		s.sorted = true
	}
	at := min(max(q, 0), 1) * float64(len(s.seconds)-1)
	low := int(math.Floor(at))
	high := min(low+1, len(s.seconds)-1)
	return seconds(s.seconds[low] + (at-float64(low))*(s.seconds[high]-s.seconds[low]))
}

// merge adds another sample's durations.
func (s *Sample) merge(o *Sample) {
	s.seconds = append(s.seconds, o.seconds...)
	s.sum += o.sum
	s.sorted = false
}

// distributionPoints is enough for a chart a thousand pixels wide to look
// smooth, tails included.
const distributionPoints = 200

// distribution is the sample's distribution function: pairs of milliseconds
// and the share of durations up to there. Half of the points lie in the upper
// tail, from the 90th percentile on.
func (s *Sample) distribution() [][2]float64 {
	if s.Len() == 0 {
		return nil
	}
	out := make([][2]float64, 0, distributionPoints+1)
	for i := range distributionPoints + 1 {
		q := 0.9 * 2 * float64(i) / distributionPoints
		if 2*i > distributionPoints {
			// The remaining tenth is divided by decades: 1 - q goes from 0.1 to 0.0001.
			q = 1 - math.Pow(10, -1-3*(2*float64(i)/distributionPoints-1))
		}
		out = append(out, [2]float64{milliseconds(s.Quantile(q)), rounded(q, 5)})
	}
	return out
}

// Summary is the sample in the four numbers that reports print.
func (s *Sample) Summary() Summary {
	return Summary{
		P50:  milliseconds(s.Quantile(0.50)),
		P90:  milliseconds(s.Quantile(0.90)),
		P99:  milliseconds(s.Quantile(0.99)),
		Mean: milliseconds(s.Mean()),
	}
}

// Summary is a latency distribution in milliseconds, rounded to a microsecond.
type Summary struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	Mean float64 `json:"mean"`
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func milliseconds(d time.Duration) float64 {
	return math.Round(float64(d)/float64(time.Microsecond)) / 1000
}

// rounded keeps the given number of decimals, so that printed JSON carries no
// digits that mean nothing.
func rounded(x float64, decimals int) float64 {
	scale := math.Pow10(decimals)
	return math.Round(x*scale) / scale
}

// ratio is part/whole, 0 when there is no whole.
func ratio(part, whole float64) float64 {
	if whole == 0 {
		return 0
	}
	return part / whole
}
