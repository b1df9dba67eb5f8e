package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
)

// responsesRequest is the body of POST /v1/responses, as far as it is understood.
type responsesRequest struct {
	Model           string          `json:"model"`
	Input           json.RawMessage `json:"input"`
	Instructions    string          `json:"instructions"`
	MaxOutputTokens *int            `json:"max_output_tokens"`
	Stream          bool            `json:"stream"`
	CacheSalt       *string         `json:"cache_salt"`
	Previous        *string         `json:"previous_response_id"`
	Tools           []responsesTool `json:"tools"`
}

// responsesTool is a tool without the nesting of chat.
type responsesTool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
}

// inputItem is an item of the input: a message, a call of a function or its result. Other kinds render nothing.
type inputItem struct {
	Type      string          `json:"type"`
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Output    json.RawMessage `json:"output"`
}

// conversation returns the request as chat messages.
func (q *responsesRequest) conversation() (conversation, error) {
	var v conversation
	if q.Instructions != "" {
		content, _ := json.Marshal(q.Instructions) // a string
		v.Messages = append(v.Messages, message{Role: "system", Content: content})
	}
	for _, t := range q.Tools {
		var f tool
		f.Function.Name, f.Function.Description, f.Function.Parameters = t.Name, t.Description, t.Parameters
		v.Tools = append(v.Tools, f)
	}
	input := bytes.TrimSpace(q.Input)
	if len(input) > 0 && input[0] == '"' {
		v.Messages = append(v.Messages, message{Role: "user", Content: json.RawMessage(input)})
		return v, nil
	}
	var items []inputItem
	if err := json.Unmarshal(input, &items); err != nil || len(items) == 0 {
		return v, errors.New("input must be a string or a non-empty array of items")
	}
	for _, it := range items {
		switch it.Type {
		case "", "message":
			v.Messages = append(v.Messages, message{Role: it.Role, Content: it.Content})
		case "function_call":
			m := message{Role: "assistant", ToolCalls: make([]toolCall, 1)}
			m.ToolCalls[0].Function.Name, m.ToolCalls[0].Function.Arguments = it.Name, it.Arguments
			v.Messages = append(v.Messages, m)
		case "function_call_output":
			v.Messages = append(v.Messages, message{Role: "tool", Content: it.Output})
		}
	}
	return v, nil
}

// responses serves POST /v1/responses. Nothing is stored, so no response can be continued by its ID.
func (s *Server) responses(c *call) error {
	var q responsesRequest
	if err := c.decode(&q); err != nil {
		return err
	}
	adapter, err := s.adapterOf(q.Model)
	if err != nil {
		return err
	}
	if q.Previous != nil {
		return &apiError{
			status: http.StatusNotFound, kind: "invalid_request_error", param: "previous_response_id",
			message: "Response with id '" + *q.Previous + "' not found.",
		}
	}
	p := sampling{MaxTokens: q.MaxOutputTokens, CacheSalt: q.CacheSalt}
	if err := p.check(); err != nil {
		return err
	}
	v, err := q.conversation()
	if err != nil {
		return badRequest("input", "%s", err)
	}
	tokens, err := v.render()
	if err != nil {
		return badRequest("input", "%s", err)
	}
	l, err := s.bounds(&p, len(tokens), 0)
	if err != nil {
		return err
	}
	c.name("resp_", q.Model)
	salt := saltOf(adapter, p.salt())
	h := s.hash(tokens, salt)
	c.generate(&h, salt, 0, l).adapter = adapter
	if q.Stream {
		return c.streamResponse()
	}
	if err := c.finish(); err != nil {
		return err
	}
	text, _ := c.sequences[0].delta(len(c.sequences[0].answer.tokens))
	c.json(http.StatusOK, c.response(text, true))
	return nil
}

// responseObject is the answer of POST /v1/responses.
type responseObject struct {
	ID                string            `json:"id"`
	Object            string            `json:"object"`
	CreatedAt         int64             `json:"created_at"`
	Model             string            `json:"model"`
	Status            string            `json:"status"`
	IncompleteDetails *incomplete       `json:"incomplete_details"`
	Error             *string           `json:"error"`
	Output            []responseItem    `json:"output"`
	Usage             *responseUsage    `json:"usage"`
	ParallelToolCalls bool              `json:"parallel_tool_calls"`
	ToolChoice        string            `json:"tool_choice"`
	Tools             []string          `json:"tools"`
	Metadata          map[string]string `json:"metadata"`
	Temperature       float64           `json:"temperature"`
	TopP              float64           `json:"top_p"`
}

type incomplete struct {
	Reason string `json:"reason"`
}

type responseItem struct {
	ID      string         `json:"id"`
	Type    string         `json:"type"`
	Status  string         `json:"status"`
	Role    string         `json:"role"`
	Content []responsePart `json:"content"`
}

type responsePart struct {
	Type        string   `json:"type"`
	Text        string   `json:"text"`
	Annotations []string `json:"annotations"`
	Logprobs    []string `json:"logprobs"`
}

type responseUsage struct {
	InputTokens        int            `json:"input_tokens"`
	InputTokensDetails map[string]int `json:"input_tokens_details"`
	OutputTokens       int            `json:"output_tokens"`
	OutputDetails      map[string]int `json:"output_tokens_details"`
	TotalTokens        int            `json:"total_tokens"`
}

// response returns the object as it is before the answer, or with its text and usage when it has ended.
func (c *call) response(text string, ended bool) responseObject {
	o := responseObject{
		ID: c.id, Object: "response", CreatedAt: c.created, Model: c.model, Status: "in_progress", Output: []responseItem{},
		ParallelToolCalls: true, ToolChoice: "auto", Tools: []string{}, Metadata: map[string]string{}, Temperature: 1, TopP: 1,
	}
	if !ended {
		return o
	}
	o.Status = "completed"
	if c.sequences[0].answer.reason == "length" {
		o.Status, o.IncompleteDetails = "incomplete", &incomplete{Reason: "max_output_tokens"}
	}
	o.Output = append(o.Output, c.responseItem(o.Status, textPart(text)))
	u := c.usage(1)
	cached := c.sequences[0].req.Cached
	o.Usage = &responseUsage{
		InputTokens: u.PromptTokens, InputTokensDetails: map[string]int{"cached_tokens": cached},
		OutputTokens: u.CompletionTokens, OutputDetails: map[string]int{"reasoning_tokens": 0}, TotalTokens: u.TotalTokens,
	}
	return o
}

func (c *call) responseItem(status string, parts ...responsePart) responseItem {
	if parts == nil {
		parts = []responsePart{}
	}
	return responseItem{ID: "msg_" + c.id, Type: "message", Status: status, Role: "assistant", Content: parts}
}

func textPart(text string) responsePart {
	return responsePart{Type: "output_text", Text: text, Annotations: []string{}, Logprobs: []string{}}
}

// responseEvents numbers the events of a streamed response.
type responseEvents struct {
	*stream
	n int
}

// send adds an event of that type with the fields given by name and value in turn.
func (e *responseEvents) send(kind string, fields ...any) {
	m := map[string]any{"type": kind, "sequence_number": e.n}
	for i := 0; i+1 < len(fields); i += 2 {
		m[fields[i].(string)] = fields[i+1]
	}
	e.n++
	e.named(kind, m)
}

// streamResponse writes the answer as typed events.
func (c *call) streamResponse() error {
	if err := c.submit(true); err != nil {
		return err
	}
	e := &responseEvents{stream: c.newStream()}
	q := c.sequences[0]
	item := []any{"item_id", "msg_" + c.id, "output_index", 0, "content_index", 0}
	at := func(fields ...any) []any { return append(slices.Clip(item), fields...) }
	e.send("response.created", "response", c.response("", false))
	e.send("response.in_progress", "response", c.response("", false))
	e.flush()
	for q.told < len(q.answer.tokens) {
		if err := c.wait(); err != nil {
			return err
		}
		n := c.news(0)
		if n.err != nil {
			return e.failed(n.err)
		}
		for q.told < n.tokens {
			if q.told == 0 {
				e.send("response.output_item.added", "output_index", 0, "item", c.responseItem("in_progress"))
				e.send("response.content_part.added", at("part", textPart(""))...)
			}
			delta, _ := q.delta(q.told + 1)
			e.send("response.output_text.delta", at("delta", delta, "logprobs", []string{})...)
			if e.breaksAfter(q.told) {
				return nil
			}
		}
		e.flush()
	}
	text := q.answer.text
	whole := c.response(text, true)
	e.send("response.output_text.done", at("text", text, "logprobs", []string{})...)
	e.send("response.content_part.done", at("part", textPart(text))...)
	e.send("response.output_item.done", "output_index", 0, "item", whole.Output[0])
	e.send("response."+whole.Status, "response", whole)
	e.flush()
	return nil
}

// failed ends a stream that has begun.
func (e *responseEvents) failed(err error) error {
	a, ok := errors.AsType[*apiError](err)
	if !ok {
		return err
	}
	o := e.c.response("", false)
	o.Status, o.Error = "failed", &a.message
	e.send("response.failed", "response", o)
	e.flush()
	return nil
}
