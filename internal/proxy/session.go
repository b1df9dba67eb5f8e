package proxy

import (
	"net/http"

	"github.com/warmroute/warmroute/internal/route"
)

// sessionHeaders name a conversation, in the order in which they are believed:
// those made for routing first, then sessions of applications, then the one
// that some clients make anew for each request. Keys are in canonical form, so
// that a look-up allocates nothing.
var sessionHeaders = [...]string{
	"X-Smg-Routing-Key",           // Shepherd Model Gateway
	"X-Session-Affinity",          // AIPerf, OpenRouter-like clients
	"X-Dynamo-Session-Id",         // Dynamo
	"X-Session-Id",                // llm-d, AIPerf
	"X-Session-Token",             // llm-d
	"X-Amzn-Sagemaker-Session-Id", // SageMaker
	"X-Grok-Conv-Id",              // xAI
	"X-Correlation-Id",            // AIPerf
}

// sessionKey hashes the client's name of the conversation, from a header or
// else from the body; zero when there is none. The name itself is never kept.
func sessionKey(h http.Header, body string) uint64 {
	name := body
	for _, key := range sessionHeaders {
		if v := h[key]; len(v) > 0 && v[0] != "" {
			name = v[0]
			break
		}
	}
	if name == "" {
		return 0
	}
	return max(route.Hash(name), 1)
}
