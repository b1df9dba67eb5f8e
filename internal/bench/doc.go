// Package bench compares routing policies: in virtual time over simulated
// engines, and over HTTP against running ones. It also measures what the
// gateway itself costs.
//
// Reading order:
//
//   - request.go: what a request is when nobody needs its text ([Segment],
//     [Request]), and where requests come from ([Source], [Workload]). The
//     workloads are rag.go, groups.go, chat.go, agents.go, mixed.go, trace.go
//     and conversations.go; draw.go is what they draw from, spec.go how they are
//     named on a command line.
//   - run.go: [Run], one policy over one workload in virtual time, an event
//     loop over engines; gateway.go: the gateway's part of it, the same life
//     cycle as in package proxy; replicas.go: several gateways that tell each
//     other late; events.go: what may happen to engines meanwhile.
//   - record.go, ceiling.go, imbalance.go, stats.go, batches.go, means.go: what
//     is measured, and how.
//   - experiment.go: cells of policies and seeds; sweep.go: up to the knee;
//     suite.go: the standard matrix; aws.go: the published table beside ours.
//   - result.go and report.go: the numbers and their stable JSON; table.go: the
//     same for people; html.go, html_plot.go, html_report.go: as one page.
//   - replay.go, replay_read.go, replay_time.go: what policies would have saved
//     on a log.
//   - text.go, textcalls.go: documents and questions made from passages that
//     ship with the program; live.go: [Load], a list of requests sent over
//     HTTP; live_run.go and its siblings: [Live], targets compared under one
//     load.
//   - overhead.go: what the gateway adds to a request; process.go: what it
//     takes of the machine; probe.go and stub.go: both ends of it.
//
// Everything but the live and the overhead files is deterministic: the same
// settings and seed give the same numbers.
package bench
