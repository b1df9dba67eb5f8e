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
	// From a laptop to eight H100 the rates span 3 us to 10 ms per token; engines that do not compute answer faster still.
	unknownClip clip = 1024
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

// observe takes the seconds that ahead tokens took, of which so many are thought to be the steps' own, and reports whether the
// rate has changed.
func (p *prefillLearner) observe(seconds, steps float64, ahead int) bool {
	if ahead <= minPrefillSample {
		return false
	}
	seconds -= min(steps, seconds/2) // A wrong idea of the steps must not explain everything.
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

// gapLearner fits gap = base + perToken*context to the gaps between tokens: least squares that forget, held by the prior. The
// prior's pull never fades, because a batch that keeps its size for a while tells nothing about how the two parts divide. All is
// in multiples of the prior: gap/priorBase = x + y*r with r = priorPer*context/priorBase.
type gapLearner struct {
	priorBase, priorPer float64
	base, perToken      float64
	clip                clip
	n, sr, srr, sg, sgr float64 // decayed sums of 1, r, r*r, gap, gap*r
}

const (
	// The memory of about 500 gaps: ten seconds of one stream.
	gapForgetting = 0.998
	// The prior weighs as much as this many gaps.
	gapPrior = 4
	// A gap counts at most as this many times what was expected: a pause of the network is not a slow engine, yet one that is
	// slow is found out after a few gaps.
	gapSurprise = 3
)

func newGapLearner(base, perToken float64, c clip) gapLearner {
	return gapLearner{priorBase: base, priorPer: perToken, base: base, perToken: perToken, clip: c}
}

// observe takes one gap in seconds with so many tokens of context in the batch.
func (g *gapLearner) observe(gap, context float64) {
	gap = min(gap, gapSurprise*(g.base+g.perToken*context)) / g.priorBase
	r := g.priorPer * context / g.priorBase
	g.n = g.n*gapForgetting + 1
	g.sr = g.sr*gapForgetting + r
	g.srr = g.srr*gapForgetting + r*r
	g.sg = g.sg*gapForgetting + gap
	g.sgr = g.sgr*gapForgetting + gap*r
	// The normal equations of sum (gap - x - y*r)^2 + gapPrior*((x-1)^2 + (y-1)^2); the determinant is at least gapPrior^2.
	a, d := g.n+gapPrior, g.srr+gapPrior
	u, v := g.sg+gapPrior, g.sgr+gapPrior
	det := a*d - g.sr*g.sr
	g.base = g.clip.bound((u*d-v*g.sr)/det, 1) * g.priorBase
	g.perToken = g.clip.bound((v*a-u*g.sr)/det, 1) * g.priorPer
}

// ceil is math.Ceil for what fits an int; it needs no call.
func ceil(x float64) float64 {
	f := float64(int(x))
	if f < x {
		f++
	}
	return f
}
