package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Replica is a server and where it listens.
type Replica struct {
	Listener net.Listener
	Server   *Server
}

// Fleet runs several replicas, alike or not.
type Fleet struct {
	replicas []Replica

	// Grace is how long requests may go on after the context of Run has ended. Zero cuts them at once.
	Grace time.Duration
}

// NewFleet returns a fleet of these replicas. It owns their listeners from now on.
func NewFleet(replicas ...Replica) *Fleet { return &Fleet{replicas: replicas} }

// Listen opens n listeners on addr, a host and a port, and returns a fleet of n servers with o, named o.Replica (default "sim")
// and their number, all precise. Ports count up from the given one; port 0 takes any that are free.
func Listen(addr string, n int, o ServerOptions) (*Fleet, error) {
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("split address %q: %w", addr, err)
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return nil, fmt.Errorf("parse port of %q: %w", addr, err)
	}
	name := o.Replica
	if name == "" {
		name = "sim"
	}
	o.Precise = true
	f := &Fleet{}
	for i := range n {
		at := port
		if port != 0 {
			at += i
		}
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(at)))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("listen for replica %d: %w", i, err), f.close())
		}
		o.Replica = name + "-" + strconv.Itoa(i)
		o.Seed++
		f.replicas = append(f.replicas, Replica{Listener: l, Server: NewServer(o)})
	}
	return f, nil
}

// Replicas returns the replicas.
func (f *Fleet) Replicas() []Replica { return f.replicas }

// URLs returns the base URLs of the replicas.
func (f *Fleet) URLs() []string {
	urls := make([]string, len(f.replicas))
	for i, r := range f.replicas {
		urls[i] = "http://" + r.Listener.Addr().String()
	}
	return urls
}

func (f *Fleet) close() error {
	var errs []error
	for _, r := range f.replicas {
		errs = append(errs, r.Listener.Close())
	}
	return errors.Join(errs...)
}

// Run serves until ctx ends or a listener fails. Then no new connection is taken, requests under way have [Fleet.Grace] to finish, and
// Run returns when everything it started has ended.
func (f *Fleet) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(f.replicas))
	var wg sync.WaitGroup
	for i, r := range f.replicas {
		wg.Go(func() {
			defer cancel()
			errs[i] = r.run(ctx, f.Grace)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// run serves one replica. The engine goes on while requests finish.
func (r *Replica) run(ctx context.Context, grace time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	engine, stopEngine := context.WithCancel(context.WithoutCancel(ctx))
	srv := &http.Server{Handler: r.Server, ReadHeaderTimeout: time.Minute}
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.Server.Run(engine) }) // ends without error
	wg.Go(func() {
		<-ctx.Done()
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		if srv.Shutdown(end) != nil {
			_ = srv.Close() // the grace is over
		}
		stopEngine()
	})
	err := srv.Serve(r.Listener)
	cancel()
	wg.Wait()
	r.Server.handlers.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve %s: %w", r.Server.Replica(), err)
}
