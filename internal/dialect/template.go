package dialect

import (
	"encoding/json"
	"strings"
)

// template gathers what steers the chat template and so changes the rendered
// prompt without being part of the conversation.
type template struct {
	args, chat, documents string // raw JSON
	effort                string
}

// steer reads a member that steers the chat template.
func (d *decoder) steer(f field) {
	switch f {
	case fieldTemplateArgs:
		d.template.args = d.raw()
	case fieldTemplate:
		d.template.chat = d.raw()
	case fieldEffort:
		d.template.effort, _ = d.text()
	default: // Responses: {"effort": "low"}
		for key := range d.members {
			if key == "effort" {
				d.template.effort, _ = d.text()
			}
		}
	}
}

// json returns the steering as one JSON object with sorted keys, because their
// order changes nothing of what is rendered; nil when there is none.
func (t *template) json() []byte {
	if *t == (template{}) {
		return nil
	}
	all := struct {
		Args      any    `json:"chat_template_kwargs,omitempty"`
		Chat      any    `json:"chat_template,omitempty"`
		Documents any    `json:"documents,omitempty"`
		Effort    string `json:"reasoning_effort,omitempty"`
	}{sorted(t.args), sorted(t.chat), sorted(t.documents), t.effort}
	b, err := json.Marshal(all)
	if err != nil {
		return nil // no value that came out of JSON fails to go back
	}
	return b
}

// maxSorted bounds what is taken apart to be sorted: small values take up to
// fifty times the memory of their text.
const maxSorted = 256 << 10

// sorted is raw as a value that encodes with sorted keys and numbers as
// written. What is too long to be sorted stays in the client's order.
func sorted(raw string) any {
	switch {
	case raw == "":
		return nil
	case len(raw) > maxSorted:
		return json.RawMessage(raw)
	}
	dec := json.NewDecoder(strings.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return raw // cannot be: the cursor has checked it
	}
	return v
}
