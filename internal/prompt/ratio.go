package prompt

// Ratio learns how many bytes of the canonical stream one token of a model
// takes. English takes about four, Chinese two to five, code fewer. The zero
// value knows only the prior. The caller guards concurrent use.
type Ratio struct {
	bytes, tokens float64 // sums over what was observed, faded by age
}

const (
	ratioPrior       = 4    // bytes per token before anything is known
	ratioPriorTokens = 2048 // how many observed tokens outweigh the prior
	ratioWindow      = 1e6  // tokens after which the past counts half
	ratioMin         = 0.5
	ratioMax         = 32
)

// Observe adds a prompt of the given bytes that the engine counted as the
// given tokens. Counts that no tokenizer gives are clamped, so that one broken
// report cannot spoil what was learned.
func (r *Ratio) Observe(bytes int64, tokens int) {
	if bytes <= 0 || tokens <= 0 {
		return
	}
	t := float64(tokens)
	r.bytes += min(max(float64(bytes), ratioMin*t), ratioMax*t)
	r.tokens += t
	if r.tokens > ratioWindow {
		r.bytes /= 2
		r.tokens /= 2
	}
}

// BytesPerToken returns the learned ratio.
func (r *Ratio) BytesPerToken() float64 {
	return (r.bytes + ratioPrior*ratioPriorTokens) / (r.tokens + ratioPriorTokens)
}

// Tokens estimates the tokens in bytes of the stream, rounded up.
func (r *Ratio) Tokens(bytes int64) int {
	if bytes <= 0 {
		return 0
	}
	t := float64(bytes) / r.BytesPerToken()
	n := int(t)
	if float64(n) < t {
		n++
	}
	return n
}

// Bytes estimates the bytes of the stream that tokens take.
func (r *Ratio) Bytes(tokens int) int64 {
	if tokens <= 0 {
		return 0
	}
	return int64(float64(tokens) * r.BytesPerToken())
}
