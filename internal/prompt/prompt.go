// Package prompt defines the canonical prompt: the one byte stream that the
// same conversation gives through every front door, in the order in which
// engines render it. Hashed into a [prefix.Chain] it tells how much of a
// prompt an instance may already hold.
//
// Reading order: this file holds the parts of a request, stream.go writes them
// as bytes and documents the framing, compact.go evens out embedded JSON,
// media.go names images and files by content, ratio.go learns bytes per token,
// head.go gives the text for the simple key, dump.go makes a stream readable.
package prompt

// Request is what a request asks an engine to read, whatever API it came by.
// Either Messages (chat) or Raw and Tokens (completions, embeddings, scores)
// are set. The strings may alias the request's body.
type Request struct {
	Scope    Scope
	Tools    []Tool
	Messages []Message
	Raw      []string // untemplated prompts, each one sequence for the engine
	Tokens   [][]int  // prompts that came as token ids
	// Continue says that the last message is to be continued rather than
	// answered, so no generation marker follows it.
	Continue bool
}

// Scope is what separates caches even under the same text. Requests of
// different scopes share no block.
type Scope struct {
	Model     string
	Adapter   string // LoRA adapter
	Tenant    string // set by the gateway, never by the client
	CacheSalt string // the client's own cache_salt or extra_key
	Template  []byte // JSON of what steers the chat template: chat_template_kwargs and the like
}

// Tool is a tool as the engine sees it. Parameters keeps the client's key
// order, because engines render it in that order.
type Tool struct {
	Type        string // "function" when empty
	Name        string
	Description string
	Parameters  string  // raw JSON
	Extra       []Field // further members in the client's order
}

// Field is a JSON member whose meaning this package does not know.
type Field struct {
	Name string
	Raw  string // raw JSON
}

// Message is one message of a conversation. A message without a role is raw
// text that continues an untemplated prompt.
type Message struct {
	Role  string
	Name  string
	Parts []Part
}

// Text returns the message's text parts, joined as the stream joins them. It
// copies only when there are several.
func (m *Message) Text() string {
	var b joiner
	for i := range m.Parts {
		if p := &m.Parts[i]; p.Kind == Text || p.Kind == ToolResult {
			b.add("\n", p.Text)
		}
	}
	return b.String()
}

// PartKind says what a [Part] is.
type PartKind uint8

// The kinds of parts.
const (
	Text       PartKind = iota + 1 // what the author wrote
	Reasoning                      // what the model thought before it
	Image                          // a picture, by reference
	Audio                          // a sound, by reference
	Video                          // a film, by reference
	File                           // a document, by reference
	ToolCall                       // the model calls a tool
	ToolResult                     // text that a tool returned
	Unknown                        // anything else, as raw JSON
)

var partKinds = [...]string{"invalid", "text", "reasoning", "image", "audio", "video", "file", "tool_call", "tool_result", "unknown"}

// String returns the kind's name in lower case.
func (k PartKind) String() string {
	if int(k) < len(partKinds) {
		return partKinds[k]
	}
	return partKinds[0]
}

// Part is a piece of a message.
type Part struct {
	Kind PartKind
	// Text is the text itself; of a ToolCall its arguments as JSON, of an
	// Unknown part its raw JSON, of media the reference that [MediaRef] made.
	Text string
	Name string // function that a ToolCall calls
	ID   string // call id of a ToolCall or ToolResult; few engines render it, so it is no part of the stream
}
