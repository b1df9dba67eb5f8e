package sim

import "net/http"

// chatRequest is the body of POST /v1/chat/completions.
type chatRequest struct {
	sampling
	conversation
}

// chat serves POST /v1/chat/completions.
func (s *Server) chat(c *call) error {
	var q chatRequest
	if err := c.decode(&q); err != nil {
		return err
	}
	adapter, err := s.adapterOf(q.Model)
	if err != nil {
		return err
	}
	if err := q.check(); err != nil {
		return err
	}
	if len(q.Messages) == 0 {
		return badRequest("messages", "messages must be a non-empty array.")
	}
	tokens, err := q.render()
	if err != nil {
		return badRequest("messages", "%s", err)
	}
	l, err := s.bounds(&q.sampling, len(tokens), 0)
	if err != nil {
		return err
	}
	c.name("chatcmpl-", q.Model)
	salt := saltOf(adapter, q.salt())
	h := s.hash(tokens, salt)
	for i := range q.choices() {
		c.generate(&h, salt, q.Seed+uint64(i), l).adapter = adapter
	}
	if !q.ReturnTokenIDs {
		tokens = nil
	}
	if q.Stream {
		return c.streamChoices(&q.sampling, &chatStream{c: c, prompt: tokens, ids: q.ReturnTokenIDs}, 1)
	}
	return c.fullChat(tokens, q.choices())
}

// chatMessage is the message of a whole answer.
type chatMessage struct {
	Role         string   `json:"role"`
	Content      string   `json:"content"`
	Refusal      *string  `json:"refusal"`
	Annotations  *string  `json:"annotations"`
	Audio        *string  `json:"audio"`
	FunctionCall *string  `json:"function_call"`
	ToolCalls    []string `json:"tool_calls"`
	Reasoning    *string  `json:"reasoning"`
}

type chatChoice struct {
	Index        int         `json:"index"`
	Message      chatMessage `json:"message"`
	Logprobs     *string     `json:"logprobs"`
	FinishReason string      `json:"finish_reason"`
	StopReason   *string     `json:"stop_reason"`
	TokenIDs     []TokenID   `json:"token_ids"`
}

type chatAnswer struct {
	ID                string       `json:"id"`
	Object            string       `json:"object"`
	Created           int64        `json:"created"`
	Model             string       `json:"model"`
	Choices           []chatChoice `json:"choices"`
	ServiceTier       *string      `json:"service_tier"`
	SystemFingerprint *string      `json:"system_fingerprint"`
	Usage             usage        `json:"usage"`
	PromptLogprobs    *string      `json:"prompt_logprobs"`
	PromptTokenIDs    []TokenID    `json:"prompt_token_ids"`
	KVTransferParams  *string      `json:"kv_transfer_params"`
}

// fullChat waits for the whole answer and writes it. prompt is nil unless the request wants token IDs back.
func (c *call) fullChat(prompt []TokenID, choices int) error {
	if err := c.finish(); err != nil {
		return err
	}
	a := chatAnswer{ID: c.id, Object: "chat.completion", Created: c.created, Model: c.model, PromptTokenIDs: prompt}
	for i, q := range c.sequences {
		text, ids := q.delta(len(q.answer.tokens))
		if prompt == nil {
			ids = nil
		}
		a.Choices = append(a.Choices, chatChoice{
			Index: i, Message: chatMessage{Role: "assistant", Content: text, ToolCalls: []string{}},
			FinishReason: q.answer.reason, StopReason: q.answer.stopReason(), TokenIDs: ids,
		})
	}
	a.Usage = c.usage(choices)
	c.json(http.StatusOK, a)
	return nil
}

// stopReason returns the stop string that ended the answer, or nil.
func (a *answer) stopReason() *string {
	if a.stop == "" {
		return nil
	}
	return &a.stop
}

// chatStream makes the chunks of a streamed chat.
type chatStream struct {
	c      *call
	prompt []TokenID
	ids    bool
}

type chatChunk struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
	Choices any    `json:"choices"`
	Usage   any    `json:"usage,omitempty"`
}

type chunkBase struct {
	Index        int       `json:"index"`
	Delta        chatDelta `json:"delta"`
	Logprobs     *string   `json:"logprobs"`
	FinishReason *string   `json:"finish_reason"`
}

type chatDelta struct {
	Role    string `json:"role,omitempty"`
	Content string `json:"content"`
}

func (t *chatStream) chunk(choices, usage any) chatChunk {
	return chatChunk{ID: t.c.id, Object: "chat.completion.chunk", Created: t.c.created, Model: t.c.model, Choices: choices, Usage: usage}
}

// opening returns the chunk with the role, which comes with the first token.
func (t *chatStream) opening(i int, usage any) any {
	return struct {
		chatChunk
		PromptTokenIDs []TokenID `json:"prompt_token_ids"`
	}{t.chunk([]chunkBase{{Index: i, Delta: chatDelta{Role: "assistant"}}}, usage), t.prompt}
}

// content returns the chunk of some tokens, with the finish reason if they are the last.
func (t *chatStream) content(i int, text string, ids []TokenID, end *answer, usage any) any {
	if !t.ids {
		ids = nil
	}
	base := chunkBase{Index: i, Delta: chatDelta{Content: text}}
	if end == nil {
		return t.chunk([]any{struct {
			chunkBase
			TokenIDs []TokenID `json:"token_ids"`
		}{base, ids}}, usage)
	}
	base.FinishReason = &end.reason
	return t.chunk([]any{struct {
		chunkBase
		StopReason *string   `json:"stop_reason"`
		TokenIDs   []TokenID `json:"token_ids"`
	}{base, end.stopReason(), ids}}, usage)
}

func (t *chatStream) usage(u usage) any { return t.chunk([]any{}, trimmed(u)) }

// trimmed leaves out the details when there are none, as vLLM does at the end of a stream.
func trimmed(u usage) any {
	if u.Details != nil {
		return u
	}
	return struct {
		PromptTokens     int `json:"prompt_tokens"`
		TotalTokens      int `json:"total_tokens"`
		CompletionTokens int `json:"completion_tokens"`
	}{u.PromptTokens, u.TotalTokens, u.CompletionTokens}
}
