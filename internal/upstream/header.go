package upstream

import (
	"net/http"
	"net/textproto"
	"slices"
	"strings"
)

// forwarded are the request headers that pass to instances. Everything else
// stops here: an allowlist fails closed when clients invent new headers for
// credentials. Accept-Encoding is absent because usage and stream markers are
// read from the bytes as they come; Idempotency-Key because it makes net/http
// repeat a POST by itself.
var forwarded = []string{
	"Accept",
	"Accept-Language",
	"Anthropic-Beta",
	"Anthropic-Version",
	"Content-Type",
	"Openai-Beta",
	"Traceparent",
	"Tracestate",
	"User-Agent",
	"X-Correlation-Id",
	"X-Request-Id",
}

// returned are the response headers that pass to clients. Server names,
// cookies, CORS and connection headers of an instance stay behind.
var returned = []string{
	"Anthropic-Ratelimit-*",
	"Cache-Control",
	"Content-Disposition",
	"Content-Encoding",
	"Content-Language",
	"Content-Length",
	"Content-Type",
	"Date",
	"Openai-Processing-Ms",
	"Openai-Version",
	"Request-Id",
	"Retry-After",
	"Retry-After-Ms",
	"X-Ratelimit-*",
	"X-Request-Id",
	"X-Amzn-Errortype",
	"X-Ms-Retry-After-Ms",
	"X-Should-Retry",
	"X-Vllm-*",
}

// hopHeaders belong to one connection (RFC 9110 section 7.6.1, and what proxies
// of old added to it).
var hopHeaders = []string{
	"Connection", "Expect", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
	"Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// secretHeaders carry credentials in one vendor's habit or another's.
var secretHeaders = []string{
	"Api-Key", "Authorization", "Cookie", "Proxy-Authorization", "X-Amz-Security-Token",
	"X-Api-Key", "X-Auth-Token", "X-Goog-Api-Key",
}

// secretParams are query parameters that carry credentials.
var secretParams = []string{"access_token", "api-key", "api_key", "apikey", "key", "token"}

func isHopHeader(canonical string) bool    { return slices.Contains(hopHeaders, canonical) }
func isSecretHeader(canonical string) bool { return slices.Contains(secretHeaders, canonical) }

// nameSet is a set of canonical header names and of name prefixes.
type nameSet struct {
	names    map[string]bool
	prefixes []string
}

func newNameSet(lists ...[]string) nameSet {
	s := nameSet{names: make(map[string]bool)}
	for _, list := range lists {
		for _, name := range list {
			if prefix, ok := strings.CutSuffix(name, "*"); ok {
				s.prefixes = append(s.prefixes, textproto.CanonicalMIMEHeaderKey(prefix))
				continue
			}
			s.names[textproto.CanonicalMIMEHeaderKey(name)] = true
		}
	}
	return s
}

func (s nameSet) has(canonical string) bool {
	if s.names[canonical] {
		return true
	}
	for _, p := range s.prefixes {
		if strings.HasPrefix(canonical, p) {
			return true
		}
	}
	return false
}

// filter returns the headers of h that are in s. Names that a Connection header
// declares hop-by-hop stay behind even when they are listed.
func (s nameSet) filter(h http.Header) http.Header {
	var dropped []string
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			dropped = append(dropped, textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name)))
		}
	}
	out := make(http.Header, len(h))
	for name, values := range h {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		if s.has(canonical) && !isHopHeader(canonical) && !slices.Contains(dropped, canonical) {
			out[canonical] = append(out[canonical], values...)
		}
	}
	return out
}
