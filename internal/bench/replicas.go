package bench

import (
	"time"

	"github.com/warmroute/warmroute/internal/index"
	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/prefix"
)

// copied is what a replica of the gateway keeps of a flight that another one
// sent.
type copied struct {
	instance  int
	ticket    route.Ticket
	placement index.Placement
}

// noticeKind is what replicas tell each other of a flight.
type noticeKind uint8

const (
	noticeSent noticeKind = iota
	noticeFirst
	noticeDone
	noticeFailed
)

// notice is a message from one replica to all others.
type notice struct {
	at               time.Duration // of its arrival
	kind             noticeKind
	from             int
	flight           *flight
	instance         int
	uncached, output int
}

// grapevine carries notices. All take the same time, so they arrive in the
// order in which they are sent, and a queue is all there is to it.
type grapevine struct {
	off   bool
	delay time.Duration
	queue []notice
	head  int
}

// next is when the earliest notice arrives.
func (g *grapevine) next() time.Duration {
	if g.head == len(g.queue) {
		return never
	}
	return g.queue[g.head].at
}

func (g *grapevine) take() notice {
	n := g.queue[g.head]
	g.queue[g.head] = notice{}
	g.head++
	if g.head == len(g.queue) {
		g.queue, g.head = g.queue[:0], 0
	} else if g.head > compactFrom && 2*g.head > len(g.queue) {
		g.queue = append(g.queue[:0], g.queue[g.head:]...)
		g.head = 0
	}
	return n
}

// compactFrom is how many taken notices are too few to move the others for.
const compactFrom = 1024

// tell sends a notice of a flight to the other replicas. The flight's memory
// stays its own until all notices have arrived.
func (g *gateway) tell(kind noticeKind, f *flight, uncached int) {
	v := &g.w.vine
	if v.off {
		return
	}
	f.notices++
	v.queue = append(v.queue, notice{g.w.now + v.delay, kind, g.number, f, f.instance, uncached, int(g.output)})
}

// spread lets a notice arrive at all replicas but its sender.
func (w *world) spread(n notice) {
	for _, g := range w.gateways {
		if g.number != n.from {
			g.hear(n)
		}
	}
	n.flight.notices--
	w.release(n.flight)
}

// hear enters what another replica did in this one's books.
func (g *gateway) hear(n notice) {
	f := n.flight
	c := &f.copies[g.number]
	switch n.kind {
	case noticeSent:
		c.instance = n.instance
		c.ticket = g.ledgers[c.instance].Dispatch(g.now(), n.uncached, f.prompt, n.output)
		g.index.Place(prefix.InstanceID(c.instance), f.chain.blocks[:f.onPrompt], &c.placement)
		return
	case noticeFirst:
		g.ledgers[c.instance].FirstToken(g.now(), &c.ticket)
		g.index.Confirm(&c.placement)
	case noticeDone:
		g.ledgers[c.instance].End(g.now(), &c.ticket)
		g.finish(f, &c.placement)
	case noticeFailed:
		g.ledgers[c.instance].End(g.now(), &c.ticket)
		g.index.TakeBack(&c.placement)
	}
	g.rebind()
}
