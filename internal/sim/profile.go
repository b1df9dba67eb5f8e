package sim

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Profile holds the cost of one engine step for one model on one set of GPUs, and the limits of that engine.
//
// A step that computes N tokens in all takes, in milliseconds,
//
//	(Weights^3 + (TokenCompute*N)^3)^(1/3) + ReduceBase + ReduceToken*N + OtherBase + OtherToken*N + Head
//	  + [PrefillBase + PrefillAttention * sum n_j*(c_j + n_j/2)]   when the step prefills: n_j tokens after c_j computed ones
//	  + [DecodeBase + DecodeAttention * sum ctx]                   when the step decodes: ctx is the context of each stream
//	  + CPU
//
// fitted to measured kernel tables of vLLM 0.24 (H100) and 0.14 (A100). The fit is within 11-26 % for the matrix products (worst
// near N = 256-512), 27-39 % for all-reduce and 6-13 % (median) for decode attention.
type Profile struct {
	// Name is the model and its GPUs, such as "llama-3.1-70b-4xh100".
	Name string
	// Weights is the time to read all weights once, in ms.
	Weights float64
	// TokenCompute is the time of the matrix products of one token, in us.
	TokenCompute float64
	// ReduceBase, in ms, and ReduceToken, in us, are the tensor-parallel all-reduce. Zero on one GPU.
	ReduceBase, ReduceToken float64
	// OtherBase, in ms, and OtherToken, in us, are the element-wise kernels.
	OtherBase, OtherToken float64
	// Head is the output projection and sampling, in ms.
	Head float64
	// PrefillBase, in ms, and PrefillAttention, in ns per token pair, are the attention of prefill.
	PrefillBase, PrefillAttention float64
	// DecodeBase, in ms, and DecodeAttention, in ns per context token, are the attention of decode.
	DecodeBase, DecodeAttention float64
	// CPU is the time between two steps in which the GPU waits, in ms.
	CPU float64
	// KVTokens is how many tokens the KV cache holds.
	KVTokens int
	// MaxBatchedTokens bounds the tokens of one step (vLLM's --max-num-batched-tokens).
	MaxBatchedTokens int
	// MaxSeqs bounds the requests of one step (vLLM's --max-num-seqs).
	MaxSeqs int
	// MaxModelLen is the longest context that the model serves, in tokens.
	MaxModelLen int
}

// cpuMS is the pause between two steps of vLLM's asynchronous scheduler, in ms.
const cpuMS = 1.5

// vLLM's API server batches 8192 tokens and 1024 requests on GPUs of at least 70 GiB that are not A100, and 2048 and 256 on the
// others (get_batch_defaults in vllm/engine/arg_utils.py).
const (
	largeBatchTokens, largeSeqs = 8192, 1024
	smallBatchTokens, smallSeqs = 2048, 256
)

// profiles is the fitted table; columns in the order of the fields.
var profiles = []Profile{
	{"llama-3.1-70b-4xh100", 12.92, 43.1, .88, 14.06, .72, 5.20, .20, 1.81, 1.187, 1.00, 27.67, cpuMS, 487_000, largeBatchTokens, largeSeqs, 131_072},
	{"llama-3.1-70b-8xh100", 7.05, 22.2, 1.17, 13.46, .72, 4.55, .10, 1.58, .585, 1.00, 13.92, cpuMS, 1_420_000, largeBatchTokens, largeSeqs, 131_072},
	{"llama-3.1-70b-8xa100", 13.88, 74.5, 1.26, 27.58, .72, 7.48, .16, 2.02, 2.164, 1.13, 30.15, cpuMS, 1_420_000, smallBatchTokens, smallSeqs, 131_072},
	{"llama-3.1-70b-4xa100", 25.09, 136.1, 1.03, 24.52, .72, 8.54, .32, 2.70, 4.31, 1.50, 61.67, cpuMS, 487_000, smallBatchTokens, smallSeqs, 131_072},
	{"qwen3-32b-2xh100", 11.9, 39.9, .53, 5.75, .58, 3.79, .29, 2.01, 1.955, .81, 44.42, cpuMS, 307_328, largeBatchTokens, largeSeqs, 40_960},
	{"llama-3.1-8b-1xh100", 5.44, 17.9, 0, 0, .29, 1.81, .39, 1.06, .984, .41, 46.43, cpuMS, 420_000, largeBatchTokens, largeSeqs, 131_072},
	{"llama-3.1-8b-1xa100", 9.95, 57.4, 0, 0, .29, 2.97, .64, 1.78, 3.431, .60, 90.93, cpuMS, 420_000, smallBatchTokens, smallSeqs, 131_072},
}

// Profiles returns the names that [LookupProfile] knows, in the order of the table.
func Profiles() []string {
	names := make([]string, len(profiles))
	for i := range profiles {
		names[i] = profiles[i].Name
	}
	return names
}

// LookupProfile returns the profile of that name. An unknown name is an error that lists the known ones.
func LookupProfile(name string) (Profile, error) {
	i := slices.IndexFunc(profiles, func(p Profile) bool { return p.Name == name })
	if i < 0 {
		return Profile{}, fmt.Errorf("look up profile %q: unknown; known are %s", name, strings.Join(Profiles(), ", "))
	}
	return profiles[i], nil
}

// Load is the work of one step.
type Load struct {
	// Prefill counts prompt tokens computed, PrefillPairs is sum n_j*(c_j + n_j/2) over the prompts they belong to.
	Prefill      int
	PrefillPairs float64
	// Decodes counts streams that get one token, Context sums their contexts in tokens.
	Decodes int
	Context int
}

// StepMS returns how long a step with that load takes, in milliseconds.
func (p *Profile) StepMS(l Load) float64 {
	return float64(p.stepPS(l)) / psPerMS
}

// psPerMS converts: the engine counts time in integer picoseconds, since every decode coefficient of the table is a whole number
// of them. The sum over many decode steps is then exact and can be computed in one formula.
const psPerMS = 1e9

// stepPS returns the duration of a step in picoseconds.
func (p *Profile) stepPS(l Load) int64 {
	ps := p.basePS(l.Prefill + l.Decodes)
	if l.Prefill > 0 {
		ps += int64(math.Round(p.PrefillBase*psPerMS + p.PrefillAttention*1e3*l.PrefillPairs))
	}
	if l.Decodes > 0 {
		ps += p.decodeBasePS() + p.contextPS()*int64(l.Context)
	}
	return ps
}

// basePS returns what any step of n tokens costs before attention, in picoseconds.
func (p *Profile) basePS(n int) int64 {
	compute := p.TokenCompute / 1e3 * float64(n)
	ms := math.Cbrt(p.Weights*p.Weights*p.Weights + compute*compute*compute)
	ms += p.ReduceBase + p.OtherBase + p.Head + p.CPU
	ms += (p.ReduceToken + p.OtherToken) / 1e3 * float64(n)
	return int64(math.Round(ms * psPerMS))
}

func (p *Profile) decodeBasePS() int64 { return int64(math.Round(p.DecodeBase * psPerMS)) }

// contextPS returns the decode attention of one context token in picoseconds.
func (p *Profile) contextPS() int64 { return int64(math.Round(p.DecodeAttention * 1e3)) }
