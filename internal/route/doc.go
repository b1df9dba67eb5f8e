// Package route decides which instance gets a request. It is pure: no clock, no network, no goroutine,
// no logger; values in, a value out, so the same code runs behind a gateway and in a replay of its log.
//
// Reading order:
//
//   - request.go: what a decision is made of (Request, Candidate) and what it is (Decision, Reason).
//   - speed.go: how fast engines are before anything has been measured.
//   - ledger.go, learn.go, scrape.go: what one instance has been given and not yet finished, and what that teaches about its speed.
//   - cost.go: the default policy, a price in seconds for each candidate.
//   - spread.go, hash.go, session.go: the policies that it is compared with and that some pools want.
//   - least.go, gated.go, weighted.go, backlog.go: the published rules of other routers, for comparison.
//   - hall.go: the room where requests wait that are held back by a decision.
//   - virtual.go: a fleet in predictions only, for policies that run beside the live one.
//   - adapt.go: when to let one of them take its place.
//   - explain.go: why a decision was what it was.
//   - config.go: settings, their sources, and New.
//
// Two rules hold for each policy: the order of the candidates never matters, and an excluded candidate is never chosen.
package route
