package dialect

import (
	"net/http"
	"strconv"
	"time"
)

// Error is an error in the form that OpenAI's clients know. It is meant for
// the client: it must hold no host, key or prompt.
type Error struct {
	Status     int           // HTTP status; zero means 500
	Type       string        // class, such as invalid_request_error
	Code       string        // machine-readable cause; null on the wire when empty
	Param      string        // member of the request at fault; null on the wire when empty
	Message    string        // one sentence for a human
	RetryAfter time.Duration // sent as Retry-After when positive, rounded up to seconds
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// AppendJSON appends {"error":{...}} and returns the longer slice.
func (e *Error) AppendJSON(b []byte) []byte {
	b = append(b, `{"error":`...)
	b = e.appendMembers(b, "")
	return append(b, '}')
}

// appendMembers appends the error's members as an object, after those in lead.
func (e *Error) appendMembers(b []byte, lead string) []byte {
	b = append(b, '{')
	b = append(b, lead...)
	b = append(b, `"message":`...)
	b = appendString(b, e.Message)
	if lead == "" {
		b = append(b, `,"type":`...)
		b = appendString(b, e.Type)
	}
	b = append(b, `,"param":`...)
	b = appendNullable(b, e.Param)
	b = append(b, `,"code":`...)
	b = appendNullable(b, e.Code)
	return append(b, '}')
}

func appendNullable(b []byte, s string) []byte {
	if s == "" {
		return append(b, "null"...)
	}
	return appendString(b, s)
}

// WriteError answers a request with e: status, Retry-After and the JSON body.
// The header must not have been written.
func WriteError(w http.ResponseWriter, e *Error) {
	body := append(e.AppendJSON(nil), '\n')
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64((e.RetryAfter+time.Second-1)/time.Second), 10))
	}
	status := e.Status
	if status == 0 {
		status = http.StatusInternalServerError
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that is gone needs no answer
}

// EventError returns e as a stream event of kind k, its blank line included.
func EventError(k Kind, e *Error) []byte {
	if k == Responses {
		b := e.appendMembers([]byte("event: error\ndata: "), `"type":"error",`)
		return append(b, "\n\n"...)
	}
	return append(e.AppendJSON([]byte("data: ")), "\n\n"...)
}
