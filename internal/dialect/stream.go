package dialect

import (
	"bytes"
	"strings"

	"github.com/warmroute/warmroute/internal/prompt"
)

// Class says what an event of a stream means for the gateway.
type Class uint8

// The classes of events.
const (
	Held      Class = iota // no content: role-only deltas, pings, comments; before the first content it may wait
	Content                // carries content: text, reasoning, a tool call
	UsageOnly              // carries token counts and nothing else
	Finish                 // says why an answer ends, without content
	Done                   // the stream's own last event
	Failure                // an error in place of content
)

var classes = [...]string{"held", "content", "usage_only", "finish", "done", "failure"}

// String returns the class's name in lower case.
func (c Class) String() string {
	if int(c) < len(classes) {
		return classes[c]
	}
	return "invalid"
}

// Stream follows one stream of events. It is not safe for concurrent use.
type Stream struct {
	kind     Kind
	cur      cursor
	usage    Usage
	answer   collector
	tokens   int
	unknown  int
	seen     uint64 // choices that began, by index
	finished uint64 // choices that ended
	done     bool
	fault    *Error
}

// NewStream returns the state for a stream of kind k that collects at most
// limit bytes of the answer; zero collects none.
func NewStream(k Kind, limit int) *Stream {
	return &Stream{kind: k, answer: collector{limit: limit, spoiled: limit <= 0}}
}

// Observe takes the next event and says what it is. It keeps nothing of the
// event's memory.
func (s *Stream) Observe(e Event) Class {
	if e.Comment {
		return Held
	}
	if string(bytes.TrimSpace(e.Data)) == "[DONE]" {
		s.done = true
		return Done
	}
	s.cur.reset(e.Data)
	var ev event
	isError := string(e.Name) == "error"
	object := s.cur.peek() == '{'
	for key := range s.cur.members {
		s.member(&ev, key)
	}
	s.cur.finish()
	switch {
	case object && !s.cur.fault.set:
		ev.fault.object = ev.fault.object || isError
		return s.classify(&ev, e.Name)
	case isError:
		return s.failed(&Error{Message: keep(string(e.Data))})
	}
	s.unknown++
	return Held
}

// event is what one event says.
type event struct {
	fault   faultReader
	counts  counts
	content bool
	finish  string // the last finish_reason in it
	choices int

	// The Responses API.
	kind     string
	delta    bool // a delta that is not empty
	whole    bool // the finished text or arguments, not empty
	response string
}

func (s *Stream) member(ev *event, key string) {
	switch key {
	case "choices":
		for range s.cur.elements {
			ev.choices++
			s.choice(ev)
		}
	case "error", "object", "message", "code", "param":
		ev.fault.member(&s.cur, key)
	case "type":
		if kind, ok := s.cur.text(); ok {
			ev.kind = kind
			ev.fault.object = ev.fault.object || kind == "error"
		}
	case "delta":
		d, ok := s.cur.text()
		ev.delta = ok && d != "" || !ok && s.cur.peek() == '{'
	case "text", "arguments":
		t, ok := s.cur.text()
		ev.whole = ev.whole || ok && t != ""
	case "response":
		ev.response = s.cur.raw()
	default:
		s.cur.usageMember(key, &ev.counts)
	}
}

func (s *Stream) classify(ev *event, name []byte) Class {
	usage := ev.counts.usage()
	s.usage.merge(usage)
	if fault := ev.fault.result(false); fault != nil {
		if fault.Type == "" && ev.kind != "error" {
			fault.Type = keep(ev.kind)
		}
		return s.failed(fault)
	}
	if s.kind == Responses {
		if ev.kind == "" {
			ev.kind = string(name)
		}
		return s.responses(ev)
	}
	switch {
	case isFailure(ev.finish):
		return s.failed(ended(ev.finish))
	case ev.content:
		s.tokens++
		return Content
	case ev.finish != "":
		return Finish
	case ev.choices == 0 && usage.HasUsage:
		return UsageOnly
	}
	return Held
}

func (s *Stream) failed(e *Error) Class {
	if s.fault == nil {
		s.fault = e
	}
	return Failure
}

// choice reads an element of choices.
func (s *Stream) choice(ev *event) {
	c := &s.cur
	index, finish, text := 0, "", ""
	for key := range c.members {
		switch key {
		case "index":
			index, _ = c.integer()
			s.begin(index)
		case "finish_reason":
			finish, _ = c.text()
		case "text":
			text, _ = c.text()
		case "delta":
			s.delta(ev)
		case "usage":
			c.usageMember(key, &ev.counts)
		}
	}
	bit := s.begin(index)
	if text != "" {
		ev.content = true
		s.answer.addText(text)
	}
	if finish != "" {
		ev.finish = strings.Clone(finish)
		s.finished |= bit
	}
}

// begin notes that a choice is there and returns its bit. Answers of several
// choices are several, of which the client continues one at most.
func (s *Stream) begin(index int) uint64 {
	bit := uint64(1) << min(max(index, 0), 63)
	s.seen |= bit
	if s.seen&(s.seen-1) != 0 {
		s.answer.spoiled = true
	}
	return bit
}

// delta reads what a chat chunk adds to the answer.
func (s *Stream) delta(ev *event) {
	c := &s.cur
	thought := ""
	for key := range c.members {
		switch key {
		case "content", "refusal":
			s.deltaText(ev)
		case "reasoning":
			if t, ok := c.text(); ok && t != "" {
				thought = t
			}
		case "reasoning_content":
			// Engines in transition between the two names send both, with one text.
			if t, ok := c.text(); ok && thought == "" {
				thought = t
			}
		case "tool_calls":
			for range c.elements {
				s.deltaCall(ev)
			}
		case "function_call":
			if c.peek() == '{' {
				s.deltaCall(ev)
			}
		case "audio":
			if c.peek() == '{' {
				ev.content, s.answer.spoiled = true, true
			}
		}
	}
	if thought != "" {
		ev.content = true
		s.answer.addThought(thought)
	}
}

// deltaText reads a piece of text. Some vendors send lists of parts.
func (s *Stream) deltaText(ev *event) {
	if t, ok := s.cur.text(); ok {
		if t != "" {
			ev.content = true
			s.answer.addText(t)
		}
		return
	}
	for range s.cur.elements {
		ev.content, s.answer.spoiled = true, true
	}
}

// deltaCall reads a piece of a tool call.
func (s *Stream) deltaCall(ev *event) {
	c := &s.cur
	var p callPiece
	p.index = -1
	for key := range c.members {
		switch key {
		case "index":
			p.index, _ = c.integer()
		case "id":
			p.id, _ = c.text()
		case "function", "custom":
			for key := range c.members {
				p.member(c, key)
			}
		default:
			p.member(c, key)
		}
	}
	ev.content = true
	s.answer.addCall(p)
}

// responses classifies an event of the Responses API by its type.
func (s *Stream) responses(ev *event) Class {
	switch ev.kind {
	case "response.completed", "response.incomplete", "response.cancelled":
		_ = s.terminal(ev.response) // what it may name as a fault is the reason of a regular end
		return Done
	case "response.failed":
		fault := s.terminal(ev.response)
		if fault == nil {
			fault = ended("error")
		}
		return s.failed(fault)
	}
	switch {
	case strings.HasSuffix(ev.kind, ".delta") && ev.delta,
		// Engines that send no deltas send what is done.
		strings.HasSuffix(ev.kind, ".done") && ev.whole && s.tokens == 0:
		s.tokens++
		return Content
	}
	return Held
}

// terminal reads the whole response that ends a stream of the Responses API.
func (s *Stream) terminal(raw string) *Error {
	s.done = true
	a, err := parseAnswer(Responses, []byte(raw))
	if err != nil {
		s.unknown++
		return nil
	}
	s.usage.merge(a.Usage)
	if a.Joinable {
		s.answer.take(a.Message)
	}
	return a.Fault
}

// Usage returns the token counts seen so far.
func (s *Stream) Usage() Usage { return s.usage }

// Complete reports whether the stream said that it ended: by its last event,
// or by a finish_reason for every answer in it. An end without either is a
// truncated answer. A failure is no end, except where it is the stream's own
// last event.
func (s *Stream) Complete() bool {
	return s.done || s.finished != 0 && s.finished == s.seen
}

// Tokens returns the number of content events so far. Engines write about one
// token an event; the exact count comes with [Stream.Usage].
func (s *Stream) Tokens() int { return s.tokens }

// Unknown returns the number of events that were not understood.
func (s *Stream) Unknown() int { return s.unknown }

// Fault returns the error of the first Failure, nil when there was none.
func (s *Stream) Fault() *Error { return s.fault }

// Answer returns the answer as far as it came, and whether it may join the
// chain: it is the only one, and all of it was collected. Whether it is
// complete is for [Stream.Complete] to say.
func (s *Stream) Answer() (prompt.Message, bool) { return s.answer.message(s.kind) }
