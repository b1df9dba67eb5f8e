package bench

import "math"

// Batches turns the requests of a run into a confidence interval of a mean.
//
// Requests of one run depend on each other (one long queue makes a thousand
// slow ones), so their scatter says nothing about the error of their mean. The
// method of batch means does: the run is cut into batches of equal numbers of
// requests in order of arrival, whose means are nearly independent, and the
// interval is that of the batch means by Student's t:
//
//	mean +- t(0.975, k-1) * s/sqrt(k)
//
// over the k batches of all seeds, s being their standard deviation.
type Batches struct{ means []float64 }

// batchesPerRun is a common choice: enough for a stable s, few enough for long
// batches.
const batchesPerRun = 10

// Add takes a run's requests in order of arrival, as the i-th one's share of
// numerator and denominator.
func (b *Batches) Add(numerator, denominator []float64) {
	n := len(numerator)
	if n < 2*batchesPerRun {
		return
	}
	for i := range batchesPerRun {
		num, den := 0.0, 0.0
		for j := n * i / batchesPerRun; j < n*(i+1)/batchesPerRun; j++ {
			num += numerator[j]
			den += denominator[j]
		}
		if den > 0 {
			b.means = append(b.means, num/den)
		}
	}
}

// HalfWidth is half the width of the 95 % confidence interval, 0 when there
// are too few batches.
func (b *Batches) HalfWidth() float64 {
	k := float64(len(b.means))
	if k < 2 {
		return 0
	}
	mean, squares := 0.0, 0.0
	for _, m := range b.means {
		mean += m / k
	}
	for _, m := range b.means {
		squares += (m - mean) * (m - mean)
	}
	return student975(len(b.means)-1) * math.Sqrt(squares/(k-1)/k)
}

// student975 is the 0.975-quantile of Student's t distribution, by the
// expansion of Cornish and Fisher (Abramowitz and Stegun 26.7.5): within 0.1 %
// from five degrees of freedom on, of which ten batches have nine.
func student975(freedom int) float64 {
	const z = 1.959963984540054
	if freedom < 5 {
		return [...]float64{12.7062, 4.3027, 3.1824, 2.7764}[freedom-1]
	}
	n := float64(freedom)
	z3, z5, z7 := z*z*z, z*z*z*z*z, z*z*z*z*z*z*z
	return z + (z3+z)/4/n + (5*z5+16*z3+3*z)/96/n/n + (3*z7+19*z5+17*z3-15*z)/384/n/n/n
}
