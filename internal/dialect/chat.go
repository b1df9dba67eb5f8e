package dialect

import "github.com/warmroute/warmroute/internal/prompt"

// messages reads a chat's messages.
func (d *decoder) messages() {
	for range d.elements {
		if d.spent() {
			continue
		}
		if d.peek() != '{' {
			d.call.Unknown++
			continue
		}
		d.call.Prompt.Messages = append(d.call.Prompt.Messages, d.message())
	}
}

// message reads one message. Its members may stand in any order; its parts
// come out as engines render them: reasoning, content, tool calls.
func (d *decoder) message() prompt.Message {
	// Parts of all messages share one slice. The first is kept free for reasoning.
	first := len(d.parts)
	d.parts = append(d.parts, prompt.Part{Kind: prompt.Reasoning})
	d.calls = d.calls[:0]
	var m prompt.Message
	var callID, thought, refusal string
	for key := range d.members {
		switch key {
		case "role":
			m.Role, _ = d.text()
		case "name":
			m.Name, _ = d.text()
		case "content":
			d.content()
		case "reasoning":
			if s, ok := d.text(); ok && s != "" {
				thought = s
			}
		case "reasoning_content":
			// Engines in transition between the two names send both, with one text.
			if s, ok := d.text(); ok && thought == "" {
				thought = s
			}
		case "refusal":
			refusal, _ = d.text()
		case "tool_calls", "function_call":
			d.madeCalls(key)
		case "tool_call_id":
			callID, _ = d.text()
		}
	}
	if refusal != "" {
		d.addText(refusal)
	}
	d.parts = append(d.parts, d.calls...)
	if thought == "" {
		first++
	} else {
		d.parts[first].Text = thought
	}
	m.Parts = d.parts[first:len(d.parts):len(d.parts)]
	if m.Role == "tool" || m.Role == "function" {
		results(m.Parts, callID)
	}
	return m
}

// madeCalls reads the calls that a message makes, in either spelling.
func (d *decoder) madeCalls(key string) {
	if key == "function_call" {
		if d.peek() == '{' {
			var p prompt.Part
			d.called(&p)
			d.calls = append(d.calls, p)
		}
		return
	}
	for range d.elements {
		if !d.spent() {
			d.calls = append(d.calls, d.toolCall())
		}
	}
}

// results marks the texts of a tool's message as what the tool returned.
func results(parts []prompt.Part, callID string) {
	for i := range parts {
		if parts[i].Kind == prompt.Text {
			parts[i].Kind, parts[i].ID = prompt.ToolResult, callID
		}
	}
}
