package sim

import (
	"errors"
	"time"
)

// Why the engine gives up a request; in [Request.Err] of an [Aborted] event.
var (
	// ErrAborted says that the caller took the request back with [Engine.Abort].
	ErrAborted = errors.New("request aborted")
	// ErrRestarted says that the engine restarted while the request was in it.
	ErrRestarted = errors.New("engine restarted")
	// ErrTooLong says that the request needs more blocks than the cache has.
	ErrTooLong = errors.New("request does not fit into the KV cache")
)

// Request is one sequence for an engine. The caller fills the first group and keeps the request unchanged until its terminal
// event; the engine fills the second. A Request can be submitted again after that event.
type Request struct {
	// ID is the caller's; the engine only carries it.
	ID uint64
	// Prompt holds the chained hashes of the prompt's complete blocks, PromptTokens/BlockTokens of them. Equal hashes mean equal
	// tokens from the very beginning.
	Prompt []uint64
	// PromptTokens is the length of the prompt, at least 1.
	PromptTokens int
	// OutputTokens is how many tokens the request generates. Zero is a pooling request (embedding, score): it ends when its
	// prompt is computed.
	OutputTokens int
	// OutputBlocks holds the chained hashes of the complete blocks after Prompt, which hold generated tokens (the first of them may
	// begin with the prompt's tail). Missing ones are derived from OutputSeed and the hash before them, see [Request.Block].
	OutputBlocks []uint64
	// OutputSeed distinguishes answers to the same prompt where OutputBlocks does not say what they are.
	OutputSeed uint64
	// TokenEvery asks for a [Token] event at each TokenEvery-th generated token. Zero asks for none, which lets the engine skip
	// over decode steps.
	TokenEvery int

	// Cached is how many prompt tokens were found in the cache at the first admission.
	Cached int
	// Arrived, Admitted, First and Done are the times of Submit, of the step that took it first, of the end of the step that gave
	// the first token, and of the terminal event.
	Arrived, Admitted, First, Done time.Duration
	// Preemptions counts how often it lost its blocks and had to be computed again.
	Preemptions int
	// Err is nil after [Done], and says why after [Aborted].
	Err error

	state
}

// phase is where a request is in the engine.
type phase uint8

const (
	outside    phase = iota // not submitted, or ended
	queued                  // in the waiting queue
	prefilling              // admitted, some of its tokens not computed yet
	decoding                // one token a step
)

// state is the engine's own view of a request, intrusive so that the hot loop follows no map.
type state struct {
	engine   *Engine
	phase    phase
	aborting bool // leaves at the end of the step under way
	started  bool // was admitted before: Cached is known

	computed   int   // tokens whose KV is in blocks; of a decoding request as of joined
	generated  int   // output tokens; of a decoding request as of joined
	joined     int64 // engine's count of steps when it began to decode
	finishes   int64 // engine's count of steps when its last token comes
	order      int64 // place among all admissions
	blocks     []int32
	registered int           // leading blocks that are findable
	lastToken  time.Duration // of a request that was preempted

	prev, next *Request // in the waiting or the running list
	heapAt     int      // place in the engine's heap of ends, while decoding
	bucket     int      // in the engine's boundaries, while decoding
}

// tokens returns how many tokens must be computed before the next one can be generated.
func (r *Request) tokens() int { return r.PromptTokens + r.generated }

// Block returns the chained hash of the i-th complete block of prompt and output together. bt is the engine's block size in
// tokens. A caller that does not know the real tokens builds the prompt of the next turn from these.
func (r *Request) Block(i, bt int) uint64 {
	n := len(r.Prompt)
	if i < n {
		return r.Prompt[i]
	}
	if i-n < len(r.OutputBlocks) {
		return r.OutputBlocks[i-n]
	}
	parent := uint64(0)
	if n > 0 {
		parent = r.Prompt[n-1]
	}
	return deriveBlock(parent, r.OutputSeed, i)
}

// Chain appends to dst the hashes of the complete blocks of the prompt and the first n output tokens: the beginning of a next turn
// that continues this one.
func (r *Request) Chain(dst []uint64, n, bt int) []uint64 {
	for i := range (r.PromptTokens + n) / bt {
		dst = append(dst, r.Block(i, bt))
	}
	return dst
}

// deriveBlock makes up the hash of the i-th block of an answer. It mixes like splitmix64, so that seeds that differ by one give
// unrelated blocks.
func deriveBlock(parent, seed uint64, i int) uint64 {
	x := parent ^ seed*0xff51afd7ed558ccd + uint64(i)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Kind says what an [Event] reports.
type Kind uint8

// The kinds of events. Each request gets exactly one terminal event, [Done] or [Aborted].
const (
	// First is the end of the step that computed the last of the prompt: the first token is there.
	First Kind = iota + 1
	// Token is a later token of a request that asked for them.
	Token
	// Done is terminal: all tokens were generated. It follows the event of the last token, at the same time.
	Done
	// Preempted says that the request lost its blocks and waits again. Its tokens stay.
	Preempted
	// Aborted is terminal: the request was given up, [Request.Err] says why.
	Aborted
)

// String returns the lower-case name of k.
func (k Kind) String() string {
	switch k {
	case First:
		return "first"
	case Token:
		return "token"
	case Done:
		return "done"
	case Preempted:
		return "preempted"
	case Aborted:
		return "aborted"
	}
	return "unknown"
}

// Event is something that happened to a request.
type Event struct {
	Req  *Request
	Kind Kind
	// At is when, since the engine's start.
	At time.Duration
	// Tokens is how many tokens the request has generated by then.
	Tokens int
}
