package proxy

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/warmroute/warmroute/internal/dialect"
)

// maxPooledBody bounds the buffers that are kept for later requests: a few huge
// prompts must not pin their memory.
const maxPooledBody = 4 << 20

// maxTrusted is how long a body is believed to be before it is there.
const maxTrusted = 1 << 20

var bodies = sync.Pool{New: func() any { return new(payload) }}

// payload is a request body in a pooled buffer. A transport may still be reading
// a body when its round trip has failed, so the buffer goes back only when every
// reader has been closed and the request itself has let go.
type payload struct {
	buf  bytes.Buffer
	refs atomic.Int32
}

func newPayload() *payload {
	p := bodies.Get().(*payload)
	p.buf.Reset()
	p.refs.Store(1)
	return p
}

// bytes returns the body; it is valid until release.
func (p *payload) bytes() []byte { return p.buf.Bytes() }

// release lets go of the body.
func (p *payload) release() {
	if p.refs.Add(-1) == 0 && p.buf.Cap() <= maxPooledBody {
		bodies.Put(p)
	}
}

// reader returns a reader of b, which is the payload's bytes or an edited copy
// of them.
func (p *payload) reader(b []byte) *payloadReader {
	p.refs.Add(1)
	return &payloadReader{owner: p, rest: b}
}

// payloadReader reads a payload until it is closed.
type payloadReader struct {
	owner *payload

	mu     sync.Mutex // guards below: a transport may close while it reads
	rest   []byte
	closed bool
}

// Read implements io.Reader.
func (r *payloadReader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, errors.New("read request body: closed")
	}
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// Close implements io.Closer. Only the first call counts.
func (r *payloadReader) Close() error {
	r.mu.Lock()
	closed := r.closed
	r.closed, r.rest = true, nil
	r.mu.Unlock()
	if !closed {
		r.owner.release()
	}
	return nil
}

// readBody reads the body of r into p, at most limit bytes of it, unpacked. A
// gzip body is unpacked here, because engines do not: they get the plain bytes.
func readBody(p *payload, r *http.Request, limit int64) error {
	src, packed := io.Reader(r.Body), &io.LimitedReader{R: r.Body, N: limit + 1}
	if r.ContentLength > limit {
		return tooLarge(limit)
	}
	switch enc := strings.ToLower(strings.TrimSpace(r.Header.Get("Content-Encoding"))); enc {
	case "", "identity":
		if r.ContentLength > 0 {
			// Some more than the length, so that the end is seen without growing. A
			// length alone must not take much memory.
			p.buf.Grow(int(min(r.ContentLength, maxTrusted)) + bytes.MinRead)
		}
	case "gzip", "x-gzip":
		// The packed size needs a bound of its own: gzip members may be empty.
		z, err := gzip.NewReader(packed)
		if err != nil {
			return err
		}
		src = z
	default:
		return &dialect.Error{
			Status: http.StatusUnsupportedMediaType, Type: invalidRequest, Code: "unsupported_content_encoding",
			Message: fmt.Sprintf("Content-Encoding %q is not supported; send the body plain or as gzip.", clip(enc)),
		}
	}
	n, err := p.buf.ReadFrom(io.LimitReader(src, limit+1))
	if n > limit || packed.N <= 0 {
		return tooLarge(limit)
	}
	if err == nil {
		// What is left of a packed body would keep the server from noticing that
		// the client leaves.
		_, err = io.Copy(io.Discard, io.LimitReader(r.Body, 1<<10))
	}
	return err
}

// isUnpacking reports whether reading a packed body failed because it is not
// what it says that it is. One that breaks off looks the same.
func isUnpacking(err error) bool {
	if _, ok := errors.AsType[flate.CorruptInputError](err); ok {
		return true
	}
	return errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// isBroken reports whether reading failed because of the connection.
func isBroken(err error) bool {
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) || errors.Is(err, http.ErrBodyReadAfterClose)
}

func tooLarge(limit int64) error {
	return &dialect.Error{
		Status: http.StatusRequestEntityTooLarge, Type: invalidRequest, Code: "request_too_large",
		Message: fmt.Sprintf("The body is longer than the limit of %d bytes.", limit),
	}
}

func badBody(code, message string) *dialect.Error {
	return &dialect.Error{Status: http.StatusBadRequest, Type: invalidRequest, Code: code, Message: message}
}

// checkContentType refuses bodies that do not say that they are JSON. A missing
// type passes: there are clients in the field that send none.
func checkContentType(h http.Header) error {
	v := h.Get("Content-Type")
	if v == "" || v == "application/json" {
		return nil
	}
	kind, _, err := mime.ParseMediaType(v)
	if err == nil && (kind == "application/json" || strings.HasSuffix(kind, "+json")) {
		return nil
	}
	return badBody("invalid_content_type",
		fmt.Sprintf("Content-Type is %q, not application/json; the body was not read (offset 0).", clip(v)))
}

// clip shortens what a client sent for an answer to it.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}
