// Package dialect reads and edits the wire formats that clients and engines
// speak: requests, answers, streams, usage and errors. Bodies of one dialect
// pass through the gateway byte for byte; decoding serves routing and
// accounting only, and an edit touches nothing but its own bytes.
//
// Reading order: this file holds the kinds of call, decode.go and the files
// per API (chat.go, responses.go, raw.go, part.go, tool.go, template.go) turn a
// request into a [Call] over the pull parser of json.go, edit.go changes a body,
// sse.go cuts a stream into events, stream.go says what each event means and
// collector.go puts the answer together, answer.go reads whole answers, usage.go
// knows every shape of token counts, error.go writes errors and fault.go reads
// them.
package dialect

import "github.com/warmroute/warmroute/internal/prompt"

// Kind is an API that a request speaks.
type Kind uint8

// The kinds of call, all of the OpenAI family. Rerank and Score are those of
// Jina and vLLM.
const (
	Chat Kind = iota + 1
	Completions
	Embeddings
	Responses
	Rerank
	Score
	Tokenize
)

var kinds = [...]string{"invalid", "chat", "completions", "embeddings", "responses", "rerank", "score", "tokenize"}

// String returns the kind's name in lower case, fit for a metric label.
func (k Kind) String() string {
	if int(k) < len(kinds) {
		return kinds[k]
	}
	return kinds[0]
}

// UsageChoice is what a request says about token counts in its stream.
type UsageChoice uint8

// What stream_options.include_usage says.
const (
	Unset   UsageChoice = iota // nothing: the gateway may ask and strip
	Wanted                     // true
	Refused                    // false, or options that are no object: leave them alone
)

// Call is what routing and accounting need to know of a request. Its strings
// may alias the body, which must not change while the Call is in use.
type Call struct {
	Kind      Kind
	Model     string // empty when the body names none
	Stream    bool
	Usage     UsageChoice
	MaxTokens int    // most output tokens that the client wants; zero when it does not say
	Choices   int    // answers per prompt (n); one when it does not say
	Session   string // prompt_cache_key, else session_id
	Previous  string // previous_response_id: only the instance that made it can go on from it
	Prompt    prompt.Request
	Unknown   int // members, items and parts of the conversation that were not understood

	body   []byte
	layout layout
}

// MayAskUsage reports whether [AskUsage] suits the call: a stream of an API
// that counts tokens only on request, whose client did not say.
func (c *Call) MayAskUsage() bool {
	return c.Stream && c.Usage == Unset && (c.Kind == Chat || c.Kind == Completions)
}
