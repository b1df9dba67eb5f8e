package testkit

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// Network connects dialers and listeners of one test by pipes. Addresses are
// any text; host:port suits HTTP.
type Network struct {
	mu        sync.Mutex // guards below
	listeners map[string]*listener
	silent    map[string]bool
	dials     map[string]int
}

// NewNetwork returns a network without listeners: every dial is refused.
func NewNetwork() *Network {
	return &Network{listeners: make(map[string]*listener), silent: make(map[string]bool), dials: make(map[string]int)}
}

// Listen opens an address, also one that was closed before.
func (n *Network) Listen(addr string) net.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &listener{addr: address(addr), conns: make(chan net.Conn), closed: make(chan struct{}), net: n}
	n.listeners[addr] = l
	delete(n.silent, addr)
	return l
}

// Silence makes dials to addr wait for their own timeout, as for a machine that
// is gone.
func (n *Network) Silence(addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.silent[addr] = true
}

// Dials counts the dials to addr so far.
func (n *Network) Dials(addr string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dials[addr]
}

// DialContext connects to a listener; it suits http.Transport. Without one the
// error matches syscall.ECONNREFUSED.
func (n *Network) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	n.mu.Lock()
	n.dials[addr]++
	l, silent := n.listeners[addr], n.silent[addr]
	n.mu.Unlock()
	fail := func(err error) error { return &net.OpError{Op: "dial", Net: network, Addr: address(addr), Err: err} }
	if silent {
		<-ctx.Done()
		return nil, fail(ctx.Err())
	}
	refused := fail(os.NewSyscallError("connect", syscall.ECONNREFUSED))
	if l == nil {
		return nil, refused
	}
	a, b := net.Pipe()
	w := new(wire)
	select {
	case l.conns <- &Conn{Conn: b, wire: w}:
		return &Conn{Conn: a, wire: w}, nil
	case <-l.closed:
		return nil, refused
	case <-ctx.Done():
		return nil, fail(ctx.Err())
	}
}

// Serve runs a handler at addr until the test ends or the returned function is
// called, which also cuts the connections.
func (n *Network) Serve(t testing.TB, addr string, h http.Handler) (stop func()) {
	t.Helper()
	l := n.Listen(addr)
	srv := &http.Server{Handler: h}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(l) })
	stop = sync.OnceFunc(func() {
		_ = srv.Close()
		wg.Wait()
	})
	t.Cleanup(stop)
	return stop
}

type address string

func (address) Network() string  { return "pipe" }
func (a address) String() string { return string(a) }

type listener struct {
	addr   address
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	net    *Network
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Addr() net.Addr { return l.addr }

func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.net.mu.Lock()
		defer l.net.mu.Unlock()
		if l.net.listeners[string(l.addr)] == l {
			delete(l.net.listeners, string(l.addr))
		}
	})
	return nil
}

// wire is what both ends of a connection know.
type wire struct{ reset atomic.Bool }

// Conn is one end of a connection.
type Conn struct {
	net.Conn
	wire *wire
}

// Reset closes the connection such that both ends see ECONNRESET.
func (c *Conn) Reset() {
	c.wire.reset.Store(true)
	_ = c.Close()
}

// Read reads from the other end.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	return n, c.fail("read", err)
}

// Write writes to the other end.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	return n, c.fail("write", err)
}

// fail turns the end of the pipe into a reset when it was one.
func (c *Conn) fail(op string, err error) error {
	if (errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe)) && c.wire.reset.Load() {
		return &net.OpError{Op: op, Net: "pipe", Err: os.NewSyscallError(op, syscall.ECONNRESET)}
	}
	return err
}
