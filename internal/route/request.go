package route

import (
	"time"

	"github.com/warmroute/warmroute/prefix"
)

// Request is what a policy knows about the request to be placed.
type Request struct {
	// Now is the time of the decision.
	Now time.Time
	// Tokens is the length of the prompt.
	Tokens int
	// Output is the number of tokens that the answer is expected to have. Zero means unknown.
	Output int
	// Home is the hash of the beginning of the prompt's chain. Replicas of the gateway settle exact ties by it, so
	// that they agree without talking.
	Home uint64
	// Simple is the key of the hash policies: Hash of the prompt's first characters.
	Simple uint64
	// Session is the hash of the client's session name. Zero means that the request belongs to none.
	Session uint64
	// Draw is 64 random bits for the policies that throw dice.
	Draw uint64
	// Waited is how long the request has been held back so far.
	Waited time.Duration
	// MaxHold bounds Waited for this request. Zero means the policy's own bound; a negative one means never to hold.
	MaxHold time.Duration
	// Budget is the longest acceptable time to first token. Zero means the policy's own budget.
	Budget time.Duration
}

// Exclusion says why a candidate may not be chosen.
type Exclusion uint8

// The exclusions. Full is the only one that waiting a moment may lift.
const (
	Eligible Exclusion = iota // may be chosen
	Failed                    // already failed this very request
	Open                      // its circuit breaker is open
	Cooling                   // asked for a pause (Retry-After)
	Draining                  // finishes what it has and leaves
	Unready                   // not seen healthy yet, or seen unhealthy
	Full                      // at its limit of requests in flight
)

// String names the exclusion in snake_case; Eligible is the empty string.
func (e Exclusion) String() string {
	switch e {
	case Eligible:
		return ""
	case Failed:
		return "failed"
	case Open:
		return "open"
	case Cooling:
		return "cooling"
	case Draining:
		return "draining"
	case Unready:
		return "unready"
	case Full:
		return "full"
	}
	return "unknown"
}

// Candidate is one instance as a policy sees it. Policies take slices of candidates and never copy one.
type Candidate struct {
	// ID is the instance's number; the last resort in a tie.
	ID prefix.InstanceID
	// Excluded is zero when the instance may be chosen.
	Excluded Exclusion
	// Name is for people; policies use NameHash.
	Name string
	// NameHash is Hash(Name). The hash policies place keys by it, so it must not change while the instance lives.
	NameHash uint64
	// Match is the number of leading prompt tokens believed to be in the instance's cache.
	Match int
	// Known is the number of leading prompt tokens that were placed there once; those past Match are believed to be evicted.
	Known int
	// Load is the instance's Ledger at Request.Now.
	Load Load
	// Speed is how fast the instance is. The zero Speed means that nothing is known.
	Speed Speed
	// Weight is the share of the load that the counting and hashing policies give to the instance. Zero means 1.
	// The cost policy measures speed instead.
	Weight float64
}

// Reason is the rule that decided.
type Reason uint8

// The reasons.
const (
	NoReason      Reason = iota // the zero Decision
	Matched                     // chosen, and no other candidate holds more of the prompt
	Spill                       // chosen, though another candidate holds more of the prompt: waiting there costs more
	Cold                        // chosen by least cost; nobody holds any of the prompt
	Sole                        // the only candidate that may be chosen
	LateBound                   // to be held: the best instance has a full step before it
	Pinned                      // the session's instance
	Hashed                      // the key's own instance
	Overflow                    // the key's own instance has enough; the next one of the key that has room
	Turn                        // its turn in the round
	Drawn                       // chosen by the dice
	LeastRequests               // fewest requests in flight
	Overload                    // refused: nobody can answer within the budget
	AllFull                     // nobody may be chosen, and at least one only because it is full
	NoneReady                   // nobody may be chosen
)

// String names the reason in snake_case, fit for a metric label.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "unknown"
}

var reasonNames = [...]string{
	NoReason: "none", Matched: "matched", Spill: "spill", Cold: "cold", Sole: "sole", LateBound: "late_bound",
	Pinned: "session", Hashed: "hash", Overflow: "hash_overflow", Turn: "turn", Drawn: "random",
	LeastRequests: "least_requests", Overload: "overload", AllFull: "all_full", NoneReady: "none_ready",
}

// Decision is what to do with a request.
type Decision struct {
	// Index is the position of the chosen candidate, or -1.
	Index int
	// Hold asks to keep the request and to choose again when an instance of the pool sees a first token or an end, and at
	// the latest after the hold bound. Index then names the best candidate of now, for a caller that cannot hold, or is -1
	// when all are full.
	Hold bool
	// Reason is the rule that decided.
	Reason Reason
	// RetryAfter is set with Overload: how much the best time to first token exceeds the budget.
	RetryAfter time.Duration
	// Cost is the chosen candidate's price in seconds (cost and session policies), else 0.
	Cost float64
}

// A Policy chooses among candidates. It allocates nothing, but it may keep state (whose turn it is, pins, scratch), so that a
// caller with several goroutines calls it under the lock that also covers the ledgers.
type Policy interface {
	// Name is the name that New takes.
	Name() string
	// Choose picks a candidate for the request. It never picks an excluded one.
	Choose(r *Request, cs []Candidate) Decision
}
