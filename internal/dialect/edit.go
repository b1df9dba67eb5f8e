package dialect

import (
	"encoding/json"
	"fmt"
)

// span is a stretch of a body, from one byte offset to the one behind its end.
type span struct{ from, to int }

// layout is where the members stand that an edit may touch.
type layout struct {
	members int  // of the body
	end     int  // offset of the body's closing brace
	model   span // its value; zero when there is none
	options span // value of stream_options; zero when there is none
	include span // value of include_usage in it; zero when there is none

	optionsIn int // members of stream_options; -1 when it is no object
	choice    UsageChoice
}

// Edit returns the call's body with another model, unless model is empty, and
// with usage asked for, if ask is set and the client has not chosen. Nothing
// but the bytes of those values changes; without a change the result is the
// body itself.
func (c *Call) Edit(model string, ask bool) []byte {
	return c.layout.apply(c.body, model, ask)
}

// SetModel returns body with its top-level model replaced, or added at the end
// when there is none. Every other byte stays.
func SetModel(body []byte, model string) ([]byte, error) {
	l, err := locate(body)
	if err != nil {
		return nil, fmt.Errorf("set model: %w", err)
	}
	return l.apply(body, model, false), nil
}

// AskUsage returns body with stream_options.include_usage true. A choice that
// the client made stays, and so does every other byte.
func AskUsage(body []byte) ([]byte, error) {
	l, err := locate(body)
	if err != nil {
		return nil, fmt.Errorf("ask for usage: %w", err)
	}
	return l.apply(body, "", true), nil
}

// locate finds the members that edits touch. Two of one name are an error: an
// edit of one would leave it to the engine's parser which of them counts.
func locate(body []byte) (layout, error) {
	var l layout
	c := cursor{b: body}
	if c.peek() != '{' {
		return l, badRequest("invalid_type", "", "The request body must be a JSON object.")
	}
	twice := ""
	for key := range c.members {
		l.members++
		at := c.i
		switch key {
		case "model":
			if l.model.to > 0 {
				twice = key
			}
			c.skip()
			l.model = span{at, c.i}
		case "stream_options":
			if l.options.to > 0 {
				twice = key
			}
			c.streamOptions(&l)
		}
	}
	l.end = c.i - 1
	c.finish()
	if c.fault.set {
		return l, jsonError(body, c.fault)
	}
	if twice != "" {
		return l, duplicate(twice)
	}
	return l, nil
}

// streamOptions reads the value of stream_options at the cursor.
func (c *cursor) streamOptions(l *layout) UsageChoice {
	at := c.i
	l.choice, l.optionsIn = Unset, -1
	switch c.peek() {
	case '{':
		l.optionsIn = 0
		for key := range c.members {
			l.optionsIn++
			if key == "include_usage" {
				l.choice = c.includeUsage(l)
			}
		}
	case 'n':
		c.skip()
	default:
		l.choice = Refused // an edit would have to replace what the client wrote
		c.skip()
	}
	l.options = span{at, c.i}
	return l.choice
}

func (c *cursor) includeUsage(l *layout) UsageChoice {
	at := c.i
	wanted, ok := c.boolean()
	null := !ok && c.null()
	if !ok {
		c.skip()
	}
	l.include = span{at, c.i}
	switch {
	case wanted:
		return Wanted
	case null:
		return Unset
	}
	return Refused
}

// splice replaces a stretch of a body.
type splice struct {
	span

	text string
}

func (l *layout) apply(body []byte, model string, ask bool) []byte {
	var splices []splice
	members := l.members
	add := func(member string) {
		if members++; members > 1 {
			member = "," + member
		}
		splices = append(splices, splice{span{l.end, l.end}, member})
	}
	if ask && l.choice == Unset {
		switch {
		case l.include.to > 0:
			splices = append(splices, splice{l.include, "true"})
		case l.options.to > 0 && l.optionsIn < 0:
			splices = append(splices, splice{l.options, `{"include_usage":true}`})
		case l.optionsIn > 0:
			splices = append(splices, splice{span{l.options.to - 1, l.options.to - 1}, `,"include_usage":true`})
		case l.options.to > 0:
			splices = append(splices, splice{span{l.options.to - 1, l.options.to - 1}, `"include_usage":true`})
		default:
			add(`"stream_options":{"include_usage":true}`)
		}
	}
	if model != "" {
		value := string(appendString(nil, model))
		if l.model.to > 0 {
			splices = append(splices, splice{l.model, value})
		} else {
			add(`"model":` + value)
		}
	}
	return cut(body, splices)
}

// cut returns body with the splices done, which do not overlap. There are two
// at most, so they are put in order by a swap.
func cut(body []byte, splices []splice) []byte {
	if len(splices) == 0 {
		return body
	}
	if len(splices) == 2 && splices[0].from > splices[1].from {
		splices[0], splices[1] = splices[1], splices[0]
	}
	size := len(body)
	for _, s := range splices {
		size += len(s.text) - (s.to - s.from)
	}
	out := make([]byte, 0, size)
	at := 0
	for _, s := range splices {
		out = append(out, body[at:s.from]...)
		out = append(out, s.text...)
		at = s.to
	}
	return append(out, body[at:]...)
}

// appendString appends s as a JSON string.
func appendString(b []byte, s string) []byte {
	q, err := json.Marshal(s)
	if err != nil {
		return append(b, `""`...) // cannot be: every string marshals
	}
	return append(b, q...)
}
