package sim

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/zeebo/xxh3"
)

// EngineVersion is what GET /version says: the release whose behaviour is simulated.
const EngineVersion = "0.24.0"

// Headers that only a simulated replica sets, on every answer.
const (
	HeaderReplica    = "X-Sim-Replica"     // [ServerOptions.Replica]
	HeaderBodySHA256 = "X-Sim-Body-Sha256" // hex digest of the request's body as it arrived
)

// ServerOptions sets up a [Server]. Only Model is required.
type ServerOptions struct {
	// Profile is the engine's cost. One without a name is replaced by llama-3.1-8b-1xh100.
	Profile Profile
	// Engine sets up the engine. Its OnStep is called while the server is locked and must not call it.
	Engine Options
	// Model is the served model's name. Adapters are LoRA names served beside it.
	Model    string
	Adapters []string
	// Replica names this server in [HeaderReplica].
	Replica string
	// Speed is simulated seconds per second of wall time. Zero means 1.
	Speed float64
	// Precise spends a sleeping thread on waking up within 0.1 ms, where the runtime's timers may be 1 ms late: 10 ms of simulated
	// time at speed 10. It must be off in a synctest bubble. [Listen] turns it on.
	Precise bool
	// MaxModelLen is the longest context in tokens. Zero takes the profile's. It is never more than the KV cache holds.
	MaxModelLen int
	// HidePromptDetails leaves usage.prompt_tokens_details null, as vLLM does without --enable-prompt-tokens-details.
	HidePromptDetails bool
	// ForceUsage ends every stream with a usage chunk, as vLLM's --enable-force-include-usage.
	ForceUsage bool
	// Admin serves POST /sim/restart, /sim/kv_tokens and /sim/faults.
	Admin bool
	// MeanOutput is the mean length of an answer that nothing else bounds, in tokens. Zero means 200.
	MeanOutput int
	// MaxBody bounds request bodies in bytes. Zero means 64 MiB.
	MaxBody int64
	// Seed feeds the draw of [Faults.ErrorRate].
	Seed uint64
	// Log gets one line per request at debug level. Nil discards.
	Log *slog.Logger
}

const (
	defaultProfile    = "llama-3.1-8b-1xh100"
	defaultMeanOutput = 200
	defaultMaxBody    = 64 << 20
)

// Server is one replica: an [Engine] in wall time behind vLLM's HTTP API. [Server.Run] must run while it serves.
//
// Not simulated: log probabilities (null), tool calls and structured output (answers are plain sentences), beam search, priorities.
// Durations in /metrics are simulated seconds.
type Server struct {
	o      ServerOptions // defaults filled in
	maxLen int
	mux    *http.ServeMux
	kick   chan struct{} // wakes Run

	handlers sync.WaitGroup // under way; only added to under mu and before stopped

	mu        sync.Mutex // guards below; held for one turn of the engine at most
	engine    *Engine
	clock     clock
	metrics   *metrics
	started   time.Time // of the simulated process
	upAt      time.Time // connections are cut until then
	faults    Faults
	thawed    chan struct{} // closed when faults change
	rng       *rand.Rand
	sequences map[uint64]*sequence // in the engine, by request ID
	lastID    uint64
	serving   int // requests inside handlers
	stopped   bool
}

// NewServer returns a server whose clock starts now.
func NewServer(o ServerOptions) *Server {
	if o.Profile.Name == "" {
		o.Profile, _ = LookupProfile(defaultProfile) // is in the table
	}
	o.Speed = cmp.Or(o.Speed, 1)
	o.MeanOutput = cmp.Or(o.MeanOutput, defaultMeanOutput)
	o.MaxBody = cmp.Or(o.MaxBody, defaultMaxBody)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{o: o, kick: make(chan struct{}, 1), thawed: make(chan struct{}), sequences: map[uint64]*sequence{}}
	now := time.Now()
	s.started, s.clock = now, clock{wall: now, rate: o.Speed}
	s.rng = rand.New(rand.NewPCG(o.Seed, 0))
	eo := o.Engine
	eo.OnStep = s.step
	s.engine = NewEngine(o.Profile, eo)
	capacity := s.engine.Stats().TotalBlocks * s.engine.BlockTokens()
	s.maxLen = min(cmp.Or(o.MaxModelLen, o.Profile.MaxModelLen, capacity), capacity)
	s.metrics = newMetrics(s)
	s.routes()
	return s
}

// handler answers a call. An error is written as vLLM would, unless it is [errGone].
type handler func(c *call) error

func (s *Server) routes() {
	s.mux = http.NewServeMux()
	admin := func(pattern string, h handler) { s.mux.HandleFunc(pattern, s.serve(h)) }
	info := func(pattern string, h handler) { admin(pattern, s.freezing(h)) }
	work := func(path string, h handler) { info("POST "+path, s.faulty(h)) }

	work("/v1/chat/completions", s.chat)
	work("/v1/completions", s.completions)
	work("/v1/responses", s.responses)
	work("/v1/embeddings", s.embeddings)
	for _, path := range []string{"/v1/rerank", "/v2/rerank", "/rerank"} {
		work(path, s.rerank)
	}
	for _, path := range []string{"/v1/score", "/score"} {
		work(path, s.score)
	}
	info("POST /tokenize", s.tokenize)
	info("POST /detokenize", s.detokenize)
	info("GET /v1/models", s.models)
	info("GET /version", s.version)
	info("GET /load", s.loadInfo)
	info("GET /health", s.health)
	info("/ping", s.health)
	info("GET /metrics", s.scrape)
	info("/", func(c *call) error {
		return &apiError{status: http.StatusNotFound, kind: "Not Found", message: "Not Found"}
	})
	if s.o.Admin {
		admin("POST /sim/restart", s.adminRestart)
		admin("POST /sim/kv_tokens", s.adminKVTokens)
		admin("POST /sim/faults", s.adminFaults)
	}
}

// ServeHTTP implements [http.Handler]. While the simulated process is down it cuts the connection.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		panic(http.ErrAbortHandler)
	}
	defer s.exit()
	w.Header().Set(HeaderReplica, s.o.Replica)
	s.mux.ServeHTTP(w, r)
}

func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || time.Now().Before(s.upAt) {
		return false
	}
	s.serving++
	s.handlers.Add(1)
	return true
}

func (s *Server) exit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serving--
	s.handlers.Done()
}

// serve reads the body and writes the handler's error.
func (s *Server) serve(h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.o.MaxBody))
		c := &call{s: s, w: w, r: r, body: body, created: begin.Unix(), notify: make(chan struct{}, 1)}
		sum := sha256.Sum256(body)
		w.Header().Set(HeaderBodySHA256, hex.EncodeToString(sum[:]))
		if err == nil {
			err = h(c)
		} else if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			err = &apiError{status: http.StatusRequestEntityTooLarge, kind: "Request Entity Too Large", message: err.Error()}
		} else {
			err = errGone
		}
		c.fail(err)
		s.o.Log.LogAttrs(r.Context(), slog.LevelDebug, "served", slog.String("replica", s.o.Replica), slog.String("path", r.URL.Path),
			slog.Int("body_bytes", len(body)), slog.Duration("took", time.Since(begin)), slog.Any("error", err))
	}
}

// adapterOf checks that a model is served and returns the adapter that the name means, if any. No name means the base model.
func (s *Server) adapterOf(model string) (string, error) {
	if model == "" || model == s.o.Model {
		return "", nil
	}
	for _, a := range s.o.Adapters {
		if a == model {
			return a, nil
		}
	}
	return "", &apiError{status: http.StatusNotFound, kind: "NotFoundError", param: "model", message: "The model `" + model + "` does not exist."}
}

// saltOf folds what separates caches besides the tokens into the first hash of a chain.
func saltOf(adapter, cacheSalt string) uint64 {
	if adapter == "" && cacheSalt == "" {
		return 0
	}
	return xxh3.HashString(strings.Join([]string{adapter, cacheSalt}, "\x00"))
}
