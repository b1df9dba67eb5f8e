package route

import (
	"math"
	"time"
)

// decaying is a sum whose parts halve in halfLife. It is brought up to date in steps of a 64th of that: the
// error is at most 1 %, and a busy instance pays for an exponential a few times per second only.
type decaying struct {
	halfLife time.Duration
	sum      float64
	last     time.Time
}

func (d *decaying) add(now time.Time, x float64) {
	d.settle(now)
	d.sum += x
}

func (d *decaying) at(now time.Time) float64 {
	d.settle(now)
	return d.sum
}

// perSecond is the rate of what is added: a constant rate r has the sum r*halfLife/ln 2.
func (d *decaying) perSecond(now time.Time) float64 {
	return d.at(now) * math.Ln2 / d.halfLife.Seconds()
}

func (d *decaying) settle(now time.Time) {
	if d.sum == 0 {
		d.last = now
		return
	}
	passed := now.Sub(d.last)
	if passed < d.halfLife/64 {
		return
	}
	d.sum *= math.Exp2(-float64(passed) / float64(d.halfLife))
	d.last = now
}

// average is a mean that forgets: the plain mean of the first samples, then an exponential one.
type average struct {
	mean float64
	n    int
}

const averageWindow = 32

func (a *average) add(x float64) {
	a.n = min(a.n+1, averageWindow)
	a.mean += (x - a.mean) / float64(a.n)
}

// clip bounds how far measurements may move a prior: by 1/width to width.
type clip float64

const (
	// A table entry is right within a factor of four, or the instance is not what it is said to be.
	knownClip clip = 4
	// From a laptop to eight H100 the rates span 3 us to 10 ms per token.
	unknownClip clip = 128
)

func (c clip) bound(x, prior float64) float64 {
	return min(max(x, prior/float64(c)), prior*float64(c))
}

// prefillLearner learns seconds per uncached token from times to first token. Anything that goes wrong makes a request later,
// never earlier: queues of others, a full KV cache, the network. So the lower quartile of a batch is taken, and batches are averaged.
type prefillLearner struct {
	prior, rate float64
	clip        clip
	n           int
	batch       [quartileBatch]float64
	seen        bool
}

const (
	// Below this many tokens the step's base and the network outweigh prefill.
	minPrefillSample = 1024
	quartileBatch    = 8
	quartileWeight   = 0.25
)

func newPrefillLearner(prior float64, c clip) prefillLearner {
	return prefillLearner{prior: prior, rate: prior, clip: c}
}

// observe takes the seconds that ahead tokens took and reports whether the rate has changed.
func (p *prefillLearner) observe(seconds float64, ahead int) bool {
	if ahead <= minPrefillSample {
		return false
	}
	x := p.clip.bound(seconds/float64(ahead), p.prior)
	i := p.n
	for i > 0 && p.batch[i-1] > x {
		p.batch[i] = p.batch[i-1]
		i--
	}
	p.batch[i] = x
	p.n++
	if p.n < quartileBatch {
		return false
	}
	p.n = 0
	quartile := (p.batch[quartileBatch/4-1] + p.batch[quartileBatch/4]) / 2
	if !p.seen && p.clip == unknownClip {
		p.rate = quartile // A guess has no weight against the first evidence.
	} else {
		p.rate += quartileWeight * (quartile - p.rate)
	}
	p.seen = true
	return true
}

// gapLearner fits gap = base + perToken*context to the gaps between tokens by recursive least squares with forgetting. It works
// on multiples of the prior, so that both unknowns are near 1 and the arithmetic is sound.
type gapLearner struct {
	priorBase, priorPer float64
	base, perToken      float64
	clip                clip
	x, y                float64 // base and perToken as multiples of their priors
	pxx, pxy, pyy       float64 // covariance
}

const (
	// The memory of about 500 gaps: ten seconds of one stream.
	gapForgetting = 0.998
	// How much the prior weighs: as much as a gap or two.
	gapDoubt = 1.0
	// Gaps this many times longer or shorter than expected are pauses of the network, or tokens that came together.
	gapOutlier = 8
)

func newGapLearner(base, perToken float64, c clip) gapLearner {
	return gapLearner{
		priorBase: base, priorPer: perToken, base: base, perToken: perToken, clip: c,
		x: 1, y: 1, pxx: gapDoubt, pyy: gapDoubt,
	}
}

// observe takes one gap in seconds with so many tokens of context in the batch.
func (g *gapLearner) observe(gap, context float64) {
	outlier := max(float64(g.clip), gapOutlier)
	want := g.base + g.perToken*context
	if gap <= want/outlier || gap >= want*outlier {
		return
	}
	// The unit is the prior's base: gap/base = x + y*r.
	r := g.priorPer * context / g.priorBase
	k1, k2 := g.pxx+g.pxy*r, g.pxy+g.pyy*r
	s := gapForgetting + k1 + k2*r
	k1, k2 = k1/s, k2/s
	e := gap/g.priorBase - g.x - g.y*r
	g.x += k1 * e
	g.y += k2 * e
	pxx, pxy, pyy := g.pxx, g.pxy, g.pyy
	g.pxx = min((pxx-k1*(pxx+r*pxy))/gapForgetting, gapDoubt)
	g.pxy = (pxy - k1*(pxy+r*pyy)) / gapForgetting
	g.pyy = min((pyy-k2*(pxy+r*pyy))/gapForgetting, gapDoubt)
	if lim := math.Sqrt(max(g.pxx*g.pyy, 0)); math.Abs(g.pxy) > lim {
		g.pxy = math.Copysign(lim, g.pxy)
	}
	g.x, g.y = g.clip.bound(g.x, 1), g.clip.bound(g.y, 1)
	g.base, g.perToken = g.x*g.priorBase, g.y*g.priorPer
}

// ceil is math.Ceil for what fits an int; it needs no call.
func ceil(x float64) float64 {
	f := float64(int(x))
	if f < x {
		f++
	}
	return f
}
