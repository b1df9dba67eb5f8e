package proxy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/warmroute/warmroute/internal/route"
)

const (
	explainHeader     = "X-Warmroute-Explain"
	explanationHeader = "X-Warmroute-Explanation"
)

// maxExplanation bounds an explanation in bytes. Common clients and proxies
// accept 8 KiB of headers in all.
const maxExplanation = 6 << 10

// Explanation answers "why this instance?" for one request.
type Explanation struct {
	ID       string `json:"id"`
	Model    string `json:"model,omitempty"`
	Instance string `json:"instance,omitempty"`
	Outcome  string `json:"outcome,omitempty"`
	// FailOpen says that the instance was asked although it is broken, because all
	// are.
	FailOpen bool    `json:"fail_open,omitempty"`
	Tries    []tried `json:"failed_attempts,omitempty"`
	// Decision is the last one; its candidates say who else was there and why
	// they were not taken.
	Decision *route.Explanation `json:"decision,omitempty"`
	// Omitted counts candidates left out to stay short.
	Omitted int `json:"omitted_candidates,omitempty"`

	PromptTokens int `json:"prompt_tokens"`
	Predicted    int `json:"predicted_cached_tokens"`
	// Actual is what the instance reported; null when it did not.
	Actual *int    `json:"actual_cached_tokens"`
	Held   float64 `json:"held_s"`
	TTFT   float64 `json:"ttft_s,omitempty"`
}

// tried is a [Try] as clients see it.
type tried struct {
	Instance string `json:"instance"`
	Class    string `json:"class"`
	Cause    string `json:"cause,omitempty"`
}

// wantsExplanation reports whether the client asks why.
func wantsExplanation(h http.Header) bool {
	v := h.Get(explainHeader)
	return v == "1" || v == "true"
}

// explanation describes the request so far.
func explanation(r *Record, d *route.Explanation) *Explanation {
	e := &Explanation{
		ID: r.ID, Model: r.Model, Instance: r.Instance, Outcome: r.Outcome(), Decision: d, FailOpen: r.FailOpen,
		PromptTokens: r.PromptTokens, Predicted: r.PredictedTokens, Held: r.Held.Seconds(),
	}
	for _, t := range r.Tries {
		e.Tries = append(e.Tries, tried{t.Instance, t.Class.String(), t.Cause})
	}
	if r.CachedKnown {
		e.Actual = new(r.CachedTokens)
	}
	if ttft, ok := r.TTFT(); ok {
		e.TTFT = ttft.Seconds()
	}
	return e
}

// encode returns e as one line of JSON in ASCII, because it goes into headers,
// of at most limit bytes, as long as names are sane: it leaves out candidates, the dearest first, and the excluded before
// those.
func (e *Explanation) encode(limit int) []byte {
	for {
		b, err := json.Marshal(e)
		if err != nil {
			// An infinite price is the only thing JSON cannot hold.
			e.Decision = nil
			continue
		}
		b = asciiJSON(b)
		if len(b) <= limit || e.Decision == nil || len(e.Decision.Candidates) == 0 {
			return b
		}
		e.drop(max(1, len(e.Decision.Candidates)/4))
	}
}

// asciiJSON escapes what is not ASCII in b, which is valid JSON and therefore has it
// in strings only.
func asciiJSON(b []byte) []byte {
	if bytes.IndexFunc(b, func(r rune) bool { return r >= utf8.RuneSelf }) < 0 {
		return b
	}
	var out []byte
	for _, r := range string(b) {
		switch {
		case r < utf8.RuneSelf:
			out = append(out, byte(r))
		case r <= 0xffff:
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		}
	}
	return out
}

// drop leaves out n candidates, the chosen one last of all.
func (e *Explanation) drop(n int) {
	rank := func(c *route.CandidateExplained) int {
		switch {
		case c.Chosen:
			return 0
		case c.Excluded == "":
			return 1
		}
		return 2
	}
	d := *e.Decision
	d.Candidates = slices.Clone(d.Candidates)
	slices.SortStableFunc(d.Candidates, func(a, b route.CandidateExplained) int {
		return cmp.Or(cmp.Compare(rank(&a), rank(&b)), cmp.Compare(a.Cost, b.Cost))
	})
	d.Candidates = d.Candidates[:len(d.Candidates)-n]
	e.Decision, e.Omitted = &d, e.Omitted+n
}
