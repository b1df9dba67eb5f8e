package sim

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics is GET /metrics of one simulated process, under vLLM's names. A restart makes a new one, so counters begin at zero.
type metrics struct {
	registry *prometheus.Registry
	server   *Server

	ttft, itl, perToken, e2e, queue, inference, prefill, decode prometheus.Histogram
	promptTokens, generationTokens, maxTokens, computed         prometheus.Histogram
	iterationTokens                                             prometheus.Histogram
	success                                                     *prometheus.CounterVec
}

// Buckets of vLLM's histograms, in seconds and in tokens.
var (
	ttftBuckets = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	itlBuckets  = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	spanBuckets = []float64{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	stepBuckets = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
)

// decadeBuckets returns 1, 2, 5, 10, 20 ... up to limit.
func decadeBuckets(limit int) []float64 {
	var b []float64
	for unit := 1; unit <= limit; unit *= 10 {
		for _, m := range []int{1, 2, 5} {
			if m*unit <= limit {
				b = append(b, float64(m*unit))
			}
		}
	}
	return b
}

func newMetrics(s *Server) *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), server: s}
	reg := prometheus.WrapRegistererWith(prometheus.Labels{"model_name": s.o.Model, "engine": "0"}, m.registry)
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "vllm:" + name, Help: help, Buckets: buckets})
		reg.MustRegister(h)
		return h
	}
	m.ttft = histogram("time_to_first_token_seconds", "Histogram of time to first token in seconds.", ttftBuckets)
	m.itl = histogram("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", itlBuckets)
	m.perToken = histogram("request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request.", itlBuckets)
	m.e2e = histogram("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", spanBuckets)
	m.queue = histogram("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", spanBuckets)
	m.inference = histogram("request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", spanBuckets)
	m.prefill = histogram("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", spanBuckets)
	m.decode = histogram("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", spanBuckets)
	tokens := decadeBuckets(s.maxLen)
	m.promptTokens = histogram("request_prompt_tokens", "Number of prefill tokens processed.", tokens)
	m.generationTokens = histogram("request_generation_tokens", "Number of generation tokens processed.", tokens)
	m.maxTokens = histogram("request_params_max_tokens", "Histogram of the max_tokens request parameter.", tokens)
	m.computed = histogram("request_prefill_kv_computed_tokens", "Histogram of new KV tokens computed during prefill (excluding cached tokens).", tokens)
	m.iterationTokens = histogram("iteration_tokens_total", "Histogram of number of tokens per engine_step.", stepBuckets)
	m.success = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "vllm:request_success_total", Help: "Count of successfully processed requests.",
	}, []string{"finished_reason"})
	for _, reason := range []string{"stop", "length", "abort", "error"} {
		m.success.WithLabelValues(reason)
	}
	reg.MustRegister(m.success)
	m.registry.MustRegister(m)
	return m
}

// first is called at a sequence's first token.
func (m *metrics) first(q *sequence) {
	m.ttft.Observe((q.req.First - q.req.Arrived).Seconds())
}

// ended is called at a sequence's terminal event.
func (m *metrics) ended(q *sequence) {
	r := &q.req
	if r.Err != nil {
		m.success.WithLabelValues("abort").Inc()
		return
	}
	reason := q.answer.reason
	if reason == "" { // pooling
		reason = "stop"
	}
	m.success.WithLabelValues(reason).Inc()
	m.e2e.Observe((r.Done - r.Arrived).Seconds())
	m.queue.Observe((r.Admitted - r.Arrived).Seconds())
	m.prefill.Observe((r.First - r.Admitted).Seconds())
	m.decode.Observe((r.Done - r.First).Seconds())
	m.inference.Observe((r.Done - r.Admitted).Seconds())
	m.promptTokens.Observe(float64(r.PromptTokens))
	m.generationTokens.Observe(float64(r.OutputTokens))
	m.computed.Observe(float64(r.PromptTokens - r.Cached))
	if q.maxOut > 0 {
		m.maxTokens.Observe(float64(q.maxOut))
	}
	if r.OutputTokens > 1 {
		m.perToken.Observe((r.Done - r.First).Seconds() / float64(r.OutputTokens-1))
	}
}

// step is called at the end of each engine step.
func (m *metrics) step(st Step) {
	m.iterationTokens.Observe(float64(st.Prefill + st.Decodes))
	gap := (st.End - st.Start).Seconds()
	for range st.Decodes {
		m.itl.Observe(gap)
	}
	for _, g := range st.Resumed {
		m.itl.Observe(g.Seconds())
	}
}

// Describe implements [prometheus.Collector]. It sends nothing: the collector is unchecked.
func (m *metrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector] with what the engine counts itself.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	s := m.server
	st, started, lora := m.snapshot()
	base := prometheus.Labels{"model_name": s.o.Model, "engine": "0"}
	send := func(kind prometheus.ValueType, name, help string, v float64, labels ...string) {
		d := prometheus.NewDesc(name, help, evens(labels), base)
		ch <- prometheus.MustNewConstMetric(d, kind, v, odds(labels)...)
	}
	gauge := func(name, help string, v float64, labels ...string) {
		send(prometheus.GaugeValue, "vllm:"+name, help, v, labels...)
	}
	counter := func(name, help string, v int64, labels ...string) {
		send(prometheus.CounterValue, "vllm:"+name+"_total", help, float64(v), labels...)
	}
	gauge("num_requests_running", "Number of requests in model execution batches.", float64(st.Running))
	gauge("num_requests_waiting", "Number of requests waiting to be processed.", float64(st.Waiting))
	const byReason = "Number of waiting requests by reason."
	gauge("num_requests_waiting_by_reason", byReason, float64(st.Waiting), "reason", "capacity")
	gauge("num_requests_waiting_by_reason", byReason, 0, "reason", "deferred")
	gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", st.KVUsage())
	for _, state := range []string{"awake", "weights_offloaded", "discard_all"} {
		v := 0.0
		if state == "awake" {
			v = 1
		}
		gauge("engine_sleep_state", "Engine sleep state.", v, "sleep_state", state)
	}
	counter("num_preemptions", "Cumulative number of preemption from the engine.", st.Preemptions)
	counter("prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", st.PrefixQueries)
	counter("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", st.PrefixHits)
	counter("external_prefix_cache_queries", "External prefix cache queries, in terms of number of queried tokens.", 0)
	counter("external_prefix_cache_hits", "External prefix cache hits, in terms of number of cached tokens.", 0)
	counter("prompt_tokens", "Number of prefill tokens processed.", st.PromptTokens)
	counter("prompt_tokens_cached", "Number of cached prompt tokens (local + external).", st.CachedTokens)
	counter("prompt_tokens_recomputed", "Number of cached tokens recomputed for forward pass.", st.RecomputedTokens)
	const bySource = "Number of prompt tokens by source."
	counter("prompt_tokens_by_source", bySource, st.PromptTokens-st.CachedTokens, "source", "local_compute")
	counter("prompt_tokens_by_source", bySource, st.CachedTokens, "source", "local_cache_hit")
	counter("prompt_tokens_by_source", bySource, 0, "source", "external_kv_transfer")
	counter("generation_tokens", "Number of generation tokens processed.", st.GenerationTokens)

	m.collectInfo(ch, st, started, lora)
}

// collectInfo sends the metrics without the common labels.
func (m *metrics) collectInfo(ch chan<- prometheus.Metric, st Stats, started time.Time, lora loraState) {
	info := func(name, help string, v float64, labels ...string) {
		d := prometheus.NewDesc(name, help, evens(labels), nil)
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, odds(labels)...)
	}
	bt := m.server.engine.BlockTokens()
	info("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", 1,
		"block_size", strconv.Itoa(bt), "cache_dtype", "auto", "calculate_kv_scales", "False", "cpu_offload_gb", "0",
		"enable_prefix_caching", pythonBool(!m.server.o.Engine.CacheOff), "engine", "0", "gpu_memory_utilization", "0.92",
		"is_attention_free", "False", "kv_cache_size_tokens", strconv.Itoa(bt*st.TotalBlocks), "num_cpu_blocks", "None",
		"num_gpu_blocks", strconv.Itoa(st.TotalBlocks), "num_gpu_blocks_override", "None", "prefix_caching_hash_algo", "sha256",
		"sliding_window", "None", "swap_space", "4")
	info("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", float64(started.UnixMilli())/1e3)
	if len(m.server.o.Adapters) > 0 {
		info("vllm:lora_requests_info", "Running stats on lora requests.", float64(time.Now().UnixMilli())/1e3,
			"max_lora", strconv.Itoa(len(m.server.o.Adapters)), "running_lora_adapters", lora.running, "waiting_lora_adapters", lora.waiting)
	}
}

// loraState lists the adapters of running and waiting requests, separated by commas.
type loraState struct{ running, waiting string }

// snapshot brings the engine up to date and reads it.
func (m *metrics) snapshot() (Stats, time.Time, loraState) {
	s := m.server
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advanceLocked(time.Now())
	var running, waiting []string
	for _, q := range s.sequences {
		switch {
		case q.adapter == "":
		case q.req.phase == queued:
			waiting = append(waiting, q.adapter)
		default:
			running = append(running, q.adapter)
		}
	}
	return s.engine.Stats(), s.started, loraState{running: names(running), waiting: names(waiting)}
}

func names(list []string) string {
	slices.Sort(list)
	return strings.Join(slices.Compact(list), ",")
}

func evens(list []string) (out []string) {
	for i := 0; i < len(list); i += 2 {
		out = append(out, list[i])
	}
	return out
}

func odds(list []string) (out []string) {
	for i := 1; i < len(list); i += 2 {
		out = append(out, list[i])
	}
	return out
}

func pythonBool(b bool) string {
	if b {
		return "True"
	}
	return "False"
}

// scrape serves GET /metrics.
func (s *Server) scrape(c *call) error {
	if err := s.delayProbe(c); err != nil {
		return err
	}
	s.mu.Lock()
	m := s.metrics
	s.mu.Unlock()
	promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}).ServeHTTP(c.w, c.r)
	return nil
}
