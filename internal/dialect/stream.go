package dialect

import "github.com/warmroute/warmroute/internal/prompt"

// Class says what an event of a stream means for the gateway.
type Class uint8

// The classes of events.
const (
	Held      Class = iota // no content yet: role-only deltas, pings, comments; may wait
	Content                // carries content: text, reasoning, a tool call
	UsageOnly              // carries token counts and nothing else
	Finish                 // says why the answer ends, without content
	Done                   // the stream's own last event
	Failure                // an error in place of content
)

// Stream follows one stream of events. It is not safe for concurrent use.
type Stream struct{}

// NewStream returns the state for a stream of kind k that collects at most
// limit bytes of the answer; zero collects none.
func NewStream(k Kind, limit int) *Stream { return &Stream{} }

// Observe takes the next event and says what it is.
func (s *Stream) Observe(e Event) Class { return Held }

// Usage returns the token counts seen so far.
func (s *Stream) Usage() Usage { return Usage{} }

// Complete reports whether a terminal marker was seen.
func (s *Stream) Complete() bool { return false }

// Tokens returns the number of content events so far.
func (s *Stream) Tokens() int { return 0 }

// Fault returns the error that a Failure event carried, nil when there was none.
func (s *Stream) Fault() *Error { return nil }

// Answer returns what was collected and whether it may join the chain.
func (s *Stream) Answer() (prompt.Message, bool) { return prompt.Message{}, false }
