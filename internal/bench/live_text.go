package bench

import (
	"encoding/json"
	"fmt"
)

// Wording turns requests known by identity into chat completions with real
// text. Equal segments become equal text, so a workload has the same prefixes
// over HTTP as in virtual time. Of every three segments two are English and one
// is Chinese.
type Wording struct {
	Model string
	// Salt changes every text and nothing else: runs with different salts do not
	// find each other's prompts in the engines' caches.
	Salt uint64
	// Plain leaves out what OpenAI's own API refuses (ignore_eos), and bounds
	// answers by max_completion_tokens.
	Plain bool

	writers []writer
}

// NewWording returns a wording for a model.
func NewWording(model string, salt uint64) (*Wording, error) {
	w := &Wording{Model: model, Salt: salt}
	for _, language := range []Language{English, English, Chinese} {
		c, err := newWriter(language)
		if err != nil {
			return nil, err
		}
		w.writers = append(w.writers, c)
	}
	return w, nil
}

// piece is a segment of a prompt, with what an engine said when it is an answer.
type piece struct {
	Segment
	answer bool
	said   string // empty when the answer never came
}

type chatMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// text is the words of a segment.
func (w *Wording) text(s Segment) string {
	if s.Tokens <= 0 {
		return ""
	}
	n := mix(s.ID+1, w.Salt+1)
	c := &w.writers[n%uint64(len(w.writers))]
	return c.Document(int(n>>12), int(float64(s.Tokens)*c.bytesPerToken))
}

// messages arranges a prompt as a conversation. A first segment that others
// follow is the system text; answers are the assistant's; the rest is the user's.
func (w *Wording) messages(prompt []piece) []chatMessage {
	var out []chatMessage
	for i, p := range prompt {
		role, content := "user", p.said
		switch {
		case p.answer:
			role = "assistant"
		case i == 0 && len(prompt) > 1:
			role = "system"
		}
		if content == "" {
			content = w.text(p.Segment)
		}
		if n := len(out); n > 0 && out[n-1].Role == role {
			out[n-1].Content += "\n\n" + content
			continue
		}
		out = append(out, chatMessage{role, content})
	}
	return out
}

// body writes the chat completion, streamed and with usage.
func (w *Wording) body(prompt []piece, output int) ([]byte, error) {
	type streamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	}
	request := struct {
		Model               string        `json:"model"`
		Messages            []chatMessage `json:"messages"`
		MaxTokens           int           `json:"max_tokens,omitzero"`
		MaxCompletionTokens int           `json:"max_completion_tokens,omitzero"`
		IgnoreEOS           bool          `json:"ignore_eos,omitzero"`
		Stream              bool          `json:"stream"`
		StreamOptions       streamOptions `json:"stream_options"`
	}{Model: w.Model, Messages: w.messages(prompt), Stream: true, StreamOptions: streamOptions{true}}
	if w.Plain {
		request.MaxCompletionTokens = output
	} else {
		request.MaxTokens, request.IgnoreEOS = output, true
	}
	body, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("compose call: %w", err)
	}
	return body, nil
}
