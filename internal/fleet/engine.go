package fleet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// Facts is what an engine said about itself in one scrape.
type Facts struct {
	// Engine is the kind that the metrics belong to.
	Engine Engine `json:"engine"`
	// Running and Waiting count requests in the batch and before it.
	Running int `json:"running"`
	Waiting int `json:"waiting"`
	// WaitingTokens is the uncached prompt tokens of waiting requests; -1 when
	// the engine does not tell (only SGLang does).
	WaitingTokens int `json:"waiting_tokens"`
	// KVUsed is the share of the KV cache that running requests hold; -1 when the
	// engine does not tell.
	KVUsed float64 `json:"kv_used"`
	// KVTokens is the capacity of the KV cache; 0 when the engine does not tell.
	KVTokens int `json:"kv_tokens"`
	// BlockTokens is the size of a cache block or page; 0 when not told.
	BlockTokens int `json:"block_tokens"`
	// PromptTokens and CachedTokens are totals since the engine started: prompt
	// tokens, and those of them that came from the cache. CachedTokens is -1 when
	// the engine does not tell.
	PromptTokens float64 `json:"prompt_tokens"`
	CachedTokens float64 `json:"cached_tokens"`
	// OutputTokens is the total of generated tokens.
	OutputTokens float64 `json:"output_tokens"`
	// Preemptions is how often a running request lost its place for want of
	// memory.
	Preemptions float64 `json:"preemptions"`
	// Started is when the process started, in seconds since 1970; 0 when the
	// engine does not tell.
	Started float64 `json:"started"`
	// NoCache says that the engine runs without a prefix cache.
	NoCache bool `json:"no_cache,omitzero"`
	// Asleep says that the engine was put to sleep, or calls itself unhealthy.
	Asleep bool `json:"asleep,omitzero"`
}

const startMetric = "process_start_time_seconds"

// wantedMetric keeps the lines that are read here: gauges and counters of the
// engines, not the buckets of their histograms, which are most of a page.
func wantedMetric(name []byte) bool {
	if string(name) == startMetric {
		return true
	}
	for _, prefix := range [...]string{"vllm:", "sglang:", "sglang_", "llamacpp:"} {
		if bytes.HasPrefix(name, []byte(prefix)) {
			return !bytes.HasSuffix(name, []byte("_bucket"))
		}
	}
	return false
}

// engineOf tells the engine by the names of its metrics; "" when there are none.
func engineOf(p page) Engine {
	for _, s := range p {
		switch {
		case strings.HasPrefix(s.name, "vllm:"):
			return VLLM
		case strings.HasPrefix(s.name, "sglang:"), strings.HasPrefix(s.name, "sglang_"):
			return SGLang
		case strings.HasPrefix(s.name, "llamacpp:"):
			return LlamaCPP
		}
	}
	return ""
}

// decode reads the facts of a page. rank is the data-parallel rank that counts,
// nil when all do. ok is false when no engine is recognised.
func decode(p page, rank *int) (f Facts, ok bool) {
	f = Facts{Engine: engineOf(p), WaitingTokens: -1, KVUsed: -1, CachedTokens: -1}
	f.Started, _ = p.sum(nil, startMetric)
	switch f.Engine {
	case VLLM:
		f.vllm(p, rankFilter(rank, "engine"))
	case SGLang:
		f.sglang(p, rankFilter(rank, "dp_rank"))
	case LlamaCPP:
		f.llamacpp(p)
	default:
		return f, false
	}
	return f, true
}

// rankFilter keeps the samples of one rank. Pages of engines without ranks do
// not have the label.
func rankFilter(rank *int, name string) keep {
	if rank == nil {
		return nil
	}
	want := strconv.Itoa(*rank)
	return func(s sample) bool { v := s.label(name); return v == want || v == "" }
}

// count is a gauge of requests; engines write them as floats.
func count(v float64, _ bool) int {
	if !(v > 0) { // NaN included
		return 0
	}
	return int(min(v, math.MaxInt32))
}

// vllm reads the names of V1 and, after them, those of V0 and early V1. With
// several ranks behind one address their capacities add up.
func (f *Facts) vllm(p page, k keep) {
	f.Running = count(p.sum(k, "vllm:num_requests_running"))
	f.Waiting = count(p.sum(k, "vllm:num_requests_waiting"))
	if v, ok := p.mean(k, "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"); ok {
		f.KVUsed = min(max(v, 0), 1)
	}
	f.PromptTokens, _ = p.sum(k, "vllm:prompt_tokens_total")
	f.OutputTokens, _ = p.sum(k, "vllm:generation_tokens_total")
	f.Preemptions, _ = p.sum(k, "vllm:num_preemptions_total")
	f.vllmCached(p, k)
	for _, s := range p {
		if s.name == "vllm:cache_config_info" && (k == nil || k(s)) {
			f.vllmConfig(s)
		}
	}
	asleep, told := p.sum(func(s sample) bool { return (k == nil || k(s)) && s.label("sleep_state") == "awake" }, "vllm:engine_sleep_state")
	healthy, toldHealth := p.sum(k, "vllm:engine_healthy")
	f.Asleep = told && asleep == 0 || toldHealth && healthy == 0
}

// vllmCached reads how many prompt tokens came from a cache: by source, which is
// exact; else the plain counter; else the cache's own hits, which count a
// request again each time it is looked up while it waits.
func (f *Facts) vllmCached(p page, k keep) {
	const bySource = "vllm:prompt_tokens_by_source_total"
	if total, ok := p.sum(k, bySource); ok {
		computed, _ := p.sum(func(s sample) bool { return (k == nil || k(s)) && s.label("source") == "local_compute" }, bySource)
		f.PromptTokens, f.CachedTokens = total, total-computed
		return
	}
	if v, ok := p.sum(k, "vllm:prompt_tokens_cached_total"); ok {
		f.CachedTokens = v
		return
	}
	hits, ok := p.sum(k, "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
	asked, _ := p.sum(k, "vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
	if ok && asked > 0 {
		f.CachedTokens = hits / asked * f.PromptTokens
	} else if ok {
		f.CachedTokens = 0
	}
}

// vllmConfig reads cache_config_info, whose labels are the fields of the
// engine's configuration as text; "None" is one that is not known yet.
func (f *Facts) vllmConfig(s sample) {
	block := number(s.label("block_size"))
	f.BlockTokens = block
	if unit := number(s.label("prefix_match_unit")); unit > 0 {
		f.BlockTokens = unit // hybrid models have huge blocks and match in smaller units
	}
	if tokens := number(s.label("kv_cache_size_tokens")); tokens > 0 {
		f.KVTokens += tokens
	} else {
		f.KVTokens += number(s.label("num_gpu_blocks")) * block
	}
	f.NoCache = f.NoCache || s.label("enable_prefix_caching") == "False"
}

// number parses a positive whole number; anything else is 0.
func number(text string) int {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 0 {
		return 0
	}
	return int(n)
}

// sglang reads both spellings of the prefix. Of a tensor-parallel group only
// rank 0 counts: the others repeat it.
func (f *Facts) sglang(p page, k keep) {
	first := func(s sample) bool {
		tp := s.label("tp_rank")
		return (tp == "" || tp == "0") && (k == nil || k(s))
	}
	names := func(name string) []string { return []string{"sglang:" + name, "sglang_" + name} }
	f.Running = count(p.sum(first, names("num_running_reqs")...))
	f.Waiting = count(p.sum(first, names("num_queue_reqs")...))
	if v, ok := p.mean(first, names("token_usage")...); ok {
		f.KVUsed = min(max(v, 0), 1)
	}
	f.PromptTokens, _ = p.sum(first, names("prompt_tokens_total")...)
	f.OutputTokens, _ = p.sum(first, names("generation_tokens_total")...)
	f.Preemptions, _ = p.sum(first, names("num_retracted_reqs")...)
	if v, ok := p.sum(first, names("cached_tokens_total")...); ok {
		f.CachedTokens = v
	}
	for _, s := range p {
		if (s.name == "sglang:cache_config_info" || s.name == "sglang_cache_config_info") && first(s) {
			f.BlockTokens = number(s.label("page_size"))
			f.KVTokens += number(s.label("page_size")) * number(s.label("num_pages"))
		}
	}
}

// llamacpp reads the metrics of llama.cpp's server.
func (f *Facts) llamacpp(p page) {
	f.Running = count(p.sum(nil, "llamacpp:requests_processing"))
	f.Waiting = count(p.sum(nil, "llamacpp:requests_deferred"))
	if v, ok := p.mean(nil, "llamacpp:kv_cache_usage_ratio"); ok {
		f.KVUsed = min(max(v, 0), 1)
	}
	f.PromptTokens, _ = p.sum(nil, "llamacpp:prompt_tokens_total")
	f.OutputTokens, _ = p.sum(nil, "llamacpp:tokens_predicted_total")
}

// loads is SGLang's answer to /v1/loads.
type loads struct {
	Loads []struct {
		Rank     int     `json:"dp_rank"`
		Running  int     `json:"num_running_reqs"`
		Waiting  int     `json:"num_waiting_reqs"`
		Uncached *int    `json:"num_waiting_uncached_tokens"`
		Used     float64 `json:"num_used_tokens"`
		Max      int     `json:"max_total_num_tokens"`
	} `json:"loads"`
}

// addLoads corrects the facts by /v1/loads, which is younger than the metrics
// and alone tells the waiting uncached tokens.
func (f *Facts) addLoads(body io.Reader, rank *int) error {
	var l loads
	if err := json.NewDecoder(body).Decode(&l); err != nil {
		return fmt.Errorf("parse loads: %w", err)
	}
	running, waiting, uncached, used, capacity, seen := 0, 0, 0, 0.0, 0, false
	for _, r := range l.Loads {
		if rank != nil && r.Rank != *rank {
			continue
		}
		seen = true
		running, waiting, used = running+max(r.Running, 0), waiting+max(r.Waiting, 0), used+r.Used
		capacity += max(r.Max, 0)
		if r.Uncached == nil || uncached < 0 {
			uncached = -1
		} else {
			uncached += max(*r.Uncached, 0)
		}
	}
	if !seen {
		return errNoLoads
	}
	f.Engine = SGLang
	f.Running, f.Waiting, f.WaitingTokens = running, waiting, uncached
	if capacity > 0 {
		f.KVTokens = capacity
		f.KVUsed = min(max(used/float64(capacity), 0), 1)
	}
	return nil
}

// addProps reads the capacity of llama.cpp's cache from /props: each slot has a
// context of its own.
func (f *Facts) addProps(body io.Reader) error {
	var props struct {
		Slots    int `json:"total_slots"`
		Settings struct {
			Context int `json:"n_ctx"`
		} `json:"default_generation_settings"`
	}
	if err := json.NewDecoder(body).Decode(&props); err != nil {
		return fmt.Errorf("parse props: %w", err)
	}
	f.KVTokens = max(props.Slots, 0) * max(props.Settings.Context, 0)
	return nil
}
