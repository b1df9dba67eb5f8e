package testkit

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Fate is how an answer ends.
type Fate uint8

// The fates.
const (
	Complete  Fate = iota // with its marker
	NoMarker              // a clean end without finish_reason and [DONE]
	Cut                   // the connection breaks after the tokens
	Hang                  // silence after the tokens, until the client leaves
	HangEarly             // silence before the headers, until the client leaves
	ResetNow              // the connection is reset before the headers
)

// Act is one answer of an [Engine]. The zero Act is a good one of three tokens.
type Act struct {
	// Status is the HTTP status; 0 means 200.
	Status int
	// Header is added to the answer's.
	Header http.Header
	// Body replaces the answer that would be made up.
	Body string
	// Tokens is the number of content chunks; 0 means 3.
	Tokens int
	// Before is the pause before the headers, Gap that before each token.
	Before, Gap time.Duration
	// Fate is how it ends.
	Fate Fate
	// Usage is the usage object as it is sent; empty means a true one.
	Usage string
	// Cached is the number of cached prompt tokens in a made-up usage.
	Cached int
	// FirstEvent comes before everything else in a stream, as the data of an
	// event: an error, for instance.
	FirstEvent string
}

// Busy is a 429 that asks for a pause; empty retryAfter does not ask.
func Busy(retryAfter string) Act {
	a := Act{Status: http.StatusTooManyRequests, Body: `{"error":{"message":"too many requests","type":"rate_limit_error"}}`}
	if retryAfter != "" {
		a.Header = http.Header{"Retry-After": {retryAfter}}
	}
	return a
}

// Broken is a 500.
func Broken() Act {
	return Act{Status: http.StatusInternalServerError, Body: `{"error":{"message":"engine core died","type":"internal_error"}}`}
}

// ErrorIn200 is an error object under status 200, or, in a stream, as the first
// event.
func ErrorIn200() Act {
	const e = `{"error":{"message":"out of memory","type":"internal_error","code":500}}`
	return Act{Body: e, FirstEvent: e, Fate: NoMarker}
}

// Call is one request that an Engine got.
type Call struct {
	Method, Path string
	Header       http.Header
	Body         []byte
	// Began is when it came, Gone when its context ended before the answer did.
	Began, Gone time.Time
}

// Engine is an OpenAI-compatible server that follows a script. Its zero value
// answers everything well. It serves /health, /v1/models and /metrics besides,
// which are not part of the script.
type Engine struct {
	// Model is what /v1/models lists; empty means "m".
	Model string
	// Then is what it does when the script is over.
	Then Act

	mu      sync.Mutex // guards below
	script  []Act
	calls   []*Call
	active  int
	health  int // status; 0 means 200
	lag     time.Duration
	metrics string
	models  string
}

// NewEngine returns an engine that answers with the acts in turn, and well after
// them.
func NewEngine(acts ...Act) *Engine { return &Engine{script: acts} }

// Play replaces what is left of the script.
func (e *Engine) Play(acts ...Act) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.script = acts
}

// SetHealth sets the status of /health and how late the answer comes.
func (e *Engine) SetHealth(status int, lag time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.health, e.lag = status, lag
}

// SetMetrics sets the page of /metrics; empty makes it 404.
func (e *Engine) SetMetrics(page string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.metrics = page
}

// SetModels sets the answer of /v1/models as it is.
func (e *Engine) SetModels(body string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.models = body
}

// Calls returns the requests of the script so far.
func (e *Engine) Calls() []Call {
	e.mu.Lock()
	defer e.mu.Unlock()
	calls := make([]Call, len(e.calls))
	for i, c := range e.calls {
		calls[i] = *c
	}
	return calls
}

// Active counts the requests of the script that run now.
func (e *Engine) Active() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.active
}

// ServeHTTP answers a request.
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/health":
		e.serveHealth(w, r)
	case "/metrics":
		e.mu.Lock()
		page := e.metrics
		e.mu.Unlock()
		if page == "" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, page)
	case "/v1/models":
		e.serveModels(w)
	default:
		e.serveScript(w, r)
	}
}

func (e *Engine) serveHealth(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	status, lag := e.health, e.lag
	e.mu.Unlock()
	if !pause(r, lag) {
		return
	}
	w.WriteHeader(max(status, http.StatusOK))
}

func (e *Engine) serveModels(w http.ResponseWriter) {
	e.mu.Lock()
	body := e.models
	e.mu.Unlock()
	if body == "" {
		model := e.Model
		if model == "" {
			model = "m"
		}
		body = fmt.Sprintf(`{"object":"list","data":[{"id":%q,"object":"model"}]}`, model)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, body)
}

// begin notes a call and takes the next act.
func (e *Engine) begin(r *http.Request, body []byte) (*Call, Act) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := &Call{Method: r.Method, Path: r.URL.RequestURI(), Header: r.Header.Clone(), Body: body, Began: time.Now()}
	e.calls = append(e.calls, c)
	e.active++
	act := e.Then
	if len(e.script) > 0 {
		act, e.script = e.script[0], e.script[1:]
	}
	return c, act
}

func (e *Engine) end(r *http.Request, c *Call) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.active--
	if r.Context().Err() != nil {
		c.Gone = time.Now()
	}
}

func (e *Engine) serveScript(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	call, act := e.begin(r, body)
	defer e.end(r, call)
	if !pause(r, act.Before) {
		return
	}
	switch act.Fate {
	case HangEarly:
		<-r.Context().Done()
		return
	case ResetNow:
		breakConn(w)
		return
	case Complete, NoMarker, Cut, Hang:
	}
	maps.Copy(w.Header(), act.Header)
	var asked struct {
		Stream  bool `json:"stream"`
		Options struct {
			Usage bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	_ = json.Unmarshal(body, &asked)
	if act.Tokens == 0 {
		act.Tokens = 3
	}
	if act.Usage == "" {
		act.Usage = fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}`,
			len(body)/4, act.Tokens, len(body)/4+act.Tokens, act.Cached)
	}
	if asked.Stream && act.Status <= 299 && (act.Body == "" || act.FirstEvent != "") {
		stream(w, r, act, asked.Options.Usage)
		return
	}
	plain(w, r, act)
}

// plain answers in one piece.
func plain(w http.ResponseWriter, r *http.Request, act Act) {
	text := act.Body
	if text == "" {
		text = fmt.Sprintf(`{"id":"c-1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"stop"}],"usage":%s}`,
			Answer(act.Tokens), act.Usage)
	}
	w.Header().Set("Content-Type", "application/json")
	if act.Fate == Cut || act.Fate == Hang {
		w.Header().Set("Content-Length", strconv.Itoa(len(text)))
		text = text[:len(text)/2]
	}
	w.WriteHeader(max(act.Status, http.StatusOK))
	_, _ = io.WriteString(w, text)
	finish(w, r, act.Fate)
}

// stream answers event by event.
func stream(w http.ResponseWriter, r *http.Request, act Act, usage bool) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(max(act.Status, http.StatusOK))
	rc := http.NewResponseController(w)
	send := func(data string) {
		_, _ = io.WriteString(w, "data: "+data+"\n\n")
		_ = rc.Flush()
	}
	chunk := func(delta, reason string) {
		send(`{"id":"c-1","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":` + delta + `,"finish_reason":` + reason + `}]}`)
	}
	if act.FirstEvent != "" {
		send(act.FirstEvent)
		return
	}
	chunk(`{"role":"assistant","content":""}`, "null")
	for i := range act.Tokens {
		if !pause(r, act.Gap) {
			return
		}
		chunk(fmt.Sprintf(`{"content":%q}`, token(i)), "null")
	}
	if act.Fate == Complete {
		chunk(`{}`, `"stop"`)
		if usage {
			send(`{"id":"c-1","object":"chat.completion.chunk","model":"m","choices":[],"usage":` + act.Usage + `}`)
		}
		send("[DONE]")
	}
	finish(w, r, act.Fate)
}

func finish(w http.ResponseWriter, r *http.Request, fate Fate) {
	switch fate {
	case Hang:
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	case Cut:
		_ = http.NewResponseController(w).Flush()
		breakConn(w)
	case Complete, NoMarker, HangEarly, ResetNow:
	}
}

// Answer is the text of an answer of n tokens.
func Answer(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(token(i))
	}
	return b.String()
}

func token(i int) string { return "t" + strconv.Itoa(i) + " " }

// pause waits and reports whether the client is still there.
func pause(r *http.Request, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-r.Context().Done():
		return false
	}
}

// breakConn resets the connection below an HTTP/1 answer, or aborts it as well
// as the protocol can.
func breakConn(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if c, ok := conn.(*Conn); ok {
		c.Reset()
		return
	}
	_ = conn.Close()
}
