package route

import (
	"container/heap"
	"time"

	"github.com/warmroute/warmroute/prefix"
)

// Virtual is a fleet that exists in predictions only: what the instances of a pool would have before them if another policy had
// placed the same requests. Each instance prefills one request after another at its learned speed and decodes all together. It
// knows no chance, no failures and no late binding, so its numbers are to be compared with those of another Virtual under the same
// requests and not with a clock. A Virtual does not lock: its owner does. The zero Virtual is empty and ready.
type Virtual struct {
	nodes []*virtualNode // by instance; nil: not met yet
	runs  virtualRuns    // what is in flight, the next to change first
	spare []*virtualRun
	next  uint64
}

// virtualNode is one instance.
type virtualNode struct {
	ledger *Ledger
	free   time.Time // when all that was dispatched is prefilled
	busy   decaying  // seconds of prefill
}

// virtualRun is one request in flight.
type virtualRun struct {
	at        time.Time // when it changes
	number    uint64    // order of dispatch, for ties
	node      *virtualNode
	ticket    Ticket
	decodes   bool // past its first token: it ends next
	output    int
	base, ctx float64 // seconds per step, and per step and token of context
}

const (
	// maxVirtual bounds the requests in flight of a Virtual, 250 bytes each: beyond it the one that is due first is taken for done.
	maxVirtual = 1 << 14
	// maxVirtualTTFT is where a prediction ends: clients have left by then.
	maxVirtualTTFT = 10 * time.Minute
	// maxVirtualBusy is the share of prefill at which streams crawl rather than stop.
	maxVirtualBusy = 0.9
)

// node finds an instance, which is met with its first candidate.
func (v *Virtual) node(x *Candidate) *virtualNode {
	if n := int(x.ID) + 1; n > len(v.nodes) {
		v.nodes = append(v.nodes, make([]*virtualNode, n-len(v.nodes))...)
	}
	n := v.nodes[x.ID]
	if n == nil {
		n = &virtualNode{ledger: NewLedger(x.Speed), busy: decaying{halfLife: arrivalHalfLife}}
		v.nodes[x.ID] = n
	}
	if x.Speed.KVTokens > 0 {
		n.ledger.speed.KVTokens = x.Speed.KVTokens
	}
	return n
}

// Leave forgets an instance that has left, or one whose number names another.
func (v *Virtual) Leave(id prefix.InstanceID) {
	if int(id) < len(v.nodes) {
		v.nodes[id] = nil
	}
}

// InFlight counts the requests that are predicted to run.
func (v *Virtual) InFlight() int { return len(v.runs) }

// Look replaces the loads of candidates by the predicted ones. Who is full in reality may have room here; other exclusions stay.
func (v *Virtual) Look(now time.Time, cs []Candidate) {
	v.advance(now)
	for i := range cs {
		x := &cs[i]
		x.Load = v.node(x).ledger.Load(now)
		if x.Excluded == Full {
			x.Excluded = Eligible
		}
	}
}

// Dispatch sends a request to a candidate of the last Look and predicts its time to first token.
func (v *Virtual) Dispatch(now time.Time, r *Request, x *Candidate) time.Duration {
	s := x.Speed
	if !s.Known() {
		s = Unknown()
	}
	n, u, l := v.node(x), left(r, x), &x.Load
	// The memory that is missing for all before it is missing once, so it is not added to their prefill.
	begin := now.Add(seconds(admission(&s, l, u)))
	steps := u / max(float64(s.StepTokens)-l.Decoding, 1)
	if n.free.After(begin) {
		begin = n.free // Its tokens fill up steps that are under way.
	} else {
		steps = ceil(steps)
	}
	work := prefillTime(&s, u, float64(max(r.Tokens, 1))) + steps*(s.DecodeBase+s.DecodeCtx*l.Context)
	first := begin.Add(seconds(work))
	if latest := now.Add(maxVirtualTTFT); first.After(latest) {
		first = latest
	}
	n.free = first
	n.busy.add(now, work)
	for len(v.runs) >= maxVirtual {
		v.step()
	}
	run := v.newRun()
	v.next++
	*run = virtualRun{
		at: first, number: v.next, node: n, output: max(r.Output, 1), base: s.DecodeBase, ctx: s.DecodeCtx,
		ticket: n.ledger.Dispatch(now, int(u), r.Tokens, r.Output),
	}
	heap.Push(&v.runs, run)
	return first.Sub(now)
}

// advance lets happen what is due.
func (v *Virtual) advance(now time.Time) {
	for len(v.runs) > 0 && !v.runs[0].at.After(now) {
		v.step()
	}
}

// step lets the next thing happen.
func (v *Virtual) step() {
	x := v.runs[0]
	l := x.node.ledger
	if x.decodes {
		heap.Pop(&v.runs)
		l.Token(x.at, &x.ticket, x.output-x.output/2)
		l.End(x.at, &x.ticket)
		v.spare = append(v.spare, x)
		return
	}
	// Half of the answer at its beginning and half at its end are right on average.
	l.FirstToken(x.at, &x.ticket)
	l.Token(x.at, &x.ticket, x.output/2)
	// Prefill takes its share of the steps' time from the streams.
	busy := min(x.node.busy.perSecond(x.at), maxVirtualBusy)
	x.decodes = true
	x.at = x.at.Add(seconds(float64(x.output) * (x.base + x.ctx*float64(l.context)) / (1 - busy)))
	heap.Fix(&v.runs, 0)
}

func (v *Virtual) newRun() *virtualRun {
	if n := len(v.spare); n > 0 {
		x := v.spare[n-1]
		v.spare = v.spare[:n-1]
		return x
	}
	return new(virtualRun)
}

// virtualRuns is a heap of runs by the time of their next change.
type virtualRuns []*virtualRun

// Len implements [heap.Interface].
func (h virtualRuns) Len() int { return len(h) }

// Less implements [heap.Interface].
func (h virtualRuns) Less(i, j int) bool {
	if !h[i].at.Equal(h[j].at) {
		return h[i].at.Before(h[j].at)
	}
	return h[i].number < h[j].number
}

// Swap implements [heap.Interface].
func (h virtualRuns) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements [heap.Interface].
func (h *virtualRuns) Push(x any) { *h = append(*h, x.(*virtualRun)) }

// Pop implements [heap.Interface].
func (h *virtualRuns) Pop() any {
	old := *h
	n := len(old) - 1
	x := old[n]
	old[n] = nil
	*h = old[:n]
	return x
}
