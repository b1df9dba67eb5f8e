package dialect

import "github.com/warmroute/warmroute/internal/prompt"

// toolCall reads an element of a message's tool_calls.
func (d *decoder) toolCall() prompt.Part {
	p := prompt.Part{Kind: prompt.ToolCall}
	for key := range d.members {
		switch key {
		case "id":
			p.ID, _ = d.text()
		case "function", "custom":
			d.called(&p)
		}
	}
	return p
}

// called reads the function that a call names and what it is given.
func (d *decoder) called(p *prompt.Part) {
	p.Kind = prompt.ToolCall
	for key := range d.members {
		switch key {
		case "name":
			p.Name, _ = d.text()
		case "arguments", "input":
			p.Text = d.arguments()
		}
	}
}

// arguments reads what a call gives its function: JSON within a string, or, of
// some clients, JSON as such.
func (d *decoder) arguments() string {
	if s, ok := d.text(); ok {
		return s
	}
	if d.null() {
		return ""
	}
	return d.raw()
}

// tools reads the tools that the model may call.
func (d *decoder) tools() {
	for range d.elements {
		if d.spent() {
			continue
		}
		if d.peek() != '{' {
			d.call.Unknown++
			continue
		}
		t := prompt.Tool{Type: "function"}
		d.toolMembers(&t)
		d.call.Prompt.Tools = append(d.call.Prompt.Tools, t)
	}
}

// function reads an element of the older functions list.
func (d *decoder) function() {
	if d.spent() {
		return
	}
	t := prompt.Tool{Type: "function"}
	d.toolMembers(&t)
	d.call.Prompt.Tools = append(d.call.Prompt.Tools, t)
}

// toolMembers reads a tool's members. Chat wraps them in an object named for
// the type, Responses does not; the tool is the same.
func (d *decoder) toolMembers(t *prompt.Tool) {
	for key := range d.members {
		switch key {
		case "type":
			if s, ok := d.text(); ok {
				t.Type = s
			}
		case "name":
			t.Name, _ = d.text()
		case "description":
			t.Description, _ = d.text()
		case "parameters":
			if !d.null() {
				t.Parameters = d.raw()
			}
		case "function", "custom":
			if d.peek() == '{' {
				d.toolMembers(t)
			}
		default:
			if !d.null() && !d.spent() {
				t.Extra = append(t.Extra, prompt.Field{Name: key, Raw: d.raw()})
			}
		}
	}
}
