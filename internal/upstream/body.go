package upstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"time"
)

var errBodyIdle = errors.New("no bytes within body_idle_timeout")

// body is a response body: it ends silent streams, names its errors, and keeps
// the instance's credential from coming back in an answer.
type body struct {
	call  *call
	src   io.ReadCloser
	mask  masker
	timer *time.Timer // nil without an idle timeout
}

func newBody(c *call, src io.ReadCloser) *body {
	b := &body{call: c, src: src, mask: newMasker(c.in.target.Key)}
	if d := c.in.up.cfg.BodyIdleTimeout; d > 0 {
		b.timer = time.AfterFunc(d, func() { c.cancel(errBodyIdle) })
		b.timer.Stop()
	}
	return b
}

// Read reads the next bytes. Errors other than io.EOF are Faults. Waiting is
// timed only while somebody reads: a slow client is not a silent instance.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.mask.read(p, b.readTimed)
	if err != nil && !errors.Is(err, io.EOF) && FaultOf(err) == nil {
		err = b.call.faultOf(err)
	}
	return n, err
}

func (b *body) readTimed(p []byte) (int, error) {
	if b.timer == nil {
		return b.src.Read(p)
	}
	b.timer.Reset(b.call.in.up.cfg.BodyIdleTimeout)
	n, err := b.src.Read(p)
	b.timer.Stop()
	return n, err
}

// Close ends the exchange at once, whatever was read.
func (b *body) Close() error {
	if b.timer != nil {
		b.timer.Stop()
	}
	err := b.src.Close()
	b.call.cancel(context.Canceled)
	return err
}

// minMaskBytes is the shortest credential that is masked in answers. A random
// key of this length does not occur by chance, so other answers stay exact.
const minMaskBytes = 12

// masker overwrites a secret in a byte stream with as many asterisks, wherever
// reads happen to cut it; lengths, and thus Content-Length, stay true. It holds
// bytes back only while they may be the beginning of the secret, which the end
// of an SSE event never is.
type masker struct {
	secret []byte
	held   []byte // a suffix of what was read that is a proper prefix of secret
	ready  []byte // clean bytes for the next reads
	err    error  // comes after ready
}

func newMasker(s Secret) masker {
	if v := s.Reveal(); len(v) >= minMaskBytes {
		return masker{secret: []byte(v)}
	}
	return masker{}
}

func (m *masker) read(p []byte, src func([]byte) (int, error)) (int, error) {
	if m.secret == nil || len(p) == 0 {
		return src(p)
	}
	for {
		if len(m.ready) > 0 {
			n := copy(p, m.ready)
			m.ready = m.ready[n:]
			return n, nil
		}
		if m.err != nil {
			return 0, m.err
		}
		if n := m.fill(p, src); n > 0 {
			return n, nil
		}
	}
}

// fill reads once. Without held bytes it works in p and returns how many bytes
// of p are clean; with held bytes they go to m.ready.
func (m *masker) fill(p []byte, src func([]byte) (int, error)) int {
	if len(m.held) == 0 {
		n, err := src(p)
		keep := m.clean(p[:n])
		m.held = append(m.held[:0], p[keep:n]...)
		m.fail(err)
		return keep
	}
	buf := make([]byte, len(m.held)+len(p))
	k := copy(buf, m.held)
	n, err := src(buf[k:])
	buf = buf[:k+n]
	keep := m.clean(buf)
	m.ready, m.held = buf[:keep], append(m.held[:0], buf[keep:]...)
	m.fail(err)
	return 0
}

// fail notes the end of the stream: what is held cannot become the secret any
// more.
func (m *masker) fail(err error) {
	if err == nil {
		return
	}
	m.err = err
	m.ready = append(m.ready, m.held...)
	m.held = nil
}

// clean masks whole secrets in b and returns the length without a suffix that
// may be the beginning of one.
func (m *masker) clean(b []byte) int {
	for from := 0; ; {
		i := bytes.Index(b[from:], m.secret)
		if i < 0 {
			break
		}
		for j := range m.secret {
			b[from+i+j] = '*'
		}
		from += i + len(m.secret)
	}
	for k := min(len(m.secret)-1, len(b)); k > 0; k-- {
		if bytes.HasSuffix(b, m.secret[:k]) {
			return len(b) - k
		}
	}
	return len(b)
}
