// Package bench compares routing policies: in virtual time over simulated
// engines, and over HTTP against running ones. It also measures what the
// gateway itself costs.
//
// Reading order:
//
//   - request.go: what a request is when nobody needs its text ([Segment],
//     [Request]), and where requests come from ([Source], [Workload]); rag.go,
//     chat.go and trace.go are the workloads, draw.go what they draw from.
//   - run.go: [Run], one policy over one workload in virtual time, an event
//     loop over engines; gateway.go: the gateway's part of it, the same life
//     cycle as in package proxy; event.go: what may happen to engines meanwhile.
//   - record.go, ceiling.go, imbalance.go, stats.go: what is measured, and how.
//   - result.go: the numbers of one policy and their stable JSON; table.go: the
//     same for people.
//   - text.go: documents and questions made from passages that ship with the
//     program; live.go: [Load], a list of requests sent over HTTP.
//   - overhead.go: what the gateway adds to a request; process.go: what it
//     takes of the machine; stub.go: the instant engine behind it.
//
// Everything but live.go and the overhead files is deterministic: the same
// settings and seed give the same numbers.
package bench
