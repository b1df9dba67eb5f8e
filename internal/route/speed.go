package route

import "math"

// Speed is the cost model of one engine. A step is one round of the engine: at most StepTokens tokens of prefill, and one token
// for each decoding stream. It takes
//
//	DecodeBase + DecodeCtx*context + PrefillToken*u + PrefillQuad*u*(h + u/2)    seconds
//
// for u tokens of prefill after h cached ones, with context tokens held by the decoding streams.
type Speed struct {
	PrefillToken float64 `json:"prefill_token_s"` // seconds per uncached token
	PrefillQuad  float64 `json:"prefill_quad_s"`  // seconds per uncached token and token of context before it (attention)
	DecodeBase   float64 `json:"decode_base_s"`   // seconds per step, however little is in it
	DecodeCtx    float64 `json:"decode_ctx_s"`    // seconds per step and token of context of the decoding streams
	StepTokens   int     `json:"step_tokens"`     // tokens per step (vLLM's max_num_batched_tokens)
	KVTokens     int     `json:"kv_tokens"`       // tokens that the KV cache holds; 0 means unknown, and then memory costs nothing
}

// Known reports whether s says anything.
func (s *Speed) Known() bool { return s.PrefillToken > 0 }

// step is a fit of one model on one machine to measured kernels (AIC silicon tables; vLLM 0.24 on H100, 0.14 on A100; bf16). With
// N tokens in the step, its milliseconds are
//
//	(tw^3 + (a*N)^3)^(1/3) + r0 + r1*N + e0 + e*N + head + [p0 + bpf*sum n*(c + n/2)] + [d0 + bdc*sum ctx] + cpu
//
// GEMMs with their weights, all-reduce, the elementwise rest, the output head, prefill attention, decode attention, host.
type step struct {
	tw, a, r0, r1, e0, e, head, p0, bpf, d0, bdc float64 // ms; a, r1, e in us per token; bpf, bdc in ns
	stepTokens, kvTokens                         int
}

// cpu is the host's share of a step in ms.
const cpu = 1.5

// vLLM's API server takes 8192 tokens per step on GPUs of 70 GiB and more that are not an A100, and 2048 on all others
// (get_batch_defaults in vllm/engine/arg_utils.py).
const (
	largeStep = 8192
	smallStep = 2048
)

// KV capacity = (memory*utilization*TP - weights - 5.5 GiB - 0.6*TP GiB) / (layers*2*kv_heads*head_dim*2 B). That gives 312k for
// Qwen3-32B on two H100, where 307,328 were measured.
var engines = [...]struct {
	name string
	step step
}{
	{"llama-3.1-70b-4xh100", step{12.92, 43.1, .88, 14.06, .72, 5.20, .20, 1.81, 1.187, 1.00, 27.67, largeStep, 487_000}},
	{"llama-3.1-70b-8xh100", step{7.05, 22.2, 1.17, 13.46, .72, 4.55, .10, 1.58, .585, 1.00, 13.92, largeStep, 1_420_000}},
	{"llama-3.1-70b-8xa100", step{13.88, 74.5, 1.26, 27.58, .72, 7.48, .16, 2.02, 2.164, 1.13, 30.15, smallStep, 1_420_000}},
	{"llama-3.1-70b-4xa100", step{25.09, 136.1, 1.03, 24.52, .72, 8.54, .32, 2.70, 4.31, 1.50, 61.67, smallStep, 487_000}},
	{"qwen3-32b-2xh100", step{11.9, 39.9, .53, 5.75, .58, 3.79, .29, 2.01, 1.955, .81, 44.42, largeStep, 307_328}},
	{"llama-3.1-8b-1xh100", step{5.44, 17.9, 0, 0, .29, 1.81, .39, 1.06, .984, .41, 46.43, largeStep, 420_000}},
	{"llama-3.1-8b-1xa100", step{9.95, 57.4, 0, 0, .29, 2.97, .64, 1.78, 3.431, .60, 90.93, smallStep, 420_000}},
}

// speed is the straight line through the step without prefill and the full step: exact at both ends, and at most a few
// milliseconds too much between them. The line carries all that grows with N, so a full step is not charged twice for its base:
//
//	DecodeBase   = T(no prefill, no context)
//	PrefillToken = (T(StepTokens) - bpf's part - DecodeBase) / StepTokens
//
// For llama-3.1-70b-8xh100 that is 11.5 ms and 39.5 us; 8192 tokens at once take 355 ms, 43 us each.
func (p *step) speed() Speed {
	n := float64(p.stepTokens)
	full := p.a * n / 1e3                              // ms
	gemm := math.Cbrt(p.tw*p.tw*p.tw + full*full*full) // ms
	return Speed{
		PrefillToken: ((gemm-p.tw+p.p0)/n + (p.r1+p.e)/1e3) / 1e3,
		PrefillQuad:  p.bpf / 1e9,
		DecodeBase:   (p.tw + p.r0 + p.e0 + p.head + p.d0 + cpu) / 1e3,
		DecodeCtx:    p.bdc / 1e9,
		StepTokens:   p.stepTokens,
		KVTokens:     p.kvTokens,
	}
}

// Prior is the speed of a known engine before anything has been measured. The names are those of Engines.
func Prior(engine string) (Speed, bool) {
	for i := range engines {
		if engines[i].name == engine {
			return engines[i].step.speed(), true
		}
	}
	return Speed{}, false
}

// Engines lists the names that Prior knows.
func Engines() []string {
	names := make([]string, len(engines))
	for i := range engines {
		names[i] = engines[i].name
	}
	return names
}

// Unknown is the speed assumed of an engine of which nothing is known: about that of Qwen3-32B on two H100, which lies in the
// middle of the table's logarithms. In a pool of one kind the error cancels out of nearly all comparisons; what remains is the
// exchange rate between waiting for prefill and the length of a step. The capacity stays unknown.
func Unknown() Speed {
	return Speed{PrefillToken: 55e-6, PrefillQuad: 2e-9, DecodeBase: 17e-3, DecodeCtx: 45e-9, StepTokens: largeStep}
}
