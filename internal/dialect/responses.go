package dialect

import "github.com/warmroute/warmroute/internal/prompt"

// input reads the member input of embeddings and responses.
func (d *decoder) input(k Kind) {
	switch k {
	case Responses:
		d.items()
	case Embeddings:
		d.sequences()
	default: // the others have no input
	}
}

// items reads the input of a response: a string of the user, or a list of
// items, which become the messages that the same conversation has in a chat.
func (d *decoder) items() {
	if s, ok := d.text(); ok {
		d.addText(s)
		d.addMessage("user", len(d.parts)-1)
		return
	}
	if d.peek() != '[' {
		d.call.Unknown++
		return
	}
	for range d.elements {
		if d.spent() {
			continue
		}
		if d.peek() != '{' {
			d.call.Unknown++
			continue
		}
		d.item()
	}
}

// wireItem is an item of a conversation in the Responses API, of input and of
// output alike.
type wireItem struct {
	kind, role, name, callID string
	input                    string // what a call is given
	content, summary, output span   // parts of d.parts
}

// item reads one item. What an assistant says, thinks and calls in a row is
// one message, as it is in a chat.
func (d *decoder) item() {
	var w wireItem
	from := d.i
	for key := range d.members {
		d.itemMember(&w, key)
	}
	if d.fault.set {
		return
	}
	first := len(d.parts)
	switch w.kind {
	case "message", "":
		if w.role == "" {
			d.addUnknown(view(d.b[from:d.i]))
			return
		}
		d.take(w.content)
		d.addMessage(w.role, first)
	case "reasoning":
		d.take(w.thoughts())
		d.joinAssistant(first)
	case "function_call", "custom_tool_call":
		d.parts = append(d.parts, prompt.Part{Kind: prompt.ToolCall, Name: w.name, Text: w.input, ID: w.callID})
		d.joinAssistant(first)
	case "function_call_output", "custom_tool_call_output":
		d.take(w.output)
		results(d.parts[first:], w.callID)
		d.addMessage("tool", first)
	default:
		d.addUnknown(view(d.b[from:d.i]))
	}
}

func (d *decoder) itemMember(w *wireItem, key string) {
	switch key {
	case "type":
		w.kind, _ = d.text()
	case "role":
		w.role, _ = d.text()
	case "name":
		w.name, _ = d.text()
	case "call_id":
		w.callID, _ = d.text()
	case "arguments", "input":
		w.input = d.arguments()
	case "content":
		w.content = d.partsOf()
	case "summary":
		w.summary = d.partsOf()
	case "output":
		w.output = d.partsOf()
	}
}

// partsOf reads a string or a list of parts and returns where they stand.
func (d *decoder) partsOf() span {
	from := len(d.parts)
	d.content()
	return span{from, len(d.parts)}
}

// thoughts returns the parts that a reasoning item shows: the reasoning itself
// where the engine gives it, else its summary.
func (w *wireItem) thoughts() span {
	if w.content.to > w.content.from {
		return w.content
	}
	return w.summary
}

// take appends the parts of s, which are part of d.parts already, once more:
// an item's members come in any order, its message wants one of them.
func (d *decoder) take(s span) {
	d.parts = append(d.parts, d.parts[s.from:s.to]...)
}

// addMessage adds a message of the parts from first on.
func (d *decoder) addMessage(role string, first int) {
	if role == assistant {
		d.joinAssistant(first)
		return
	}
	d.call.Prompt.Messages = append(d.call.Prompt.Messages, prompt.Message{
		Role: role, Parts: d.parts[first:len(d.parts):len(d.parts)],
	})
}

const assistant = "assistant"

// joinAssistant adds the parts from first on to the assistant's message before,
// or begins one.
func (d *decoder) joinAssistant(first int) {
	msgs := d.call.Prompt.Messages
	parts := d.parts[first:len(d.parts):len(d.parts)]
	if n := len(msgs); n > 0 && msgs[n-1].Role == assistant {
		msgs[n-1].Parts = append(msgs[n-1].Parts, parts...)
		return
	}
	d.call.Prompt.Messages = append(msgs, prompt.Message{Role: assistant, Parts: parts})
}

// addUnknown adds an item that is not understood: something that the engine
// did, such as a web search, and will render in some way.
func (d *decoder) addUnknown(raw string) {
	d.call.Unknown++
	d.parts = append(d.parts, prompt.Part{Kind: prompt.Unknown, Text: raw})
	d.joinAssistant(len(d.parts) - 1)
}
