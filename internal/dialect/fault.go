package dialect

import (
	"net/http"
	"strings"
)

// maxFaultMessage bounds what is kept of an upstream's own words, in bytes.
const maxFaultMessage = 2 << 10

// ParseError reads the body of an upstream's answer with a status of 400 or
// more, in whatever shape it says what is wrong. The upstream's text may hold
// what the client must not see; whoever passes it on redacts it.
func ParseError(status int, body []byte) *Error {
	c := cursor{b: body}
	var f faultReader
	for key := range c.members {
		f.member(&c, key)
	}
	e := f.result(true)
	if c.fault.set || e == nil {
		e = &Error{Type: "upstream_error"}
	}
	e.Status = status
	if e.Message == "" {
		e.Message = http.StatusText(status)
	}
	return e
}

// faultReader gathers what a JSON document says about a failure: an error
// member, or, with an older vLLM, the error's members at the top with "object":
// "error" beside them.
type faultReader struct {
	inner  *Error // of the error member
	outer  Error
	object bool // "object" or "type" is "error"
}

// member reads a member of the document. It takes only what it knows.
func (f *faultReader) member(c *cursor, key string) {
	switch key {
	case "error":
		f.inner = c.faultValue()
	case "object":
		if s, ok := c.text(); ok {
			f.object = s == "error"
		}
	case "message", "detail", "type", "code", "param":
		c.faultMember(key, &f.outer)
	}
}

// result returns the failure that the document tells of, nil when it is an
// answer. loose takes the members at the top for a failure without being told.
func (f *faultReader) result(loose bool) *Error {
	switch {
	case f.inner != nil:
		return f.inner
	case f.object || loose && f.outer.Message != "":
		e := f.outer
		return &e
	}
	return nil
}

// faultValue reads the value of an error member; null is none.
func (c *cursor) faultValue() *Error {
	e := &Error{}
	if s, ok := c.text(); ok {
		e.Message = keep(s)
		return e
	}
	switch c.peek() {
	case '{':
		for key := range c.members {
			c.faultMember(key, e)
		}
	case 'n', 'f':
		return nil
	}
	return e
}

func (c *cursor) faultMember(key string, e *Error) {
	switch key {
	case "message", "detail":
		if s, ok := c.text(); ok {
			e.Message = keep(s)
		} else if !c.null() {
			e.Message = keep(c.raw())
		}
	case "type":
		if s, ok := c.text(); ok {
			e.Type = keep(s)
		}
	case "param":
		if s, ok := c.text(); ok {
			e.Param = keep(s)
		}
	case "code", "status", "status_code", "http_code":
		if n, ok := c.integer(); ok && n >= 400 && n < 600 {
			e.Status = n
		} else if s, ok := c.text(); ok && key == "code" {
			e.Code = keep(s)
		}
	}
}

// keep copies s, which is part of a buffer that will be written over.
func keep(s string) string {
	return strings.Clone(s[:min(len(s), maxFaultMessage)])
}

// ended is the failure of an answer that ends with a reason which is one.
func ended(reason string) *Error {
	return &Error{
		Status: http.StatusBadGateway, Type: "upstream_error", Code: "finish_reason_" + reason,
		Message: "The engine ended the answer with finish_reason '" + reason + "'.",
	}
}

// isFailure reports whether a finish_reason says that the engine gave up.
func isFailure(reason string) bool { return reason == "error" || reason == "abort" }
