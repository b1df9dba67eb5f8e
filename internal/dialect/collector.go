package dialect

import (
	"strings"

	"github.com/warmroute/warmroute/internal/prompt"
)

// collector puts an answer together from its pieces, up to a limit of bytes.
type collector struct {
	limit   int
	size    int
	spoiled bool // there is more to the answer than was or can be collected

	thought, text []byte
	calls         []call
	whole         prompt.Message // an answer that came in one piece
}

// call is a tool call in the making.
type call struct {
	index           int
	id              string
	name, arguments []byte
}

// callPiece is one delta of a tool call. Its strings belong to the event.
type callPiece struct {
	index               int // -1 when the piece does not say
	id, name, arguments string
}

func (p *callPiece) member(c *cursor, key string) {
	switch key {
	case "name":
		p.name, _ = c.text()
	case "arguments", "input":
		p.arguments, _ = c.text()
	}
}

// room reports whether n more bytes may be kept.
func (c *collector) room(n int) bool {
	c.size += n
	if c.size > c.limit {
		c.spoiled = true
	}
	return !c.spoiled
}

func (c *collector) addText(s string) {
	if c.room(len(s)) {
		c.text = append(c.text, s...)
	}
}

func (c *collector) addThought(s string) {
	if c.room(len(s)) {
		c.thought = append(c.thought, s...)
	}
}

// addCall adds a piece to the call of its index. A piece with another id
// begins another call: some engines number every call zero, some none.
func (c *collector) addCall(p callPiece) {
	if !c.room(len(p.id) + len(p.name) + len(p.arguments) + 64) { // 64 for the call itself
		return
	}
	i := c.find(p)
	if i < 0 {
		i = len(c.calls)
		c.calls = append(c.calls, call{index: p.index})
	}
	to := &c.calls[i]
	if p.id != "" {
		to.id = strings.Clone(p.id)
	}
	to.name = append(to.name, p.name...)
	to.arguments = append(to.arguments, p.arguments...)
}

// find returns the call that a piece goes on with, -1 when it begins one.
func (c *collector) find(p callPiece) int {
	for i := len(c.calls) - 1; i >= 0; i-- {
		to := &c.calls[i]
		if p.index >= 0 && to.index != p.index {
			continue
		}
		if p.id != "" && to.id != "" && p.id != to.id {
			return -1
		}
		return i
	}
	return -1
}

// take takes an answer that came in one piece, which belongs to the event.
func (c *collector) take(m prompt.Message) {
	n := 0
	for i := range m.Parts {
		n += len(m.Parts[i].Text) + len(m.Parts[i].Name) + len(m.Parts[i].ID) + 64 // 64 for the part itself
	}
	if !c.room(n) {
		return
	}
	c.whole = prompt.Message{Role: assistant, Parts: make([]prompt.Part, len(m.Parts))}
	for i, p := range m.Parts {
		p.Text, p.Name, p.ID = strings.Clone(p.Text), strings.Clone(p.Name), strings.Clone(p.ID)
		c.whole.Parts[i] = p
	}
}

// message returns what was collected and whether it is all of one answer.
func (c *collector) message(k Kind) (prompt.Message, bool) {
	if c.spoiled || c.size == 0 {
		return prompt.Message{}, false
	}
	if len(c.whole.Parts) > 0 {
		return c.whole, true
	}
	m := prompt.Message{Role: assistant}
	if k == Completions {
		m.Role = "" // goes on where the prompt stopped
	}
	if len(c.thought) > 0 {
		m.Parts = append(m.Parts, prompt.Part{Kind: prompt.Reasoning, Text: string(c.thought)})
	}
	if len(c.text) > 0 {
		m.Parts = append(m.Parts, prompt.Part{Kind: prompt.Text, Text: string(c.text)})
	}
	for i := range c.calls {
		to := &c.calls[i]
		m.Parts = append(m.Parts, prompt.Part{Kind: prompt.ToolCall, ID: to.id, Name: string(to.name), Text: string(to.arguments)})
	}
	return m, true
}
