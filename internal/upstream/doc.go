// Package upstream sends requests to instances. For each instance it gives one
// [http.RoundTripper] over a shared, tuned transport: it rewrites the URL to
// the instance's base, lets only allowlisted headers through in both
// directions, adds the instance's own credential, never sends a request twice
// by itself, and turns every failure into a [Fault] of one fault class.
//
// Reading order: config.go (settings), upstream.go (the round trip), header.go
// (the two allowlists), fault.go (classes and their rules), retryafter.go,
// body.go (the response body: idle timeout and redaction), secret.go and
// redact.go (nothing secret leaves through a log, an error or an answer).
package upstream
