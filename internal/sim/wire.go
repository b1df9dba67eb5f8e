package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
)

// apiError is an error in vLLM's shape.
type apiError struct {
	status  int
	kind    string
	param   string
	message string
}

// Error implements error.
func (e *apiError) Error() string { return fmt.Sprintf("%d %s: %s", e.status, e.kind, e.message) }

func badRequest(param, format string, args ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, kind: "BadRequestError", param: param, message: fmt.Sprintf(format, args...)}
}

// errorBody is the JSON of an apiError.
type errorBody struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    int     `json:"code"`
	} `json:"error"`
}

func (e *apiError) body() errorBody {
	var b errorBody
	b.Error.Message, b.Error.Type, b.Error.Code = e.message, e.kind, e.status
	if e.param != "" {
		b.Error.Param = &e.param
	}
	return b
}

// errGone says that nobody waits for the answer.
var errGone = errors.New("client is gone")

// fail writes a handler's error. It is the only place that does.
func (c *call) fail(err error) {
	if err == nil || errors.Is(err, errGone) {
		return
	}
	e, ok := errors.AsType[*apiError](err)
	if !ok {
		e = &apiError{status: http.StatusInternalServerError, kind: "InternalServerError", message: err.Error()}
	}
	c.json(e.status, e.body())
}

// json writes v as the whole answer.
func (c *call) json(status int, v any) {
	c.w.Header().Set("Content-Type", "application/json")
	c.w.WriteHeader(status)
	e := json.NewEncoder(c.w)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // the client may be gone
}

// decode parses the body into v as a Python server with typed requests would.
func (c *call) decode(v any) error {
	err := json.Unmarshal(c.body, v)
	if err == nil {
		return nil
	}
	message := err.Error()
	kind, at := "value_error", "body"
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		kind, at = "json_invalid", fmt.Sprintf("body', %d, '", e.Offset)
		message = "JSON decode error: " + message
	} else if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		field := e.Field[strings.LastIndexByte(e.Field, '.')+1:] // without the names of embedded structs
		kind, at = "type_error", "body', '"+field
		message = fmt.Sprintf("Input should be a valid %s, not %s", pythonType(e.Type), e.Value)
	}
	return &apiError{
		status: http.StatusBadRequest, kind: "Bad Request",
		message: fmt.Sprintf("1 validation error:\n  {'type': '%s', 'loc': ('%s'), 'msg': '%s'}", kind, at, message),
	}
}

func pythonType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return pythonType(t.Elem())
	case reflect.Slice:
		return "list"
	case reflect.Struct, reflect.Map:
		return "dictionary"
	case reflect.Bool:
		return "boolean"
	case reflect.String:
		return "string"
	case reflect.Float64:
		return "number"
	default:
		return "integer"
	}
}

// stream writes server-sent events.
type stream struct {
	c   *call
	buf bytes.Buffer
	enc *json.Encoder

	faults Faults
}

// newStream sends the headers: vLLM does so before the first token.
func (c *call) newStream() *stream {
	c.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	c.w.WriteHeader(http.StatusOK)
	t := &stream{c: c, faults: c.s.Faults()}
	t.enc = json.NewEncoder(&t.buf)
	t.enc.SetEscapeHTML(false)
	t.flush()
	return t
}

// event adds an event whose data is v as JSON.
func (t *stream) event(v any) {
	t.buf.WriteString("data: ")
	_ = t.enc.Encode(v) // into memory; ends with a line feed
	t.buf.WriteByte('\n')
}

// named adds an event with a name.
func (t *stream) named(name string, v any) {
	t.buf.WriteString("event: " + name + "\n")
	t.event(v)
}

// done adds the end marker.
func (t *stream) done() { t.buf.WriteString("data: [DONE]\n\n") }

// flush sends what was added. A client that is gone shows in the request's context.
func (t *stream) flush() {
	_, _ = t.c.w.Write(t.buf.Bytes())
	t.buf.Reset()
	_ = http.NewResponseController(t.c.w).Flush()
}

// breaksAfter applies the faults that break a stream after n tokens of a choice: it cuts the connection or reports that nothing more
// shall be written.
func (t *stream) breaksAfter(n int) bool {
	cut := t.faults.CutAfter > 0 && n >= t.faults.CutAfter
	end := t.faults.EndAfter > 0 && n >= t.faults.EndAfter
	if !cut && !end {
		return false
	}
	t.flush()
	t.c.abort()
	if cut {
		panic(http.ErrAbortHandler)
	}
	return true
}

// errorWith200 answers with an error that the status does not show.
func (c *call) errorWith200() error {
	var q struct {
		Stream bool `json:"stream"`
	}
	if err := c.decode(&q); err != nil {
		return err
	}
	e := &apiError{status: http.StatusInternalServerError, kind: "InternalServerError", message: "simulated fault"}
	if !q.Stream {
		c.json(http.StatusOK, e.body())
		return nil
	}
	t := c.newStream()
	t.event(e.body())
	t.done()
	t.flush()
	return nil
}
