package sim

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/zeebo/xxh3"
)

// call is one HTTP request and the sequences that the engine computes for it.
type call struct {
	s       *Server
	w       http.ResponseWriter
	r       *http.Request
	body    []byte
	created int64
	notify  chan struct{} // a sequence has news

	id        string
	model     string // as the answer names it
	sequences []*sequence
}

// sequence is one engine request with its text.
type sequence struct {
	call    *call
	req     Request
	answer  answer
	adapter string
	maxOut  int // the request's bound of output tokens

	tokens int  // generated so far; guarded by Server.mu, as done
	done   bool // ended, see req.Err

	told int // tokens that the handler has passed on
	text int // bytes of the answer passed on
}

// sampling is what the generating routes have in common in their requests.
type sampling struct {
	Model               string   `json:"model"`
	Stream              bool     `json:"stream"`
	MaxTokens           *int     `json:"max_tokens"`
	MaxCompletionTokens *int     `json:"max_completion_tokens"`
	MinTokens           int      `json:"min_tokens"`
	N                   *int     `json:"n"`
	Stop                stopList `json:"stop"`
	IncludeStop         bool     `json:"include_stop_str_in_output"`
	IgnoreEOS           bool     `json:"ignore_eos"`
	Seed                uint64   `json:"-"`
	SeedRaw             *int64   `json:"seed"`
	CacheSalt           *string  `json:"cache_salt"`
	ReturnTokenIDs      bool     `json:"return_token_ids"`
	StreamOptions       *struct {
		IncludeUsage    *bool `json:"include_usage"` // default true
		ContinuousUsage bool  `json:"continuous_usage_stats"`
	} `json:"stream_options"`
}

// stopList is one string or several.
type stopList []string

// UnmarshalJSON implements [json.Unmarshaler].
func (l *stopList) UnmarshalJSON(raw []byte) error {
	*l = nil
	if len(raw) > 0 && raw[0] == '"' {
		*l = stopList{""}
		return json.Unmarshal(raw, &(*l)[0])
	}
	return json.Unmarshal(raw, (*[]string)(l))
}

// maxChoices bounds n, as vLLM's VLLM_MAX_N_SEQUENCES.
const maxChoices = 64

// choices returns n.
func (q *sampling) choices() int {
	if q.N == nil {
		return 1
	}
	return *q.N
}

// check validates what does not depend on the prompt.
func (q *sampling) check() error {
	switch n := q.choices(); {
	case n < 1:
		return badRequest("n", "n must be at least 1, got %d.", n)
	case n > maxChoices:
		return badRequest("n", "n must be at most %d, got %d.", maxChoices, n)
	case q.StreamOptions != nil && !q.Stream:
		return badRequest("stream_options", "Stream options can only be defined when `stream=True`.")
	case q.CacheSalt != nil && *q.CacheSalt == "":
		return badRequest("cache_salt", "Parameter 'cache_salt' must be a non-empty string if provided.")
	case q.MinTokens < 0:
		return badRequest("min_tokens", "min_tokens must be greater than or equal to 0, got %d.", q.MinTokens)
	}
	if q.SeedRaw != nil {
		q.Seed = uint64(*q.SeedRaw)
	}
	return nil
}

func (q *sampling) salt() string {
	if q.CacheSalt == nil {
		return ""
	}
	return *q.CacheSalt
}

// asksUsage reports whether the request wants a stream to end with a usage chunk.
func (q *sampling) asksUsage() bool {
	return q.StreamOptions != nil && (q.StreamOptions.IncludeUsage == nil || *q.StreamOptions.IncludeUsage)
}

// bounds checks the lengths against the context and returns the limits of the answer. fallback is the bound of output tokens when
// the request has none; 0 means what the context leaves.
func (s *Server) bounds(q *sampling, prompt, fallback int) (limits, error) {
	room := s.maxLen - prompt
	out := q.MaxCompletionTokens
	if out == nil {
		out = q.MaxTokens
	}
	l := limits{max: room, min: q.MinTokens, ignoreEOS: q.IgnoreEOS, stops: q.Stop, keepStop: q.IncludeStop, mean: s.o.MeanOutput}
	if fallback > 0 {
		l.max = min(room, fallback)
	}
	if out != nil {
		l.max = *out
	}
	switch {
	case out != nil && *out < 1:
		return l, badRequest("max_tokens", "max_tokens must be at least 1, got %d.", *out)
	case prompt == 0:
		return l, badRequest("prompt", "The decoder prompt cannot be empty")
	case room < 1 || l.max > room:
		return l, s.tooLong(prompt, max(l.max, 0))
	case l.min > l.max:
		return l, badRequest("min_tokens", "min_tokens must be less than or equal to max_tokens=%d, got %d.", l.max, l.min)
	}
	return l, nil
}

func (s *Server) tooLong(prompt, output int) *apiError {
	return badRequest("input_tokens", "This model's maximum context length is %d tokens. However, you requested %d output tokens and your "+
		"prompt contains at least %d input tokens, for a total of at least %d tokens. Please reduce the length of the input prompt or the "+
		"number of requested output tokens.", s.maxLen, output, prompt, prompt+output)
}

// hashed is a prompt as the engine sees it.
type hashed struct {
	tokens int
	chain  []uint64
	tail   []TokenID // after the last complete block
	seed   uint64    // hash of all tokens
}

func (s *Server) hash(tokens []TokenID, salt uint64) hashed {
	bt := s.engine.BlockTokens()
	h := hashed{tokens: len(tokens), chain: BlockChain(make([]uint64, 0, len(tokens)/bt), tokens, bt, salt)}
	h.tail = tokens[len(h.chain)*bt:]
	h.seed = h.last(salt)
	for _, t := range h.tail {
		h.seed = xxh3.HashSeed(binary.LittleEndian.AppendUint64(nil, uint64(t)), h.seed)
	}
	return h
}

func (h *hashed) last(salt uint64) uint64 {
	if len(h.chain) == 0 {
		return salt
	}
	return h.chain[len(h.chain)-1]
}

// generate adds a sequence that answers the prompt. Equal prompts, seeds and indexes have equal answers.
func (c *call) generate(h *hashed, salt, seed uint64, l limits) *sequence {
	a := newAnswer(h.seed^seed*0x9e3779b97f4a7c15, l)
	bt := c.s.engine.BlockTokens()
	after := append(append(make([]TokenID, 0, len(h.tail)+len(a.tokens)), h.tail...), a.tokens...)
	q := c.pool(h)
	q.answer, q.maxOut = a, l.max
	q.req.OutputTokens = len(a.tokens)
	q.req.OutputBlocks = BlockChain(nil, after, bt, h.last(salt))
	return q
}

// pool adds a sequence that only computes the prompt.
func (c *call) pool(h *hashed) *sequence {
	q := &sequence{call: c, req: Request{Prompt: h.chain, PromptTokens: h.tokens}}
	c.sequences = append(c.sequences, q)
	return q
}

// submit hands the sequences to the engine. With watch it reports every token, else only the ends.
func (c *call) submit(watch bool) error {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errGone
	}
	v := s.advanceLocked(time.Now())
	for i, q := range c.sequences {
		s.lastID++
		q.req.ID = s.lastID
		if watch {
			q.req.TokenEvery = 1
		}
		if err := s.engine.Submit(v, &q.req); err != nil {
			for _, p := range c.sequences[:i] {
				s.engine.Abort(v, &p.req)
			}
			if errors.Is(err, ErrTooLong) {
				return s.tooLong(q.req.PromptTokens, q.req.OutputTokens)
			}
			return err
		}
		s.sequences[q.req.ID] = q
	}
	s.wakeLoop()
	return nil
}

// wake tells the handler that a sequence has news.
func (c *call) wake() {
	select {
	case c.notify <- struct{}{}:
	default: // it has not taken the last ones yet
	}
}

// wait returns when a sequence has news. When the client leaves, it takes the sequences back.
func (c *call) wait() error {
	select {
	case <-c.notify:
		return nil
	case <-c.r.Context().Done():
		c.abort()
		return errGone
	}
}

// abort takes back what the engine still has of the call.
func (c *call) abort() {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.advanceLocked(time.Now())
	for _, q := range c.sequences {
		s.engine.Abort(v, &q.req)
	}
	s.wakeLoop()
}

// finish waits until all sequences have ended.
func (c *call) finish() error {
	if err := c.submit(false); err != nil {
		return err
	}
	for {
		if err := c.wait(); err != nil {
			return err
		}
		left := 0
		for i := range c.sequences {
			n := c.news(i)
			if n.err != nil {
				return n.err
			}
			if !n.done {
				left++
			}
		}
		if left == 0 {
			return nil
		}
	}
}

// news is what one sequence has reached.
type news struct {
	tokens int
	done   bool
	err    error
}

// news returns the state of a sequence. A restart of the engine cuts the connection, as the death of the process would.
func (c *call) news(i int) news {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	q := c.sequences[i]
	n := news{tokens: q.tokens, done: q.done}
	if !q.done {
		return n
	}
	switch err := q.req.Err; {
	case err == nil:
	case errors.Is(err, ErrRestarted):
		panic(http.ErrAbortHandler)
	case errors.Is(err, ErrTooLong):
		n.err = c.s.tooLong(q.req.PromptTokens, q.req.OutputTokens)
	default:
		n.err = errGone
	}
	return n
}

// usage is the tokens of a call, in vLLM's order of fields.
type usage struct {
	PromptTokens     int          `json:"prompt_tokens"`
	TotalTokens      int          `json:"total_tokens"`
	CompletionTokens int          `json:"completion_tokens"`
	Details          *usageDetail `json:"prompt_tokens_details"`
}

type usageDetail struct {
	CachedTokens int `json:"cached_tokens"`
}

// usage sums up the call. Prompt tokens count once for the choices of one prompt. prompt_tokens_details is null on a full miss.
func (c *call) usage(perPrompt int) usage {
	var u usage
	cached := 0
	for i, q := range c.sequences {
		if i%perPrompt == 0 {
			u.PromptTokens += q.req.PromptTokens
			cached += q.req.Cached
		}
		u.CompletionTokens += q.told
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	if cached > 0 && !c.s.o.HidePromptDetails {
		u.Details = &usageDetail{CachedTokens: cached}
	}
	return u
}

// name gives the call its ID, from the client's X-Request-Id if there is one.
func (c *call) name(prefix, model string) {
	id := c.r.Header.Get("X-Request-Id")
	if id == "" {
		id = strconv.FormatUint(rand.Uint64(), 16) + strconv.FormatUint(rand.Uint64(), 16)
	}
	c.id = prefix + id
	if model == "" {
		model = c.s.o.Model
	}
	c.model = model
}

// delta returns the text of tokens told..n and moves on.
func (q *sequence) delta(n int) (text string, ids []TokenID) {
	ids = q.answer.tokens[q.told:n]
	end := q.text
	for _, t := range ids {
		if t >= controlTokens {
			end += len(AppendText(nil, []TokenID{t}))
		}
	}
	from := min(q.text, len(q.answer.text))
	q.told, q.text = n, end
	return q.answer.text[from:min(end, len(q.answer.text))], ids
}
