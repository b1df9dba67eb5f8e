// Package proxy is the data plane: the [http.Handler] that takes requests of the
// OpenAI family and gets each an answer from the instance that is best placed to
// give it.
//
// The life of a request: it is admitted and its body read, within limits
// (body.go); decoded for what routing needs, and written as canonical prompt and
// chain (exchange.go); given a seat (place.go: match, choice, acquisition and the
// note in the index are one step under the pool's lock; held requests wait there
// and are offered each place that comes free); sent, the client's own bytes but
// for edits that touch nothing else (attempt.go); and answered: as events
// (stream.go, with what is held before the commit in commit.go), whole, or as
// other bytes (answer.go). At its end the lease goes back, the record is written
// and what the answer has taught is learned (conclude.go, learn.go).
//
// Until the first content has gone to the client, a fault of the instance is
// mended on another one, within bounds (serve in exchange.go, budget.go). After
// it nothing is ever sent a second time. fault.go says what clients are told.
//
// Reading order: config.go, gateway.go, endpoint.go, exchange.go, body.go,
// place.go, attempt.go, stream.go, commit.go, answer.go, conclude.go, learn.go,
// client.go (the only writer to the client), fault.go, header.go, explain.go,
// record.go, models.go, session.go, thread.go, budget.go, roster.go; shadow.go
// (policies that only predict) stands beside all of it.
//
// # What is decided here
//
//   - A body with Content-Encoding gzip is unpacked, within the same limit, and
//     goes on plain, because engines do not unpack. Other encodings are 415.
//   - A missing Content-Type passes; one that is not JSON is 400.
//   - A query string is not passed on: engines read none, and clients put keys
//     into it.
//   - Embeddings, rerank, score and tokenize are placed by load alone and neither
//     use nor teach the index.
//   - Events that come before the first content are bounded; a stream that
//     exceeds the bounds is committed early.
//   - After a heartbeat the status is 200, and what would have been an error
//     answer is an error event.
//
// Lock order: Gateway.mu, desk.mu or Shadow.mu (never both), then those of fleet
// and index. budget, roster, threads and lessons are taken last. Gateway.Watch is
// called under the fleet's lock, which nothing here takes while it holds another.
package proxy
