package index

import "math"

// Report is what an engine said was cached of a placed chain when it began to work on it.
type Report struct {
	// CachedBlocks is the number of leading blocks that were cached: cached tokens, in blocks.
	CachedBlocks float64
	// Slack is by how many blocks CachedBlocks may be off, either way. Zero means DefaultSlack.
	Slack float64
}

// DefaultSlack allows for a count in whole engine blocks, for the last token that is never cached, and for bytes per token that differ
// a little along the prompt.
const DefaultSlack = 2

const (
	// engineBlock is the granularity in tokens of most engines' caches.
	engineBlock = 16
	// ratioSpread is how much the bytes per token of a prompt's beginning may differ from those of the whole.
	ratioSpread = 0.15
)

// TokenReport turns an engine's count of cached tokens into a [Report]: prompt tokens are those of the whole prompt, promptBytes its bytes
// in the canonical stream. Bytes per token vary along a prompt, so the slack is largest for a count in the middle and small at both ends.
func TokenReport(cached, prompt int, promptBytes int64, blockBytes int) Report {
	if cached <= 0 || prompt <= 0 || promptBytes <= 0 || blockBytes <= 0 {
		return Report{}
	}
	share := min(float64(cached)/float64(prompt), 1)
	blocks := float64(promptBytes) / float64(blockBytes)
	perToken := blocks / float64(prompt)
	return Report{
		CachedBlocks: share * blocks,
		Slack:        1 + engineBlock*perToken + ratioSpread*share*(1-share)*blocks,
	}
}

// Learn tells what the engine said was cached of a placement. It may be called once, at any time after Place.
//
// The report is a measurement of the capacity in units of stack distance at dispatch: what the last cached block needed, the engine has;
// what the first block that is not cached needed, it has not. The latter counts only for a block that an earlier request had confirmed
// before the dispatch, as two requests with one new prefix in one engine step both miss it and nothing was evicted.
func (x *Index) Learn(p *Placement, r Report) {
	if x.learnLocking(p, r) {
		x.sweep(p.in)
	}
}

// learnLocking is Learn under the lock. It reports whether the instance turned out to have been flushed.
func (x *Index) learnLocking(p *Placement, r Report) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !p.live() || p.learned || p.state == inert {
		return false
	}
	p.learned = true
	in := p.in
	in.counts.reports++
	in.counts.reported += uint64(max(0, r.CachedBlocks) + 0.5)
	in.counts.expected += uint64(p.resident)
	if p.seq < in.since || p.epoch != in.epoch {
		return false // what was believed then was flushed since
	}
	alive, dead, seq := p.evidence(r, in.since)
	if p.seq < in.noticed {
		dead = 0 // it was sent in ignorance of the flush, to which its misses are due
	}
	if in.learn.observe(alive, dead) {
		// A dead block's touch and everything older is gone. When not even the first blocks were there, so is all that was
		// touched before this request.
		if r.CachedBlocks <= r.slack() {
			seq = p.seq - 1
		}
		x.flushLocked(in, seq+1)
		in.noticed = in.stack.next
		return true
	}
	x.settleLocked(in)
	return false
}

func (r Report) slack() float64 {
	if r.Slack <= 0 {
		return DefaultSlack
	}
	return r.Slack
}

// evidence returns the capacity that the last surely cached block needed (0: none was), that the first known block which surely was not
// cached needed (0: none), and when the latter was touched. What was touched before since is known to be gone and says nothing.
func (p *Placement) evidence(r Report, since uint32) (alive, dead int, seq uint32) {
	last := math.Floor(r.CachedBlocks - r.slack())    // so many leading blocks were cached
	missed := math.Ceil(r.CachedBlocks+r.slack()) + 1 // the last of so many was not
	for i, start := 0, 0; i < len(p.spans); i++ {
		sp := &p.spans[i]
		if end := int(min(last, float64(sp.end))); end > start {
			alive = sp.reach + end
		}
		if missed <= float64(sp.end) && dead == 0 && sp.known && sp.seq >= since {
			dead, seq = sp.reach+max(int(missed), start+1), sp.seq
		}
		start = int(sp.end)
	}
	return alive, dead, seq
}

// unknown is the capacity of an instance that was never seen to evict: everything known is resident.
const unknown = math.MaxInt32

// learner estimates the capacity of one instance, in blocks, from bounds. The zero learner knows nothing.
type learner struct {
	told     int     // what SetCapacity said
	capacity float64 // 0: unknown
	proven   float64 // largest need that was alive since the last flush, as far as the capacity allows
	doubt    float64 // need of the young block whose death was taken for a flush, while nothing as old was alive since
}

const (
	// gain is the share of the gap to a bound that one report closes. Bounds near the truth contradict each other (the engine counts in
	// tokens, in its own blocks, and at another moment), so that no report is believed fully.
	gain = 0.25
	// farGain is the same for a bound further away than far, which noise does not explain.
	farGain = 0.6
	far     = 1.3
	// A dead block is a sign of a flush rather than of a smaller capacity when it needed less than this share of what was seen alive
	// since capacity last fell, or less than the second share of the capacity, which may be as wrong as its source.
	young     = 0.45
	veryYoung = 0.2
	// margin is how far above the capacity a block may have been alive once capacity has fallen below that.
	margin = 1.2
)

// sameTold is the change of a told capacity that is no news, as a share. Capacities told in tokens and converted with a learned ratio
// drift, and must not undo what was learned.
const sameTold = 0.25

// tell sets what is known of the capacity from outside, and reports whether that is news.
func (l *learner) tell(blocks int) bool {
	if blocks <= 0 || math.Abs(float64(blocks-l.told)) <= sameTold*float64(l.told) {
		return false
	}
	*l = learner{told: blocks, capacity: float64(blocks)}
	return true
}

// blocks returns the capacity, or unknown.
func (l *learner) blocks() int {
	if l.capacity <= 0 {
		return unknown
	}
	return int(min(l.capacity, unknown))
}

// observe takes a lower and an upper bound of the capacity; 0 is none. It reports whether they show a flush rather than a capacity.
func (l *learner) observe(alive, dead int) (flushed bool) {
	low, high := float64(alive), float64(dead)
	if alive > 0 {
		l.proven = max(l.proven, low)
		if low > l.doubt {
			l.doubt = 0
		}
		if l.capacity > 0 && low > l.capacity {
			l.capacity += l.step(low/l.capacity) * (low - l.capacity)
		}
	}
	if dead == 0 {
		return false
	}
	switch flush := high < max(young*l.proven, veryYoung*l.capacity); {
	case flush && l.doubt == 0:
		l.doubt, l.proven = high, 0
		return true
	case flush:
		// Nothing so old was alive since the last flush: then it is the capacity.
		l.capacity = max(high, max(l.capacity, l.proven)/2)
	case l.capacity == 0:
		l.capacity = high
	case high < l.capacity:
		l.capacity -= l.step(l.capacity/high) * (l.capacity - high)
	}
	l.proven = min(l.proven, margin*l.capacity)
	return false
}

// step returns the gain for a bound that is off by a factor.
func (l *learner) step(factor float64) float64 {
	if factor > far {
		return farGain
	}
	return gain
}
