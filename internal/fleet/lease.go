package fleet

import (
	"time"

	"github.com/warmroute/warmroute/internal/route"
)

// Result is how a request at an instance ended: well, or with one of the fault
// classes.
type Result uint8

// The results.
const (
	Served          Result = iota + 1 // complete
	ClientFault                       // the request's own fault: says nothing about the instance
	CredentialFault                   // the instance refuses our key
	CapacityFault                     // the instance is well but full
	TransientFault                    // connection error, server error, too slow
	Truncated                         // the answer ended without its marker
	ClientGone                        // the client left: says nothing about the instance
)

// String returns the result as it stands in metrics and logs.
func (r Result) String() string {
	switch r {
	case Served:
		return "served"
	case ClientFault:
		return "client"
	case CredentialFault:
		return "credential"
	case CapacityFault:
		return "capacity"
	case TransientFault:
		return "transient"
	case Truncated:
		return "truncated"
	case ClientGone:
		return "client_gone"
	}
	return "unknown"
}

// Outcome is a result with what the instance said about it.
type Outcome struct {
	Result Result
	// RetryAfter is how long the instance asked to be left alone; 0 when it did
	// not say. It counts with CapacityFault and TransientFault.
	RetryAfter time.Duration
}

// Lease is the right to one place of an instance. Its methods may be called from
// several goroutines.
type Lease struct {
	in       *Instance
	model    string
	charge   Charge
	failOpen bool

	// Guarded by in.mu.
	ticket     route.Ticket
	how        passage
	epoch      int // of the instance when the lease began
	first      bool
	released   bool
	prev, next *Lease // among the instance's leases
}

// Instance returns the instance.
func (l *Lease) Instance() *Instance { return l.in }

// Model returns what the instance calls the model.
func (l *Lease) Model() string { return l.model }

// FailOpen reports whether the instance was chosen although it is broken,
// because all are.
func (l *Lease) FailOpen() bool { return l.failOpen }

// FirstToken notes the first content of the answer. Only the first call counts.
func (l *Lease) FirstToken(now time.Time) {
	l.in.mu.Lock()
	defer l.in.mu.Unlock()
	if l.released || l.first {
		return
	}
	l.firstLocked(now)
}

// Assume takes the prefill to be over, of a request whose answer comes whole. It teaches the ledger nothing and is no success of the
// instance; FirstToken is, when the answer is there.
func (l *Lease) Assume(now time.Time) {
	l.in.mu.Lock()
	defer l.in.mu.Unlock()
	if !l.released && !l.first {
		l.in.ledger.Assume(now, &l.ticket)
	}
}

func (l *Lease) firstLocked(now time.Time) {
	l.first = true
	l.in.ledger.FirstToken(now, &l.ticket)
	if l.epoch == l.in.epoch {
		l.in.breaker.success(now, l.how)
	}
	l.how = ordinary // what happens to it later is like any other request's
	l.in.progress = now
}

// Token notes n more tokens of the answer; the first call is the first token,
// too.
func (l *Lease) Token(now time.Time, n int) {
	l.in.mu.Lock()
	defer l.in.mu.Unlock()
	if l.released {
		return
	}
	if !l.first {
		l.firstLocked(now)
	}
	l.in.ledger.Token(now, &l.ticket, n)
	l.in.progress = now
}

// Release gives the place back and tells the instance's breaker, limit and
// counters how the request ended. Only the first call counts.
func (l *Lease) Release(now time.Time, o Outcome) {
	l.in.mu.Lock()
	defer l.in.mu.Unlock()
	if l.released {
		return
	}
	l.released = true
	l.in.leaveLocked(l, now)
	l.in.judgeLocked(l, now, o)
}
