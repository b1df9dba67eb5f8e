// Package sim simulates a fleet of vLLM-like engines: the oracle that routing is measured against.
//
// It keeps its own block cache, its own chat template and its own tokenizer, and shares no code with the gateway's index or
// routing, so that a mistake there cannot be confirmed here.
//
// Reading order:
//
//   - profile.go: what one engine step costs, per model and GPU ([Profile]).
//   - cache.go: the block pool: chained hashes, shared references, LRU free list.
//   - request.go: [Request], what goes into an engine and what is measured on it.
//   - engine.go: [Engine], its calls and its clock; schedule.go: what enters a step; step.go: what leaves it.
//   - token.go: the tokenizer ([AppendTokens], [AppendText], [BlockChain]); answer.go: the deterministic answers.
//   - server.go: [Server], one engine in wall time behind vLLM's HTTP API; loop.go: how its time runs; call.go: one HTTP request and its
//     sequences; stream.go and wire.go: what goes over the wire; render.go: the chat template; the files api_*.go, one for each family
//     of routes; metrics.go: GET /metrics; faults.go: what a test can break.
//   - fleet.go: [Fleet], several servers on their own listeners.
//
// The engine is a single-threaded state machine in virtual time and is deterministic: the same calls give the same events. It
// never reads a clock. Only [Server] and [Fleet] know wall time, and neither starts a goroutine outside of its Run.
package sim
