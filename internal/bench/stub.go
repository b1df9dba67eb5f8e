package bench

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// stubModel is the model that a [Stub] serves.
const stubModel = "stub"

// stubTokens is how many content events a stream of a Stub has.
const stubTokens = 16

// Stub is an engine that answers at once: what remains of a request's time is
// the way there and back. It serves the routes that a gateway asks of vLLM.
type Stub struct{ mux *http.ServeMux }

// NewStub makes a stub.
func NewStub() *Stub {
	s := &Stub{mux: http.NewServeMux()}
	s.mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	s.mux.HandleFunc("GET /v1/models", fixed("application/json",
		`{"object":"list","data":[{"id":"`+stubModel+`","object":"model","owned_by":"warmroute","max_model_len":1048576}]}`))
	s.mux.HandleFunc("GET /metrics", fixed("text/plain; version=0.0.4",
		"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\""+stubModel+"\",engine=\"0\"} 0\n"))
	s.mux.HandleFunc("POST /v1/chat/completions", s.chat)
	return s
}

// ServeHTTP implements http.Handler.
func (s *Stub) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

func fixed(contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		fmt.Fprint(w, body)
	}
}

func (s *Stub) chat(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone
	}
	tokens := strconv.Itoa(max(len(body)/4, 1))
	usage := `"usage":{"prompt_tokens":` + tokens + `,"completion_tokens":` + strconv.Itoa(stubTokens) +
		`,"total_tokens":` + tokens + `,"prompt_tokens_details":{"cached_tokens":0}}`
	if !gjson.GetBytes(body, "stream").Bool() {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"id":"stub","object":"chat.completion","created":1,"model":"`+stubModel+
			`","choices":[{"index":0,"message":{"role":"assistant","content":"`+strings.Repeat("word ", stubTokens)+
			`"},"finish_reason":"stop"}],`+usage+`}`)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	flusher := http.NewResponseController(w)
	event := func(rest string) {
		fmt.Fprint(w, `data: {"id":"stub","object":"chat.completion.chunk","created":1,"model":"`+stubModel+`",`+rest+"}\n\n")
		flusher.Flush() //nolint:errcheck // a client that is gone is no fault of the stub
	}
	event(`"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]`)
	for range stubTokens {
		event(`"choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]`)
	}
	event(`"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]`)
	if gjson.GetBytes(body, "stream_options.include_usage").Bool() {
		event(`"choices":[],` + usage)
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}
