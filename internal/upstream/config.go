package upstream

import (
	"fmt"
	"net/textproto"
	"strings"
	"time"
)

// Config tunes the connections to all instances. Its timeouts are separate on
// purpose: a dead host, a host that accepts and stays silent, and a stream
// that stops are three different faults with three different patience levels.
type Config struct {
	// DialTimeout bounds connecting, name resolution included. Zero means no
	// bound. Default 3s.
	DialTimeout time.Duration `yaml:"dial_timeout"`
	// TLSTimeout bounds the TLS handshake. Zero means no bound. Default 5s.
	TLSTimeout time.Duration `yaml:"tls_timeout"`
	// HeaderTimeout bounds the wait from a fully sent request to the response
	// headers. An answer that is not streamed comes with its headers, so this
	// must exceed the longest generation; streams have their own, tighter bound
	// on the first token. Zero means no bound. Default 10m.
	HeaderTimeout time.Duration `yaml:"header_timeout"`
	// BodyIdleTimeout bounds the silence between two reads of a response body.
	// Zero means no bound. Default 2m.
	BodyIdleTimeout time.Duration `yaml:"body_idle_timeout"`
	// IdleTimeout closes kept-alive connections that were not used for so long.
	// It must stay below the server's own limit (uvicorn, which serves vLLM and
	// SGLang, closes after 5s), or a request meets a connection that the server
	// is just closing, and a POST must not be sent a second time. Zero means no
	// bound. Default 4s.
	IdleTimeout time.Duration `yaml:"idle_timeout"`
	// KeepAlive is the period of TCP keep-alive probes. Negative turns them
	// off, zero takes the default of 15s.
	KeepAlive time.Duration `yaml:"keep_alive"`
	// MaxIdlePerInstance is how many idle connections are kept for each
	// instance. Default 512.
	MaxIdlePerInstance int `yaml:"max_idle_per_instance"`
	// MaxHeaderBytes bounds the response headers. Default 1 MiB.
	MaxHeaderBytes int64 `yaml:"max_header_bytes"`
	// H2C speaks HTTP/2 without TLS to http:// instances. The instance must
	// support it; there is no fallback. Default false.
	H2C bool `yaml:"h2c"`
	// UseProxy honours HTTP_PROXY, HTTPS_PROXY and NO_PROXY. Default false: a
	// proxy that somebody set for downloads must not carry prompts.
	UseProxy bool `yaml:"use_proxy"`
	// CAFile is a PEM file of certificate authorities that are trusted besides
	// the system's. Empty means the system's alone.
	CAFile string `yaml:"ca_file"`
	// InsecureTLS accepts any certificate. Default false.
	InsecureTLS bool `yaml:"insecure_tls"`
	// ForwardHeaders are request headers that pass to instances besides the
	// built-in allowlist. Credentials, cookies and hop-by-hop headers are
	// refused here.
	ForwardHeaders []string `yaml:"forward_headers"`
	// ReturnHeaders are response headers that pass to clients besides the
	// built-in allowlist.
	ReturnHeaders []string `yaml:"return_headers"`
}

// Default returns the settings that hold when a file says nothing.
func Default() Config {
	return Config{
		DialTimeout:        3 * time.Second,
		TLSTimeout:         5 * time.Second,
		HeaderTimeout:      10 * time.Minute,
		BodyIdleTimeout:    2 * time.Minute,
		IdleTimeout:        4 * time.Second,
		KeepAlive:          15 * time.Second,
		MaxIdlePerInstance: 512,
		MaxHeaderBytes:     1 << 20,
	}
}

// Validate reports all faults of c, each beginning with the path of its field
// below this section.
func (c Config) Validate() []error {
	var faults []error
	bad := func(field, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{
		{"dial_timeout", c.DialTimeout},
		{"tls_timeout", c.TLSTimeout},
		{"header_timeout", c.HeaderTimeout},
		{"body_idle_timeout", c.BodyIdleTimeout},
		{"idle_timeout", c.IdleTimeout},
	} {
		if d.value < 0 {
			bad(d.field, "%v is negative; want 0 (no bound) or more", d.value)
		}
	}
	if c.MaxIdlePerInstance < 0 {
		bad("max_idle_per_instance", "%d is negative", c.MaxIdlePerInstance)
	}
	if c.MaxHeaderBytes < 0 {
		bad("max_header_bytes", "%d is negative", c.MaxHeaderBytes)
	}
	for i, h := range c.ForwardHeaders {
		if why := refuseForward(h); why != "" {
			bad(fmt.Sprintf("forward_headers[%d]", i), "%q %s", h, why)
		}
	}
	for i, h := range c.ReturnHeaders {
		if why := refuseReturn(h); why != "" {
			bad(fmt.Sprintf("return_headers[%d]", i), "%q %s", h, why)
		}
	}
	return faults
}

// refuseForward says why the header must not be forwarded, or "".
func refuseForward(name string) string {
	if why := refuseName(name); why != "" {
		return why
	}
	if isSecretHeader(textproto.CanonicalMIMEHeaderKey(name)) {
		return "carries credentials, which never pass to an instance"
	}
	return ""
}

// refuseReturn says why the header must not be returned to clients, or "".
func refuseReturn(name string) string {
	if why := refuseName(name); why != "" {
		return why
	}
	if textproto.CanonicalMIMEHeaderKey(name) == "Set-Cookie" {
		return "would plant an instance's cookie in clients"
	}
	return ""
}

func refuseName(name string) string {
	switch {
	case name == "" || strings.ContainsAny(name, " :\r\n\t"):
		return "is not a header name"
	case isHopHeader(textproto.CanonicalMIMEHeaderKey(name)):
		return "is a hop-by-hop header"
	}
	return ""
}
