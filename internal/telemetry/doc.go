// Package telemetry holds what the gateway tells Prometheus about itself.
//
// Reading order: doc.go (names and labels), metrics.go (the [Metrics] and what
// feeds them), labels.go (why a client cannot create series), collect.go (state
// that is read when somebody scrapes), build.go (how a metric is made and
// documented at once). The list for operators, docs/metrics.md, is written from
// the same declarations.
//
// Counters live as long as the process: a reload of the configuration adds
// series and never resets one. Three kinds of cached tokens are kept apart, so
// that a low hit rate can be laid at the right door:
//
//   - available: the longest prefix that any instance was believed to hold. Low
//     means that the workload repeats little.
//   - predicted: what the chosen instance was believed to hold. Far below
//     available means that routing preferred an idle instance to a warm one.
//   - actual: what engines reported. Far below predicted means that the index
//     believes in blocks that are gone.
//
// The package imports nothing of the module and starts no goroutine.
package telemetry
