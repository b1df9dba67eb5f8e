package proxy

import (
	"net/http"
	"slices"
	"strings"

	"github.com/warmroute/warmroute/internal/dialect"
)

// invalidRequest is the error type for faults of the request itself.
const invalidRequest = "invalid_request_error"

// endpoints are the paths that are sent on to instances, under the path by which
// the client called: vLLM's own names for one API stay apart.
var endpoints = map[string]dialect.Kind{
	"/v1/chat/completions": dialect.Chat,
	"/v1/completions":      dialect.Completions,
	"/v1/embeddings":       dialect.Embeddings,
	"/v1/responses":        dialect.Responses,
	"/rerank":              dialect.Rerank,
	"/v1/rerank":           dialect.Rerank,
	"/v2/rerank":           dialect.Rerank,
	"/score":               dialect.Score,
	"/v1/score":            dialect.Score,
	"/tokenize":            dialect.Tokenize,
	"/v1/tokenize":         dialect.Tokenize,
}

const modelsPath = "/v1/models"

// Paths lists the paths that a [Gateway] answers, sorted; those that end in a
// slash stand for everything below.
func Paths() []string {
	paths := []string{modelsPath, modelsPath + "/"}
	for p := range endpoints {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	return paths
}

// generates reports whether answers of kind k are generated token by token after
// a prompt that fills the KV cache. Only those teach and use the index: the
// other kinds run on engines whose cache, if there is one, nobody reports on.
func generates(k dialect.Kind) bool {
	return k == dialect.Chat || k == dialect.Completions || k == dialect.Responses
}

// isModels reports whether path lists models, and the one that it asks for.
func isModels(path string) (id string, ok bool) {
	rest, ok := strings.CutPrefix(path, modelsPath)
	if !ok || rest != "" && rest[0] != '/' {
		return "", false
	}
	return strings.TrimPrefix(rest, "/"), true
}

// refuseMethod is the answer to a known path with another method.
func refuseMethod(method, path string) *dialect.Error {
	return &dialect.Error{
		Status: http.StatusMethodNotAllowed, Type: invalidRequest, Code: "method_not_allowed",
		Message: "Method " + clip(method) + " is not allowed for " + path + ".",
	}
}

// refusePath is the answer to a path that is none.
func refusePath(method, path string) *dialect.Error {
	return &dialect.Error{
		Status: http.StatusNotFound, Type: invalidRequest, Code: "unknown_url",
		Message: "Unknown request URL: " + clip(method) + " " + clip(path) + ".",
	}
}
