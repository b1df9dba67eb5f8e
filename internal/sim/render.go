package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tidwall/gjson"
	"github.com/zeebo/xxh3"
)

// mediaTokens is what an image, a sound or a file costs in the prompt.
const mediaTokens = 512

// message is a chat message as the API takes it.
type message struct {
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	ToolCalls []toolCall      `json:"tool_calls"`
}

type toolCall struct {
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// tool is a function that the model may call. Parameters keep the client's order of keys, as engines render them.
type tool struct {
	Type     string `json:"type"`
	Function struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
	} `json:"function"`
}

// templateArgs are the arguments of the chat template that it knows; others change nothing, as in engines.
type templateArgs struct {
	DateString     string `json:"date_string"`
	EnableThinking *bool  `json:"enable_thinking"`
}

// conversation is what the chat template renders.
type conversation struct {
	Messages []message    `json:"messages"`
	Tools    []tool       `json:"tools"`
	Args     templateArgs `json:"chat_template_kwargs"`
	// AddGenerationPrompt opens the assistant's turn; default true. ContinueFinal leaves the last message open instead.
	AddGenerationPrompt *bool `json:"add_generation_prompt"`
	ContinueFinal       bool  `json:"continue_final_message"`
}

// render applies the chat template, which follows that of Llama 3.1: a system turn with the date, the tools and the system text, then
// a turn for each message. Each piece of text is tokenised by itself, so a turn has the same tokens wherever it stands.
func (c *conversation) render() ([]TokenID, error) {
	messages := c.Messages
	size := 128
	for _, m := range messages {
		size += len(m.Content)/3 + 16
	}
	b := prompter{tokens: make([]TokenID, 0, size)}
	b.tokens = append(b.tokens, tokenBegin)
	b.open("system")
	b.text("Cutting Knowledge Date: December 2023\nToday Date: ")
	date := c.Args.DateString
	if date == "" {
		date = "26 Jul 2024"
	}
	b.text(date + "\n\n")
	if err := b.tools(c.Tools); err != nil {
		return nil, err
	}
	if len(messages) > 0 && messages[0].Role == "system" {
		if err := b.content(messages[0].Content); err != nil {
			return nil, fmt.Errorf("messages[0]: %w", err)
		}
		messages = messages[1:]
	}
	b.close()
	for i, m := range messages {
		if err := b.message(m); err != nil {
			return nil, fmt.Errorf("messages[%d]: %w", len(c.Messages)-len(messages)+i, err)
		}
		if !c.ContinueFinal || i < len(messages)-1 {
			b.close()
		}
	}
	if c.ContinueFinal || c.AddGenerationPrompt != nil && !*c.AddGenerationPrompt {
		return b.tokens, nil
	}
	b.open("assistant")
	if t := c.Args.EnableThinking; t != nil && !*t {
		b.text("<think>\n\n</think>\n\n")
	}
	return b.tokens, nil
}

// prompter builds a prompt.
type prompter struct{ tokens []TokenID }

func (b *prompter) text(s string) { b.tokens = AppendTokens(b.tokens, s) }

func (b *prompter) open(role string) {
	b.tokens = append(b.tokens, tokenStartHeader)
	b.text(role)
	b.tokens = append(b.tokens, tokenEndHeader)
	b.text("\n\n")
}

func (b *prompter) close() { b.tokens = append(b.tokens, tokenEndOfTurn) }

func (b *prompter) message(m message) error {
	if m.Role == "" {
		return errors.New("role is missing")
	}
	role := m.Role
	if role == "tool" || role == "function" {
		role = "ipython"
	}
	b.open(role)
	if err := b.content(m.Content); err != nil {
		return err
	}
	for _, call := range m.ToolCalls {
		args, err := pythonJSON([]byte(call.Function.Arguments))
		if err != nil {
			args = call.Function.Arguments
		}
		b.text(`{"name": ` + dumpString(call.Function.Name) + `, "parameters": ` + args + "}")
	}
	return nil
}

// tools renders the functions in the order of the request; of each, the fields in the order of vLLM's type.
func (b *prompter) tools(tools []tool) error {
	if len(tools) == 0 {
		return nil
	}
	b.text("You have access to the following functions. To call a function, respond with JSON for a function call.\n\n")
	for i, t := range tools {
		params, err := pythonJSON(t.Function.Parameters)
		if err != nil {
			return fmt.Errorf("tools[%d]: parse parameters: %w", i, err)
		}
		name, description := dumpString(t.Function.Name), dumpString(t.Function.Description)
		b.text(`{"type": "function", "function": {"name": ` + name + `, "description": ` + description + `, "parameters": ` + params + "}}\n\n")
	}
	return nil
}

// content renders a string, or parts of which texts are joined by line feeds.
func (b *prompter) content(raw json.RawMessage) error {
	raw = bytes.TrimSpace(raw)
	switch {
	case len(raw) == 0 || bytes.Equal(raw, []byte("null")):
		return nil
	case raw[0] == '"':
		b.text(gjson.ParseBytes(raw).String()) // part of a valid body
		return nil
	}
	var parts []json.RawMessage
	if err := json.Unmarshal(raw, &parts); err != nil {
		return errors.New("content must be a string or an array of parts")
	}
	texts := 0
	for i, p := range parts {
		isText, err := b.part(p, texts > 0)
		if err != nil {
			return fmt.Errorf("content[%d]: %w", i, err)
		}
		if isText {
			texts++
		}
	}
	return nil
}

func (b *prompter) part(raw json.RawMessage, joined bool) (isText bool, err error) {
	var p struct {
		Type    string `json:"type"`
		Text    string `json:"text"`
		Refusal string `json:"refusal"`
	}
	if len(raw) > 0 && raw[0] == '"' {
		p.Type, p.Text = "text", gjson.ParseBytes(raw).String()
	} else if err := json.Unmarshal(raw, &p); err != nil {
		return false, fmt.Errorf("parse part: %w", err)
	}
	switch p.Type {
	case "text", "input_text", "output_text", "refusal":
		if joined {
			b.text("\n")
		}
		b.text(p.Text + p.Refusal)
		return true, nil
	case "image_url", "input_image", "image", "input_audio", "audio_url", "video_url", "file", "input_file":
		b.tokens = appendMedia(b.tokens, xxh3.Hash(raw), mediaTokens)
		return false, nil
	}
	return false, fmt.Errorf("unknown part type: %s", p.Type)
}

// dumpString quotes s and escapes nothing but what it must.
func dumpString(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a builder takes any string
	return strings.TrimSuffix(b.String(), "\n")
}

// pythonJSON formats JSON as Python's json.dumps does: the order of keys kept, one space after commas and colons, no escapes for
// letters. Nothing is "null".
func pythonJSON(raw []byte) (string, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return "null", nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	w := &dumper{}
	for {
		t, err := dec.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			return "", fmt.Errorf("parse JSON: %w", err)
		}
		w.token(t)
	}
	if len(w.open) > 0 {
		return "", io.ErrUnexpectedEOF
	}
	return w.b.String(), nil
}

// dumper writes tokens with Python's separators.
type dumper struct {
	b    strings.Builder
	open []nest
}

// nest is an open object or array; n counts keys and values in it.
type nest struct {
	object bool
	n      int
}

func (w *dumper) token(t json.Token) {
	if d, ok := t.(json.Delim); ok && (d == '}' || d == ']') {
		w.b.WriteRune(rune(d))
		w.open = slices.Delete(w.open, len(w.open)-1, len(w.open))
		return
	}
	w.separate()
	switch v := t.(type) {
	case json.Delim:
		w.b.WriteRune(rune(v))
		w.open = append(w.open, nest{object: v == '{'})
	case string:
		w.b.WriteString(dumpString(v))
	case nil:
		w.b.WriteString("null")
	default:
		fmt.Fprint(&w.b, v)
	}
}

func (w *dumper) separate() {
	if len(w.open) == 0 {
		return
	}
	top := &w.open[len(w.open)-1]
	switch {
	case top.object && top.n%2 == 1:
		w.b.WriteString(": ")
	case top.n > 0:
		w.b.WriteString(", ")
	}
	top.n++
}
