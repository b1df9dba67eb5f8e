package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// DialFunc opens a connection, as [net.Dialer.DialContext] does.
type DialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// Upstream holds the connections to all instances.
type Upstream struct {
	cfg      Config
	forward  nameSet
	back     nameSet
	redactor Redactor
	tcp      *http.Transport // HTTP/1.1, and HTTP/2 over TLS
	h2c      *http.Transport // HTTP/2 without TLS; nil unless asked for
}

// New returns an Upstream with settings c. dial replaces the network, for
// tests; nil dials TCP.
func New(c Config, dial DialFunc) (*Upstream, error) {
	if err := errors.Join(c.Validate()...); err != nil {
		return nil, err
	}
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: c.InsecureTLS} //nolint:gosec // asked for by name in the configuration
	if c.CAFile != "" {
		pool, err := readPool(c.CAFile)
		if err != nil {
			return nil, err
		}
		tlsConfig.RootCAs = pool
	}
	if dial == nil {
		d := net.Dialer{Timeout: c.DialTimeout, KeepAlive: c.KeepAlive}
		dial = d.DialContext
	} else {
		dial = timedDial(dial, c.DialTimeout)
	}
	u := &Upstream{
		cfg:     c,
		forward: newNameSet(forwarded, c.ForwardHeaders),
		back:    newNameSet(returned, c.ReturnHeaders),
		tcp:     newTransport(c, dial, tlsConfig),
	}
	u.tcp.Protocols.SetHTTP1(true)
	u.tcp.Protocols.SetHTTP2(true)
	if c.H2C {
		u.h2c = newTransport(c, dial, tlsConfig)
		u.h2c.Protocols.SetUnencryptedHTTP2(true)
	}
	return u, nil
}

// timedDial bounds a dial function that has no timeout of its own.
func timedDial(dial DialFunc, d time.Duration) DialFunc {
	if d <= 0 {
		return dial
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		return dial(ctx, network, addr)
	}
}

func readPool(path string) (*x509.CertPool, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("read system certificates: %w", err)
	}
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read ca_file: %w", err)
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read ca_file %s: no certificate in it", path)
	}
	return pool, nil
}

// newTransport returns a transport without protocols; the caller chooses.
func newTransport(c Config, dial DialFunc, tlsConfig *tls.Config) *http.Transport {
	t := &http.Transport{
		DialContext:            dial,
		TLSClientConfig:        tlsConfig.Clone(),
		TLSHandshakeTimeout:    c.TLSTimeout,
		ResponseHeaderTimeout:  c.HeaderTimeout,
		IdleConnTimeout:        c.IdleTimeout,
		MaxIdleConnsPerHost:    c.MaxIdlePerInstance,
		MaxResponseHeaderBytes: c.MaxHeaderBytes,
		// The bytes of an answer are read for usage and markers and passed on as
		// they are, so nothing may unpack them on the way.
		DisableCompression: true,
		// Prompts of hundreds of kilobytes leave in few system calls.
		WriteBufferSize: 64 << 10,
		ReadBufferSize:  32 << 10,
		Protocols:       new(http.Protocols),
		HTTP2:           &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second},
	}
	if c.UseProxy {
		t.Proxy = http.ProxyFromEnvironment
	}
	return t
}

// Close closes the connections that are idle.
func (u *Upstream) Close() {
	u.tcp.CloseIdleConnections()
	if u.h2c != nil {
		u.h2c.CloseIdleConnections()
	}
}

// Redact returns text without the credentials of any instance, and without
// anything that looks like one.
func (u *Upstream) Redact(text string) string { return u.redactor.Redact(text) }

// Target is one instance as upstream sees it.
type Target struct {
	// Name stands in faults.
	Name string
	// URL is the base that request paths are appended to. A trailing /v1 is
	// dropped, because request paths carry their own.
	URL string
	// Key is sent as the instance's credential. The zero value sends none.
	Key Secret
	// KeyHeader is the header that carries Key as it is. Empty means
	// "Authorization: Bearer <key>".
	KeyHeader string
	// Rank pins requests to one data-parallel rank behind the URL
	// (X-data-parallel-rank); nil leaves the choice to the engine.
	Rank *int
}

// Errors of [ParseBase].
var (
	ErrScheme   = errors.New("want an http:// or https:// URL")
	ErrHost     = errors.New("host is missing")
	ErrUserInfo = errors.New("credentials do not belong into a URL")
	ErrFragment = errors.New("a base URL has no fragment")
)

// ParseBase parses the base URL of an instance and brings it into its one form:
// no trailing slash, no trailing /v1.
func ParseBase(raw string) (*url.URL, error) {
	base, err := url.Parse(raw)
	if err != nil {
		// The parser's error quotes the URL, which may hold a password.
		return nil, fmt.Errorf("parse base URL: %w", ErrScheme)
	}
	switch {
	case base.User != nil:
		return nil, fmt.Errorf("parse base URL of host %s: %w", base.Host, ErrUserInfo)
	case base.Scheme != "http" && base.Scheme != "https":
		return nil, fmt.Errorf("parse base URL: scheme %q: %w", base.Scheme, ErrScheme)
	case base.Hostname() == "":
		return nil, fmt.Errorf("parse base URL: %w", ErrHost)
	case base.Fragment != "":
		return nil, fmt.Errorf("parse base URL of host %s: %w", base.Host, ErrFragment)
	}
	base.Path, base.RawPath = trimBase(base.Path), ""
	return base, nil
}

// trimBase drops what request paths bring themselves. It drops it as often as it
// is there, so that a trimmed path stays as it is.
func trimBase(path string) string {
	for {
		path = strings.TrimRight(path, "/")
		if !strings.HasSuffix(path, "/v1") {
			return path
		}
		path = strings.TrimSuffix(path, "/v1")
	}
}

// Instance returns the RoundTripper of one instance. It sends req to req.URL's
// path below the instance's base, whatever host req.URL names. Its errors are
// [Fault]s; answers of any status are returned as they are, for [Classify].
func (u *Upstream) Instance(t Target) (http.RoundTripper, error) {
	base, err := ParseBase(t.URL)
	if err != nil {
		return nil, fmt.Errorf("instance %s: %w", t.Name, err)
	}
	if t.KeyHeader != "" && refuseName(t.KeyHeader) != "" {
		return nil, fmt.Errorf("instance %s: key header %q %s", t.Name, t.KeyHeader, refuseName(t.KeyHeader))
	}
	u.redactor.Add(t.Key)
	in := &instance{up: u, target: t, base: base, transport: u.tcp}
	if base.Scheme == "http" && u.h2c != nil {
		in.transport = u.h2c
	}
	return in, nil
}

// instance is the RoundTripper of one instance.
type instance struct {
	up        *Upstream
	target    Target
	base      *url.URL
	transport *http.Transport
}

// call is one exchange.
type call struct {
	in     *instance
	parent context.Context // the caller's: tells who aborted
	ctx    context.Context // the exchange's, canceled by the idle timeout too
	cancel context.CancelCauseFunc
}

// RoundTrip sends req once. net/http by itself repeats a request only when a
// kept-alive connection failed before any byte of it was written, which cannot
// duplicate work; a request that may have arrived is never repeated here.
func (in *instance) RoundTrip(req *http.Request) (*http.Response, error) {
	c := &call{in: in, parent: req.Context()}
	c.ctx, c.cancel = context.WithCancelCause(c.parent)
	resp, err := in.transport.RoundTrip(in.outbound(c.ctx, req))
	if err != nil {
		fault := c.faultOf(err)
		c.cancel(context.Canceled)
		return nil, fault
	}
	if resp.StatusCode < http.StatusOK {
		return nil, c.switched(resp)
	}
	resp.Header = in.up.back.filter(resp.Header)
	resp.Trailer = nil
	resp.Body = newBody(c, resp.Body)
	resp.Request = req
	return resp, nil
}

// switched is the fault of an instance that changes to a protocol that nobody
// asked for. Its body would be the bare connection, which no context ends.
func (c *call) switched(resp *http.Response) *Fault {
	_ = resp.Body.Close() // there is nothing on it to lose
	c.cancel(context.Canceled)
	return &Fault{
		Class: Transient, Status: resp.StatusCode, Reason: "protocol", Instance: c.in.target.Name,
		Detail: "the instance switches protocols",
	}
}

// outbound returns the request that leaves.
func (in *instance) outbound(ctx context.Context, req *http.Request) *http.Request {
	out := req.WithContext(ctx)
	out.URL = in.address(req.URL)
	out.Host = in.base.Host
	out.RequestURI = ""
	out.Close = false
	out.TransferEncoding = nil
	out.Trailer = nil
	out.Header = in.up.forward.filter(req.Header)
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header["User-Agent"] = []string{"warmroute"}
	}
	out.Header["Accept-Encoding"] = []string{"identity"}
	if in.target.Rank != nil {
		out.Header.Set("X-Data-Parallel-Rank", strconv.Itoa(*in.target.Rank))
	}
	if !in.target.Key.IsZero() {
		if in.target.KeyHeader != "" {
			out.Header.Set(in.target.KeyHeader, in.target.Key.Reveal())
		} else {
			out.Header.Set("Authorization", "Bearer "+in.target.Key.Reveal())
		}
	}
	if out.Header.Get("Idempotency-Key") != "" || out.Header.Get("X-Idempotency-Key") != "" {
		// With such a header net/http repeats a POST whose connection broke after
		// it was written, if it can rewind the body.
		out.GetBody = nil
	}
	return out
}

// address joins the base with the path and query of u, dropping parameters that
// carry credentials.
func (in *instance) address(u *url.URL) *url.URL {
	out := *in.base
	path, raw := "/"+strings.TrimLeft(u.Path, "/"), ""
	if u.RawPath != "" {
		raw = in.base.EscapedPath() + "/" + strings.TrimLeft(u.RawPath, "/")
	}
	out.Path, out.RawPath = in.base.Path+path, raw
	if u.RawQuery == "" {
		return &out
	}
	query := u.Query()
	for name := range query {
		if slices.Contains(secretParams, strings.ToLower(name)) {
			query.Del(name)
		}
	}
	out.RawQuery = strings.Trim(in.base.RawQuery+"&"+query.Encode(), "&")
	return &out
}
