package dialect

import (
	"errors"
	"fmt"

	"github.com/warmroute/warmroute/internal/prompt"
)

// Answer is a whole answer that did not stream.
type Answer struct {
	Usage    Usage
	Message  prompt.Message // of the first choice; its strings alias the body
	Joinable bool           // Message is the only answer and may join the chain
	Finish   string         // why it ended: finish_reason, or the status of a response
	Fault    *Error         // what went wrong, when the body tells of a failure in spite of its status
}

var errNoObject = errors.New("body is no JSON object")

// ParseAnswer reads the body of an answer of kind k with a status of success.
// The error means that it is no answer at all: not JSON, or cut off.
func ParseAnswer(k Kind, body []byte) (Answer, error) {
	a, err := parseAnswer(k, body)
	if err != nil {
		return Answer{}, fmt.Errorf("parse %s answer: %w", k, err)
	}
	return a, nil
}

func parseAnswer(k Kind, body []byte) (Answer, error) {
	r := answerReader{kind: k, d: decoder{cursor: cursor{b: body}, call: &Call{Kind: k}}}
	if r.d.peek() != '{' {
		return Answer{}, errNoObject
	}
	for key := range r.d.members {
		r.member(key)
	}
	r.d.finish()
	if r.d.fault.set {
		return Answer{}, errors.New("body " + r.d.fault.describe(body))
	}
	return r.result(), nil
}

type answerReader struct {
	kind    Kind
	d       decoder
	fault   faultReader
	counts  counts
	choices int
	text    bool // the first choice is plain text
	answer  Answer
}

func (r *answerReader) member(key string) {
	d := &r.d
	switch key {
	case "error", "object", "message", "type", "code", "param":
		r.fault.member(&d.cursor, key)
	case "choices":
		for range d.elements {
			r.choice()
		}
	case "output":
		if r.kind == Responses && d.peek() == '[' {
			d.items()
		}
	case "status":
		if r.kind == Responses {
			r.answer.Finish, _ = d.text()
		}
	default:
		d.usageMember(key, &r.counts)
	}
}

// choice reads an element of choices; only the first is kept.
func (r *answerReader) choice() {
	d := &r.d
	r.choices++
	if r.choices > 1 {
		return
	}
	for key := range d.members {
		switch key {
		case "message":
			if d.peek() == '{' {
				r.answer.Message = d.message()
			}
		case "text":
			if s, ok := d.text(); ok {
				r.text = true
				r.answer.Message.Parts = []prompt.Part{{Kind: prompt.Text, Text: s}}
			}
		case "finish_reason":
			r.answer.Finish, _ = d.text()
		case "usage":
			d.usageMember(key, &r.counts)
		}
	}
}

func (r *answerReader) result() Answer {
	a := r.answer
	a.Usage = r.counts.usage()
	a.Fault = r.fault.result(false)
	switch {
	case a.Fault != nil:
	case isFailure(a.Finish), r.kind == Responses && a.Finish == "failed":
		a.Fault = ended(a.Finish)
	case r.kind == Responses:
		if msgs := r.d.call.Prompt.Messages; len(msgs) == 1 {
			a.Message = msgs[0]
			a.Joinable = a.Message.Role == assistant && (a.Finish == "completed" || a.Finish == "incomplete")
		}
	case r.choices == 1:
		if a.Message.Role == "" && !r.text {
			a.Message.Role = assistant
		}
		a.Joinable = len(a.Message.Parts) > 0
	}
	return a
}
