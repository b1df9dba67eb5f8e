package telemetry

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Sources are read each time somebody scrapes. The composition root sets them,
// so that this package need not know the fleet or the index. A nil func is
// skipped.
type Sources struct {
	// Instances yields each instance once for each of its models.
	Instances func(yield func(Instance) bool)
	// Index returns the state of the index.
	Index func() Index
	// Held returns how many requests wait for room.
	Held func() int
	// Policies yields each model with the name of its live policy.
	Policies func(yield func(model, policy string) bool)
}

// Instance is the state of one instance as the gateway sees it.
type Instance struct {
	Name, Model string
	State       string // ready, unready, draining, ...
	Breaker     string // closed, open or half_open

	InFlight       int     // leases out
	Streaming      int     // past their first token
	QueuedTokens   int     // uncached prompt tokens sent and not past first token
	PrefillSeconds float64 // learned seconds per prompt token
	DecodeSeconds  float64 // learned seconds per decode step

	CapacityBlocks float64 // learned or told size of the cache; zero: not known yet
	ResidentBlocks int64   // blocks believed to be there
	KnownBlocks    int64   // with those believed to be evicted
	Flushes        uint64  // restarts and flushes noticed
}

// Index is the state of the index.
type Index struct {
	Bytes, LimitBytes int64
	Blocks, Runs      int64
	Forgotten         uint64 // runs dropped to stay below the limit
}

// collector turns Sources into metrics at scrape time.
type collector struct {
	of *Metrics

	running, state, breaker                         *prometheus.Desc
	inFlight, streaming, queued                     *prometheus.Desc
	prefill, decode                                 *prometheus.Desc
	capacity, resident, known, flushes              *prometheus.Desc
	held, policy                                    *prometheus.Desc
	indexBytes, indexLimit, blocks, runs, forgotten *prometheus.Desc
}

func newCollector(b *builder, m *Metrics) *collector {
	c := &collector{of: m}
	c.running = b.desc("gauge", "in_flight", "Requests between their first and their last byte.", "model")
	of := []string{"model", "instance"}
	c.state = b.desc("gauge", "instance_state", "1 for the state that the instance is in.", "model", "instance", "state")
	c.breaker = b.desc("gauge", "instance_breaker_state", "1 for the state of the instance's circuit breaker: `closed`, `open` or `half_open`.", "model", "instance", "state")
	c.inFlight = b.desc("gauge", "instance_in_flight", "Requests sent to the instance and not ended.", of...)
	c.streaming = b.desc("gauge", "instance_streaming", "Those of them that are past their first token.", of...)
	c.queued = b.desc("gauge", "instance_queued_tokens", "Uncached prompt tokens sent to the instance and not past their first token.", of...)
	c.prefill = b.desc("gauge", "instance_prefill_seconds_per_token", "Learned speed of prefill.", of...)
	c.decode = b.desc("gauge", "instance_decode_step_seconds", "Learned time of one decode step at the present load.", of...)
	c.capacity = b.desc("gauge", "instance_capacity_blocks", "Learned (or told) size of the instance's KV cache (theta), in blocks of `cache.block_bytes`: what was used fewer blocks ago is believed to be there. 0 while unknown.", of...)
	c.resident = b.desc("gauge", "instance_resident_blocks", "Blocks that the instance is believed to hold.", of...)
	c.known = b.desc("gauge", "instance_known_blocks", "Those and the ones believed to be evicted, kept for learning.", of...)
	c.flushes = b.desc("counter", "instance_flushes_total", "Restarts and flushes of the instance's cache that were noticed.", of...)
	c.held = b.desc("gauge", "queue_length", "Requests held because no instance had room.")
	c.policy = b.desc("gauge", "live_policy", "1 for the policy that routes the model's requests.", "model", "policy")
	c.indexBytes = b.desc("gauge", "index_bytes", "Memory that the index uses.")
	c.indexLimit = b.desc("gauge", "index_limit_bytes", "Memory that the index may use (`cache.memory`).")
	c.blocks = b.desc("gauge", "index_blocks", "Blocks in the index, each counted once however many instances hold it.")
	c.runs = b.desc("gauge", "index_runs", "Runs of blocks in the index.")
	c.forgotten = b.desc("counter", "index_forgotten_runs_total", "Runs of blocks dropped to stay below `cache.memory`.")
	return c
}

// Describe implements [prometheus.Collector].
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.running, c.state, c.breaker, c.inFlight, c.streaming, c.queued, c.prefill, c.decode, c.capacity,
		c.resident, c.known, c.flushes, c.held, c.policy, c.indexBytes, c.indexLimit, c.blocks, c.runs, c.forgotten,
	} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for model, n := range c.of.inFlightByLabel() {
		gauge(c.running, float64(n), model)
	}
	src := c.of.sources.Load()
	if src == nil {
		return
	}
	if src.Instances != nil {
		c.collectInstances(ch, src.Instances)
	}
	if src.Held != nil {
		gauge(c.held, float64(src.Held()))
	}
	if src.Policies != nil {
		c.collectPolicies(ch, src.Policies)
	}
	if src.Index != nil {
		x := src.Index()
		gauge(c.indexBytes, float64(x.Bytes))
		gauge(c.indexLimit, float64(x.LimitBytes))
		gauge(c.blocks, float64(x.Blocks))
		gauge(c.runs, float64(x.Runs))
		ch <- prometheus.MustNewConstMetric(c.forgotten, prometheus.CounterValue, float64(x.Forgotten))
	}
}

// collectPolicies skips models that have no series of their own, and what would
// be a second policy of one model.
func (c *collector) collectPolicies(ch chan<- prometheus.Metric, policies func(func(model, policy string) bool)) {
	seen := map[string]bool{Other: true}
	for model, policy := range policies {
		if s := c.of.model(model); !seen[s.label] {
			seen[s.label] = true
			ch <- prometheus.MustNewConstMetric(c.policy, prometheus.GaugeValue, 1, s.label, c.of.policies.label(policy))
		}
	}
}

// collectInstances skips an instance that it has seen: two series with the same
// labels would fail the whole scrape.
func (c *collector) collectInstances(ch chan<- prometheus.Metric, instances func(func(Instance) bool)) {
	type key struct{ model, name string }
	seen := make(map[key]bool)
	for in := range instances {
		in.Model, in.Name = strings.ToValidUTF8(in.Model, "\uFFFD"), strings.ToValidUTF8(in.Name, "\uFFFD")
		k := key{in.Model, in.Name}
		if seen[k] || len(seen) >= maxInstances {
			continue
		}
		seen[k] = true
		for _, v := range []struct {
			desc  *prometheus.Desc
			value float64
		}{
			{c.inFlight, float64(in.InFlight)},
			{c.streaming, float64(in.Streaming)},
			{c.queued, float64(in.QueuedTokens)},
			{c.prefill, in.PrefillSeconds},
			{c.decode, in.DecodeSeconds},
			{c.capacity, in.CapacityBlocks},
			{c.resident, float64(in.ResidentBlocks)},
			{c.known, float64(in.KnownBlocks)},
		} {
			ch <- prometheus.MustNewConstMetric(v.desc, prometheus.GaugeValue, v.value, in.Model, in.Name)
		}
		ch <- prometheus.MustNewConstMetric(c.flushes, prometheus.CounterValue, float64(in.Flushes), in.Model, in.Name)
		ch <- prometheus.MustNewConstMetric(c.state, prometheus.GaugeValue, 1, in.Model, in.Name, in.State)
		for _, state := range []string{"closed", "open", "half_open"} {
			on := 0.0
			if state == in.Breaker {
				on = 1
			}
			ch <- prometheus.MustNewConstMetric(c.breaker, prometheus.GaugeValue, on, in.Model, in.Name, state)
		}
	}
}

// Read sets where the state comes from that is read at each scrape.
func (m *Metrics) Read(s Sources) { m.sources.Store(&s) }
