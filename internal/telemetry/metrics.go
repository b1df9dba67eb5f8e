package telemetry

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics is every metric of the gateway. All methods may be called from any
// goroutine.
type Metrics struct {
	docs []Doc // set once

	// What happened to requests.
	requests   *prometheus.CounterVec // model, kind, code, class
	clientGone *prometheus.CounterVec // model
	retries    *prometheus.CounterVec // class
	decisions  *prometheus.CounterVec // policy, reason
	unknown    *prometheus.CounterVec // model
	short      *prometheus.CounterVec // model

	// How long it took.
	ttft, itl, e2e, overhead, waited *prometheus.HistogramVec // model

	// How many tokens it was.
	prompt, reported, cached, predicted, available, output *prometheus.CounterVec // model

	// The same by instance.
	instRequests                            *prometheus.CounterVec // model, instance, class
	instReported, instCached, instPredicted *prometheus.CounterVec // model, instance

	// What would have been.
	shadowTTFT                   *prometheus.HistogramVec // model, policy
	shadowPrompt, shadowCached   *prometheus.CounterVec   // model, policy
	shadowSkipped, policyChanges *prometheus.CounterVec

	// What the process did.
	reloads   *prometheus.CounterVec // result
	reloaded  *prometheus.GaugeVec
	snapshots *prometheus.CounterVec // operation, result

	kinds, classes, policies, reasons *bounded

	sources atomic.Pointer[Sources]            // read by the collector
	models  atomic.Pointer[map[string]*series] // immutable; replaced under growing
	growing sync.Mutex                         // one Know at a time

	mu       sync.Mutex     // guards below
	inFlight map[string]int // by the name given to Started; no zeros

	fleet     sync.RWMutex   // guards below, and keeps their series from being written while they are dropped
	instances map[string]int // how many instances of that name are here; no zeros
}

// series is what belongs to one model, looked up once and not per token.
type series struct {
	label                                                  string
	ttft, itl, e2e, overhead, waited                       prometheus.Observer
	prompt, reported, cached, predicted, available, output prometheus.Counter
	unknown, short, clientGone                             prometheus.Counter
}

// Request is what one ended request adds. The zero value of a field adds
// nothing, except where the comment says otherwise.
type Request struct {
	Model    string // as the client named it: the same as in Started
	Kind     string // chat, completions, ...
	Class    string // served, or the fault class of the last attempt
	Code     int    // HTTP status that the client saw, 499 when it had left
	Instance string // the last one asked; empty: nothing was sent

	TTFT     time.Duration // request read until first content; zero: there was none
	E2E      time.Duration // request read until last byte
	Overhead time.Duration // the gateway's own work until dispatch, without Waited
	Waited   time.Duration // held for lack of room

	PromptTokens    int  // as reported, else estimated
	OutputTokens    int  // as reported, else counted
	CachedTokens    int  // as reported; meaningful when CachedKnown
	CachedKnown     bool // the engine said how much was cached, be it nothing
	PredictedTokens int  // match of the chosen instance
	AvailableTokens int  // longest match of any instance

	UnknownParts int  // fields of the prompt that were passed through not understood
	ShortPrompt  bool // shorter than one block: can never match
	ClientGone   bool // the client left before the end
}

// Buckets in seconds. TTFT spans a cached prefix on an idle instance (20 ms) to
// a saturated queue (2 min); gaps between tokens span small models to preempted
// requests; the gateway's own work is counted in tens of microseconds.
var (
	ttftBuckets     = []float64{.01, .025, .05, .1, .2, .35, .5, .75, 1, 1.5, 2.5, 5, 10, 20, 40, 80, 120}
	itlBuckets      = []float64{.002, .005, .01, .015, .02, .03, .04, .06, .08, .1, .15, .25, .5, 1, 2.5, 10}
	e2eBuckets      = []float64{.05, .1, .25, .5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600, 1800}
	heldBuckets     = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2, 5, 10, 30}
	overheadBuckets = []float64{.00005, .0001, .0002, .0004, .0008, .0015, .003, .006, .012, .025, .05, .1, .5, 1}
)

// New registers all metrics with reg. It panics when reg has some of them
// already, which is a mistake of the program.
func New(reg prometheus.Registerer) *Metrics {
	b := &builder{reg: reg}
	m := &Metrics{
		kinds: newBounded(), classes: newBounded(), policies: newBounded(),
		reasons: newBounded(), inFlight: make(map[string]int), instances: make(map[string]int),
	}
	m.registerRequests(b)
	m.registerTokens(b)
	m.registerShadows(b)
	m.registerProcess(b)
	b.reg.MustRegister(newCollector(b, m))
	m.docs = b.docs
	m.models.Store(&map[string]*series{Other: m.newSeries(Other)})
	return m
}

func (m *Metrics) registerRequests(b *builder) {
	m.requests = b.counter("requests_total", "Requests ended, by the status that the client saw and by outcome: `served` or a fault class.", "model", "kind", "code", "class")
	m.clientGone = b.counter("client_gone_total", "Requests whose client left before the end.", "model")
	m.retries = b.counter("retries_total", "Further attempts on another instance, by the fault class that caused them.", "class")
	m.decisions = b.counter("decisions_total", "Choices of an instance, by policy and by the rule that decided.", "policy", "reason")
	m.unknown = b.counter("unknown_parts_total", "Parts of prompts that were passed through without being understood, so that routing did not see them.", "model")
	m.short = b.counter("short_prompts_total", "Prompts shorter than one block, which can never match. Many of them mean that `cache.block_bytes` is too large.", "model")
	m.ttft = b.histogram("ttft_seconds", "Time to first token: request read until the first chunk that carries content.", ttftBuckets, "model")
	m.itl = b.histogram("itl_seconds", "Inter-token latency: gap between two content chunks of a stream.", itlBuckets, "model")
	m.e2e = b.histogram("e2e_seconds", "Request read until the last byte of the answer.", e2eBuckets, "model")
	m.overhead = b.histogram("overhead_seconds", "The gateway's own work before a request is sent on: reading the prompt, matching and choosing; without time held.", overheadBuckets, "model")
	m.waited = b.histogram("held_seconds", "Time that a request was held because no instance had room.", heldBuckets, "model")
}

func (m *Metrics) registerTokens(b *builder) {
	m.prompt = b.counter("prompt_tokens_total", "Prompt tokens, as reported by engines, else estimated.", "model")
	m.reported = b.counter("prompt_tokens_reported_total", "Prompt tokens of the requests whose engine reported how many were cached: the denominator of the actual hit rate.", "model")
	m.cached = b.counter("cached_tokens_total", "Prompt tokens that engines reported as cached (actual).", "model")
	m.predicted = b.counter("cached_predicted_tokens_total", "Prompt tokens that the chosen instance was believed to hold (predicted).", "model")
	m.available = b.counter("cached_available_tokens_total", "Prompt tokens that the best instance was believed to hold, chosen or not (available).", "model")
	m.output = b.counter("output_tokens_total", "Generated tokens, as reported by engines, else counted.", "model")
	m.instRequests = b.counter("instance_requests_total", "Requests ended, by the instance that was asked last.", "model", "instance", "class")
	m.instReported = b.counter("instance_prompt_tokens_reported_total", "As `warmroute_prompt_tokens_reported_total`, by instance.", "model", "instance")
	m.instCached = b.counter("instance_cached_tokens_total", "As `warmroute_cached_tokens_total`, by instance.", "model", "instance")
	m.instPredicted = b.counter("instance_cached_predicted_tokens_total", "As `warmroute_cached_predicted_tokens_total`, by instance, over the same requests as the reported ones.", "model", "instance")
}

func (m *Metrics) registerShadows(b *builder) {
	of := []string{"model", "policy"}
	m.shadowTTFT = b.histogram("shadow_ttft_seconds", "Time to first token as predicted under a policy of `routing.shadow`, and under the live one by the same model: compare these with each other, not with `warmroute_ttft_seconds`.", ttftBuckets, of...)
	m.shadowPrompt = b.counter("shadow_prompt_tokens_total", "Prompt tokens of the requests that were predicted under the policy.", of...)
	m.shadowCached = b.counter("shadow_cached_tokens_total", "Of these, the tokens that would have been cached where the policy would have sent them.", of...)
	m.shadowSkipped = b.counter("shadow_skipped_total", "Requests that no shadow policy saw because they came too fast.", "model")
	m.policyChanges = b.counter("policy_changes_total", "Changes of the live policy by `routing.adaptive`: `switched` to the policy, or `reverted` to it. The log has the reasons.", "model", "policy", "kind")
}

func (m *Metrics) registerProcess(b *builder) {
	build := b.gauge("build_info", "Always 1; the labels say which build this is.", "version", "go_version")
	m.reloads = b.counter("config_reloads_total", "Reloads of the configuration by result: applied, unchanged or refused.", "result")
	m.reloaded = b.gauge("config_last_reload_success_timestamp_seconds", "When the configuration in force was read, in Unix time.")
	m.snapshots = b.counter("index_snapshots_total", "Loads and saves of the index snapshot by result: ok, none or error.", "operation", "result")
	version, goVersion := Build()
	build.WithLabelValues(version, goVersion).Set(1)
}

func (m *Metrics) newSeries(model string) *series {
	return &series{
		label: model,
		ttft:  m.ttft.WithLabelValues(model), itl: m.itl.WithLabelValues(model), e2e: m.e2e.WithLabelValues(model),
		overhead: m.overhead.WithLabelValues(model), waited: m.waited.WithLabelValues(model),
		prompt: m.prompt.WithLabelValues(model), reported: m.reported.WithLabelValues(model),
		cached: m.cached.WithLabelValues(model), predicted: m.predicted.WithLabelValues(model),
		available: m.available.WithLabelValues(model), output: m.output.WithLabelValues(model),
		unknown: m.unknown.WithLabelValues(model), short: m.short.WithLabelValues(model),
		clientGone: m.clientGone.WithLabelValues(model),
	}
}

// Know gives a model series of its own, which its aliases share; every other
// name is [Other]. A model stays known for good: its counters must not jump
// when the configuration drops it and takes it back.
func (m *Metrics) Know(model string, aliases ...string) {
	m.growing.Lock()
	defer m.growing.Unlock()
	grown := maps.Clone(*m.models.Load())
	if model == "" || len(grown)+1+len(aliases) > maxModels {
		return
	}
	label := strings.ToValidUTF8(model, "\uFFFD")
	s := grown[model]
	if s == nil || s.label != label { // new, or the alias of another until now
		s = m.newSeries(label)
	}
	grown[model] = s
	for _, alias := range aliases {
		grown[alias] = s
	}
	m.models.Store(&grown)
}

// Knows reports whether a name has series of its own.
func (m *Metrics) Knows(model string) bool {
	_, ok := (*m.models.Load())[model]
	return ok
}

func (m *Metrics) model(name string) *series {
	models := *m.models.Load()
	if s, ok := models[name]; ok {
		return s
	}
	return models[Other]
}

// Started counts a request in. [Metrics.Ended] with the same model counts it
// out.
func (m *Metrics) Started(model string) { m.running(model, 1) }

// running keeps the count by name and not by label: a name may become known
// while its request runs, and must leave the series that it is in.
func (m *Metrics) running(model string, d int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.inFlight[model] += d; m.inFlight[model] == 0 {
		delete(m.inFlight, model)
	}
}

// inFlightByLabel is what the in_flight gauge shows: zeros for the idle models.
func (m *Metrics) inFlightByLabel() map[string]int {
	byLabel := make(map[string]int)
	for _, s := range *m.models.Load() {
		byLabel[s.label] = 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, n := range m.inFlight {
		byLabel[m.model(name).label] += n
	}
	return byLabel
}

// Gap records the time between two content chunks of a stream.
func (m *Metrics) Gap(model string, gap time.Duration) { m.model(model).itl.Observe(gap.Seconds()) }

// Decided counts one choice of an instance.
func (m *Metrics) Decided(policy, reason string) {
	m.decisions.WithLabelValues(m.policies.label(policy), m.reasons.label(reason)).Inc()
}

// Predicted adds one request as it would have gone under a policy.
func (m *Metrics) Predicted(model, policy string, ttft time.Duration, prompt, cached int) {
	model, policy = m.model(model).label, m.policies.label(policy)
	m.shadowTTFT.WithLabelValues(model, policy).Observe(ttft.Seconds())
	m.shadowPrompt.WithLabelValues(model, policy).Add(count(prompt))
	m.shadowCached.WithLabelValues(model, policy).Add(count(cached))
}

// Unpredicted counts a request that no shadow policy saw.
func (m *Metrics) Unpredicted(model string) {
	m.shadowSkipped.WithLabelValues(m.model(model).label).Inc()
}

// PolicyChanged counts a change of a model's live policy.
func (m *Metrics) PolicyChanged(model, policy, kind string) {
	m.policyChanges.WithLabelValues(m.model(model).label, m.policies.label(policy), kind).Inc()
}

// Retried counts a further attempt after a fault of this class.
func (m *Metrics) Retried(class string) {
	m.retries.WithLabelValues(m.classes.label(class)).Inc()
}

// Ended counts a request out and adds what it was.
func (m *Metrics) Ended(r Request) {
	s := m.model(r.Model)
	m.running(r.Model, -1)
	class := m.classes.label(r.Class)
	m.requests.WithLabelValues(s.label, m.kinds.label(r.Kind), codeLabel(r.Code), class).Inc()
	observe(s.ttft, r.TTFT)
	observe(s.e2e, r.E2E)
	observe(s.overhead, r.Overhead)
	observe(s.waited, r.Waited)
	if r.ClientGone {
		s.clientGone.Inc()
	}
	if r.ShortPrompt {
		s.short.Inc()
	}
	s.unknown.Add(count(r.UnknownParts))
	s.prompt.Add(count(r.PromptTokens))
	s.output.Add(count(r.OutputTokens))
	s.predicted.Add(count(r.PredictedTokens))
	s.available.Add(count(r.AvailableTokens))
	if r.CachedKnown {
		s.reported.Add(count(r.PromptTokens))
		s.cached.Add(count(r.CachedTokens))
	}
	if r.Instance != "" {
		m.endedOn(s.label, class, r)
	}
}

func (m *Metrics) endedOn(model, class string, r Request) {
	m.fleet.RLock()
	defer m.fleet.RUnlock()
	instance := Other
	if m.instances[r.Instance] > 0 {
		instance = strings.ToValidUTF8(r.Instance, "\uFFFD")
	}
	m.instRequests.WithLabelValues(model, instance, class).Inc()
	if !r.CachedKnown {
		return
	}
	m.instReported.WithLabelValues(model, instance).Add(count(r.PromptTokens))
	m.instCached.WithLabelValues(model, instance).Add(count(r.CachedTokens))
	m.instPredicted.WithLabelValues(model, instance).Add(count(r.PredictedTokens))
}

// Joined gives an instance series of its own. Requests that end on any other
// are those of [Other].
func (m *Metrics) Joined(instance string) {
	m.fleet.Lock()
	defer m.fleet.Unlock()
	if len(m.instances) < maxInstances || m.instances[instance] > 0 {
		m.instances[instance]++
	}
}

// Left drops the series of an instance, unless another one has its name by now,
// so that a fleet whose addresses change all day does not grow the registry. The
// totals by model keep what it had counted, and a request that ends after its
// instance has left counts for [Other] and brings no series back.
func (m *Metrics) Left(instance string) {
	m.fleet.Lock()
	defer m.fleet.Unlock()
	if m.instances[instance]--; m.instances[instance] > 0 {
		return
	}
	delete(m.instances, instance)
	label := prometheus.Labels{"instance": strings.ToValidUTF8(instance, "\uFFFD")}
	for _, v := range []*prometheus.CounterVec{m.instRequests, m.instReported, m.instCached, m.instPredicted} {
		v.DeletePartialMatch(label)
	}
}

// Reloaded counts a reload of the configuration: applied, unchanged or refused.
// A reload that was not refused sets the time of the configuration in force.
func (m *Metrics) Reloaded(result string, now time.Time) {
	m.reloads.WithLabelValues(result).Inc()
	if result != "refused" {
		m.ConfigRead(now)
	}
}

// ConfigRead sets the time at which the configuration in force was read.
func (m *Metrics) ConfigRead(now time.Time) {
	m.reloaded.WithLabelValues().Set(float64(now.UnixMilli()) / 1e3)
}

// Snapshot counts a load or a save of the index snapshot by its result: ok,
// none (there was nothing to load) or error.
func (m *Metrics) Snapshot(operation, result string) {
	m.snapshots.WithLabelValues(operation, result).Inc()
}

func observe(o prometheus.Observer, d time.Duration) {
	if d > 0 {
		o.Observe(d.Seconds())
	}
}

// count guards counters, which panic on negative numbers, against engines that
// report some.
func count(n int) float64 { return float64(max(n, 0)) }
