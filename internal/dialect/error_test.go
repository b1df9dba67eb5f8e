package dialect

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestErrorGolden(t *testing.T) {
	errs := []*Error{
		{Status: 404, Type: "invalid_request_error", Code: "model_not_found", Param: "model", Message: "The model 'x' does not exist; served are 'a' and 'b'."},
		{Type: "server_error", Message: "quote \" slash \\ line\nend 你好 \x00 \xff"},
	}
	var got strings.Builder
	for _, e := range errs {
		for _, k := range []Kind{Chat, Completions, Responses} {
			got.WriteString(k.String() + ": " + string(EventError(k, e)))
		}
		got.WriteString("body: " + string(e.AppendJSON(nil)) + "\n\n")
	}
	golden(t, "testdata/errors.txt", got.String())
}

// An error event is one event, reads as JSON, and is a Failure to ourselves.
func TestEventErrorReadsBack(t *testing.T) {
	e := &Error{Type: "upstream_error", Code: "stream_incomplete", Message: "a\n\ndata: [DONE]\n\n\"b\""}
	for _, k := range []Kind{Chat, Completions, Responses} {
		events := readEvents(t, &chunks{rest: EventError(k, e), rng: newRand()}, string(EventError(k, e)))
		if len(events) != 1 || !json.Valid([]byte(events[0].Data)) {
			t.Fatalf("%s: got %q", k, events)
		}
		s := NewStream(k, 0)
		if c := s.Observe(Event{Data: []byte(events[0].Data), Name: []byte(events[0].Name)}); c != Failure {
			t.Errorf("%s: our own error event is %s", k, c)
		}
		if f := s.Fault(); f == nil || f.Message != e.Message || f.Code != e.Code {
			t.Errorf("%s: reads back as %+v", k, f)
		}
	}
}

func TestWriteError(t *testing.T) {
	f := func(e *Error, status int, retryAfter string) {
		t.Helper()
		w := httptest.NewRecorder()
		WriteError(w, e)
		if w.Code != status || w.Header().Get("Retry-After") != retryAfter || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("got %d, %v; want %d, Retry-After %q", w.Code, w.Header(), status, retryAfter)
		}
		if got := ParseError(w.Code, w.Body.Bytes()); got.Message != e.Message || got.Code != e.Code || got.Type != e.Type || got.Param != e.Param {
			t.Errorf("reads back as %+v; want %+v", got, e)
		}
	}
	f(&Error{Type: "t", Message: "m"}, 500, "")
	f(&Error{Status: 429, Type: "t", Code: "c", Param: "p", Message: "m", RetryAfter: 1500 * time.Millisecond}, 429, "2")
	f(&Error{Status: 503, Type: "t", Message: "m", RetryAfter: time.Nanosecond}, 503, "1")
	f(&Error{Status: 503, Type: "t", Message: "m", RetryAfter: 7 * time.Second}, 503, "7")
}

func TestParseError(t *testing.T) {
	f := func(status int, body string, want Error) {
		t.Helper()
		want.Status = status
		if diff := cmp.Diff(&want, ParseError(status, []byte(body))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", body, diff)
		}
	}
	f(400, `{"error":{"message":"m","type":"t","param":"p","code":"c"}}`, Error{Message: "m", Type: "t", Param: "p", Code: "c"})
	f(429, `{"error":{"message":"m","code":400}}`, Error{Message: "m"})
	f(500, `{"object":"error","message":"m","type":"BadRequestError","code":400}`, Error{Message: "m", Type: "BadRequestError"})
	f(422, `{"detail":[{"loc":["body"],"msg":"bad"}]}`, Error{Message: `[{"loc":["body"],"msg":"bad"}]`})
	f(401, `{"detail":"no"}`, Error{Message: "no"})
	f(503, `{"error":"overloaded","error_type":"x"}`, Error{Message: "overloaded"})
	f(503, `{"error":{}}`, Error{Message: "Service Unavailable"})
	f(502, `<html>Bad gateway</html>`, Error{Type: "upstream_error", Message: "Bad Gateway"})
	f(http.StatusGatewayTimeout, ``, Error{Type: "upstream_error", Message: http.StatusText(http.StatusGatewayTimeout)})
	f(500, `{"error":{"message":"cut`, Error{Type: "upstream_error", Message: "Internal Server Error"})
}

func TestErrorIsItsMessage(t *testing.T) {
	var err error = &Error{Message: "m", Type: "t"}
	if err.Error() != "m" {
		t.Errorf("got %q", err.Error())
	}
}
