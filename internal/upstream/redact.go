package upstream

import (
	"cmp"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// minRedactBytes is the shortest secret that is searched for in text. Keys such
// as "EMPTY" or "none", common in front of engines without authentication,
// would otherwise black out ordinary words.
const minRedactBytes = 8

// shapes are credentials recognised by their form, whoever they belong to: an
// error of a vendor may quote a key that this process never held. The first
// group, where there is one, is kept.
var shapes = []*regexp.Regexp{
	regexp.MustCompile(`(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,}`),
	regexp.MustCompile(`(?i)\b((?:x-)?(?:api|goog)[-_ ]?(?:api[-_ ]?)?key["']?\s*[:=]\s*["']?)[^\s"',;&{}\[\]]{4,}`),
	regexp.MustCompile(`(?i)([?&](?:access_token|api[-_]?key|key|token|signature|x-amz-[a-z-]+)=)[^\s"'&]+`),
	regexp.MustCompile(`(://)[^/\s:@]*:[^/\s@]+@`),
	regexp.MustCompile(`()\b(?:sk|pk|rk|gsk|hf|wr|nvapi|xai|pplx|key)[-_][A-Za-z0-9_-]{12,}`),
	regexp.MustCompile(`()\b(?:AKIA|ASIA)[0-9A-Z]{16}\b`),
	regexp.MustCompile(`()\bAIza[0-9A-Za-z_-]{20,}`),
	regexp.MustCompile(`()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*`),
}

// Redactor removes secrets from text that will be logged or shown: those it was
// told of, in plain, URL-escaped and quoted form, and whatever has the shape of
// a credential. It serves concurrent callers; the zero value knows no secrets.
type Redactor struct {
	mu    sync.RWMutex // guards known
	known []string     // longest first, so that no secret hides the tail of a longer one
}

// Add makes the redactor know a secret for as long as it lives: texts about an
// instance outlast the instance.
func (r *Redactor) Add(s Secret) {
	v := s.Reveal()
	if len(v) < minRedactBytes {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, form := range []string{v, url.QueryEscape(v), url.PathEscape(v)} {
		if !slices.Contains(r.known, form) {
			r.known = append(slices.Clone(r.known), form)
		}
	}
	slices.SortFunc(r.known, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
}

// Redact returns text without secrets.
func (r *Redactor) Redact(text string) string {
	r.mu.RLock()
	known := r.known
	for _, v := range known {
		text = strings.ReplaceAll(text, v, redacted)
	}
	r.mu.RUnlock()
	for _, shape := range shapes {
		text = shape.ReplaceAllString(text, "${1}"+redacted)
	}
	return text
}
