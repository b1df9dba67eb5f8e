package proxy

import (
	"time"

	"github.com/warmroute/warmroute/internal/dialect"
	"github.com/warmroute/warmroute/internal/upstream"
	"github.com/warmroute/warmroute/prefix"
)

// Recorder is told what happens to requests. Its methods are called on the
// request's own path and must be quick; they may be called from any goroutine.
type Recorder interface {
	// Started counts a request in; Ended with the same Asked counts it out.
	Started(model string)
	// Gap is the time between two contents of a stream.
	Gap(model string, gap time.Duration)
	// Ended gives the record of a request that is over. The record is valid
	// until the call returns.
	Ended(r *Record)
}

// StatusClientGone stands in records for the answer that nobody was there to
// read. It is never sent.
const StatusClientGone = 499

// Served is the class of a request that went well.
const Served upstream.Class = 0

// Record is what happened to one request: everything that the access line, the
// metrics and the accounts need, and nothing of the prompt.
type Record struct {
	ID    string       // as in X-Request-Id
	Kind  dialect.Kind // zero when the path is no API
	Asked string       // model as the client named it; empty when it never came to that
	Model string       // the pool's; empty when there is none of that name
	// Tenant is whom the request was admitted for; empty without keys.
	Tenant string

	Status int            // as the client saw it; StatusClientGone when it had left
	Class  upstream.Class // how it ended; Served is zero
	Cause  string         // a short word from a fixed list about a class that is not Served
	Detail string         // for the operator, without secrets or prompt

	Instance string // the last one asked; empty: nothing was sent
	Policy   string
	Reason   string // the rule that decided
	Cost     float64
	FailOpen bool  // the instance is broken, and so are all others
	Tries    []Try // attempts that failed and were repeated elsewhere, in order
	Attempts int   // requests sent

	PromptTokens    int  // as reported, else estimated
	OutputTokens    int  // as reported, else counted
	CachedTokens    int  // as reported; meaningful with CachedKnown
	CachedKnown     bool // the engine said how much was cached
	UsageKnown      bool // PromptTokens and OutputTokens are the engine's
	PredictedTokens int  // match of the chosen instance
	AvailableTokens int  // longest match of any instance
	UnknownParts    int  // members of the prompt that were passed through not understood
	ShortPrompt     bool // shorter than one block: can never match
	Streamed        bool // the client asked for a stream

	// Chain is the prompt's complete blocks of BlockBytes, hashed; PromptBytes is
	// the length of what they were cut from. Session is the hash of the client's
	// name for the conversation, zero without one.
	Chain       prefix.Chain
	BlockBytes  int
	PromptBytes int64
	Session     uint64

	BodyBytes   int64 // of the request, unpacked
	AnswerBytes int64 // sent to the client

	// Received is when the request came, Read when its body was there, Dispatched
	// when the last attempt left, First when its first content came, End when all
	// was over. Zero: it never came to that.
	Received, Read, Dispatched, First, End time.Time
	Held                                   time.Duration // waited for an instance
	Overhead                               time.Duration // the gateway's own work from Read to the first dispatch, without Held
}

// Try is an attempt that failed before anything of it reached the client.
type Try struct {
	Instance string
	Class    upstream.Class
	Cause    string
}

// Outcome names how the request ended: served, or the fault class.
func (r *Record) Outcome() string {
	if r.Class == Served {
		return "served"
	}
	return r.Class.String()
}

// TTFT is the time to first token: from the request fully read to its first
// content. It reports false when there was none.
func (r *Record) TTFT() (time.Duration, bool) {
	if r.First.IsZero() || r.Read.IsZero() {
		return 0, false
	}
	return r.First.Sub(r.Read), true
}

// E2E is the time from the request fully read to its end; zero when it was never
// read.
func (r *Record) E2E() time.Duration {
	if r.Read.IsZero() {
		return 0
	}
	return r.End.Sub(r.Read)
}

// noRecorder records nothing.
type noRecorder struct{}

func (noRecorder) Started(string)            {}
func (noRecorder) Gap(string, time.Duration) {}
func (noRecorder) Ended(*Record)             {}
