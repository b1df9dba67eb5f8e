package sim

import (
	"bytes"
	"encoding/json"
	"net/http"
)

// completionRequest is the body of POST /v1/completions.
type completionRequest struct {
	sampling
	Prompt           promptList `json:"prompt"`
	Echo             bool       `json:"echo"`
	AddSpecialTokens *bool      `json:"add_special_tokens"`
}

// promptList is a string, token IDs, or an array of either.
type promptList []onePrompt

type onePrompt struct {
	text string
	ids  []TokenID
}

// UnmarshalJSON implements [json.Unmarshaler].
func (l *promptList) UnmarshalJSON(raw []byte) error {
	*l = nil
	var parts []json.RawMessage
	if raw = bytes.TrimSpace(raw); len(raw) == 0 || raw[0] != '[' {
		parts = []json.RawMessage{raw}
	} else if err := json.Unmarshal(raw, &parts); err != nil {
		return err
	}
	if len(parts) > 0 && len(parts[0]) > 0 && parts[0][0] != '"' && parts[0][0] != '[' {
		parts = []json.RawMessage{raw} // token IDs of one prompt
	}
	for _, part := range parts {
		var p onePrompt
		var err error
		if len(part) > 0 && part[0] == '[' {
			err = json.Unmarshal(part, &p.ids)
		} else {
			err = json.Unmarshal(part, &p.text)
		}
		if err != nil {
			return err
		}
		*l = append(*l, p)
	}
	return nil
}

// completionTokens bounds an answer whose request does not, as OpenAI's default.
const completionTokens = 16

// completions serves POST /v1/completions.
func (s *Server) completions(c *call) error {
	var q completionRequest
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
	if len(q.Prompt) == 0 {
		return badRequest("prompt", "prompt must be a non-empty string or array.")
	}
	c.name("cmpl-", q.Model)
	salt := saltOf(adapter, q.salt())
	f := &completionFormat{c: c, ids: q.ReturnTokenIDs}
	for _, p := range q.Prompt {
		tokens := p.tokens(q.AddSpecialTokens == nil || *q.AddSpecialTokens)
		l, err := s.bounds(&q.sampling, len(tokens), completionTokens)
		if err != nil {
			return err
		}
		h := s.hash(tokens, salt)
		for i := range q.choices() {
			c.generate(&h, salt, q.Seed+uint64(i), l).adapter = adapter
			f.prompts = append(f.prompts, tokens)
			f.echoes = append(f.echoes, echoOf(&q, tokens))
		}
	}
	if q.Stream {
		return c.streamChoices(&q.sampling, f, q.choices())
	}
	return c.fullCompletion(f, q.choices())
}

// tokens returns the prompt's tokens; text gets the template's opening unless it should not.
func (p *onePrompt) tokens(special bool) []TokenID {
	if p.ids != nil {
		return p.ids
	}
	var tokens []TokenID
	if special && p.text != "" {
		tokens = append(tokens, tokenBegin)
	}
	return AppendTokens(tokens, p.text)
}

// echoOf returns the prompt's text when the answer is to begin with it.
func echoOf(q *completionRequest, tokens []TokenID) string {
	if !q.Echo {
		return ""
	}
	if len(tokens) > 0 && tokens[0] == tokenBegin {
		tokens = tokens[1:]
	}
	return string(AppendText(nil, tokens))
}

// completionFormat makes the JSON of POST /v1/completions.
type completionFormat struct {
	c       *call
	ids     bool
	prompts [][]TokenID // by choice
	echoes  []string
}

type completionChoice struct {
	Index          int       `json:"index"`
	Text           string    `json:"text"`
	Logprobs       *string   `json:"logprobs"`
	FinishReason   *string   `json:"finish_reason"`
	StopReason     *string   `json:"stop_reason"`
	PromptLogprobs *string   `json:"prompt_logprobs,omitempty"`
	PromptTokenIDs []TokenID `json:"prompt_token_ids"`
	TokenIDs       []TokenID `json:"token_ids"`
}

type completionAnswer struct {
	ID      string             `json:"id"`
	Object  string             `json:"object"`
	Created int64              `json:"created"`
	Model   string             `json:"model"`
	Choices []completionChoice `json:"choices"`
	Usage   any                `json:"usage"`
}

func (f *completionFormat) answer(choices []completionChoice, usage any) completionAnswer {
	return completionAnswer{ID: f.c.id, Object: "text_completion", Created: f.c.created, Model: f.c.model, Choices: choices, Usage: usage}
}

func (f *completionFormat) choice(i int, text string, ids []TokenID, end *answer) completionChoice {
	ch := completionChoice{Index: i, Text: text}
	if f.ids {
		ch.TokenIDs = ids
	}
	if end != nil {
		ch.FinishReason, ch.StopReason = &end.reason, end.stopReason()
	}
	return ch
}

// opening implements chunks: the prompt, when it is to be echoed.
func (f *completionFormat) opening(i int, usage any) any {
	if f.echoes[i] == "" {
		return nil
	}
	return f.answer([]completionChoice{f.choice(i, f.echoes[i], nil, nil)}, usage)
}

func (f *completionFormat) content(i int, text string, ids []TokenID, end *answer, usage any) any {
	return f.answer([]completionChoice{f.choice(i, text, ids, end)}, usage)
}

func (f *completionFormat) usage(u usage) any { return f.answer([]completionChoice{}, trimmed(u)) }

// fullCompletion waits for the whole answer and writes it.
func (c *call) fullCompletion(f *completionFormat, perPrompt int) error {
	if err := c.finish(); err != nil {
		return err
	}
	var choices []completionChoice
	for i, q := range c.sequences {
		text, ids := q.delta(len(q.answer.tokens))
		ch := f.choice(i, f.echoes[i]+text, ids, &q.answer)
		if f.ids {
			ch.PromptTokenIDs = f.prompts[i]
		}
		choices = append(choices, ch)
	}
	c.json(http.StatusOK, f.answer(choices, c.usage(perPrompt)))
	return nil
}
