// Package fleet keeps the instances: who they are, whether they are well, what
// they have been given and not finished, and who of them may be chosen now.
//
// Reading order:
//
//   - config.go, validate.go: pools, instances, and how they are watched.
//   - fleet.go: the Fleet, its Run and Apply.
//   - reconcile.go: from configuration, discovery and /v1/models to instances
//     and pools.
//   - source.go, file.go, dns.go: where instances come from besides the
//     configuration.
//   - instance.go: one instance's state; breaker.go, limit.go: parts of it.
//   - pool.go, lease.go: choosing and giving back.
//   - probe.go, models.go: health and served models.
//   - scrape.go, expo.go, engine.go: what engines say about themselves.
//   - view.go: the state of everything, for people and metrics.
//
// Lock order: Fleet.mu, then Instance.mu. Nothing is sent, read or called back
// under Instance.mu; Deps.Watch is called under Fleet.mu.
package fleet
