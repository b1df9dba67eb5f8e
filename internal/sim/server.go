package sim

import (
	"log/slog"
	"time"
)

// ServerOptions sets up a [Server]. Only Model is required.
type ServerOptions struct {
	// Profile is the engine's cost. The zero value is that of llama-3.1-8b-1xh100.
	Profile Profile
	// Engine sets up the engine.
	Engine Options
	// Model is the served model's name. Adapters are LoRA names served beside it.
	Model    string
	Adapters []string
	// Replica names this server in the header X-Sim-Replica.
	Replica string
	// Speed is simulated seconds per second of wall time. Zero means 1.
	Speed float64
	// HidePromptDetails leaves usage.prompt_tokens_details out, as vLLM does without --enable-prompt-tokens-details.
	HidePromptDetails bool
	// Admin serves POST /sim/restart, /sim/kv_tokens and /sim/faults.
	Admin bool
	// MeanOutput is the mean length of an answer that nothing else bounds, in tokens. Zero means 200.
	MeanOutput int
	// Log gets one line per request at debug level. Nil discards.
	Log *slog.Logger
}

// Server is one replica: an [Engine] in wall time behind vLLM's HTTP API.
type Server struct{ o ServerOptions }

// Faults is what a test breaks in a [Server]. The zero value breaks nothing.
type Faults struct {
	// ErrorRate is the share of requests, 0 to 1, that get ErrorStatus (default 500) at once.
	ErrorRate   float64 `json:"error_rate,omitzero"`
	ErrorStatus int     `json:"error_status,omitzero"`
	// RetryAfter is the header of these answers.
	RetryAfter string `json:"retry_after,omitzero"`
	// Hang stops the engine: requests are taken in and get no token until it is lifted.
	Hang bool `json:"hang,omitzero"`
	// Unhealthy makes /health and /ping answer 503.
	Unhealthy bool `json:"unhealthy,omitzero"`
	// CutAfter closes the connection of a stream after so many tokens, without its end. Zero means never.
	CutAfter int `json:"cut_after,omitzero"`
	// ErrorEvent answers 200 and an error object as the body or as the first event.
	ErrorEvent bool `json:"error_event,omitzero"`
	// HealthDelay holds back the answers of /health, /ping and /metrics.
	HealthDelay time.Duration `json:"health_delay,omitzero"`
	// Slow divides the speed: 10 makes every step take ten times as long. Zero means 1.
	Slow float64 `json:"slow,omitzero"`
}

// Fleet runs several servers, each on its own listener.
type Fleet struct{ servers []*Server }
