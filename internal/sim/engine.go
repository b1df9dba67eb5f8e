package sim

import "time"

// BlockTokens is the default block size of an engine in tokens, as vLLM's.
const BlockTokens = 16

// Options sets up an [Engine]. The zero value takes everything from the profile.
type Options struct {
	// KVTokens is the size of the KV cache in tokens. Zero takes the profile's.
	KVTokens int
	// BlockTokens is the size of a block. Zero means [BlockTokens].
	BlockTokens int
	// CacheOff turns prefix caching off.
	CacheOff bool
	// ShareInStep lets a request hit blocks that another request computes in the same step, as vLLM does since it registers a
	// block when it schedules it. Off, blocks become visible at the end of the step, as in engines that insert after the forward
	// pass: siblings of a new prefix that start together then all miss, which is the harder case for a router.
	ShareInStep bool
	// OnStep is called at the end of each step, in order, while the engine catches up with the time of a call.
	OnStep func(Step)
}

// Step describes a finished step.
type Step struct {
	Start, End time.Duration
	Load
	// Resumed holds the gap since the previous token of requests that were preempted and got a token again in this step. Every
	// other stream among Decodes waited End-Start for its token. Valid during the call.
	Resumed []time.Duration
}

// Stats is a view of an engine at one time. The counters run since the start or the last restart.
type Stats struct {
	Running, Waiting int
	// UsedBlocks are referenced by running requests; the others, cached or not, can be taken. CachedBlocks hold a hash.
	UsedBlocks, CachedBlocks, TotalBlocks int
	// Steps counts finished steps, Preemptions the requests that lost their blocks.
	Steps, Preemptions int64
	// PrefixQueries and PrefixHits count prompt tokens at each lookup, once per step for a request that waits for blocks, as
	// vllm:prefix_cache_queries does: they over-count.
	PrefixQueries, PrefixHits int64
	// PromptTokens, CachedTokens and RecomputedTokens count at the first token: all prompt tokens, those from the cache, and the
	// last tokens of prompts that were cached to the end and had to be computed all the same.
	PromptTokens, CachedTokens, RecomputedTokens int64
	// GenerationTokens counts generated tokens.
	GenerationTokens int64
	// Finished and Aborted count terminal events.
	Finished, Aborted int64
}

// KVUsage returns the share of blocks that running requests hold, 0 to 1.
func (s Stats) KVUsage() float64 {
	if s.TotalBlocks == 0 {
		return 0
	}
	return float64(s.UsedBlocks) / float64(s.TotalBlocks)
}
