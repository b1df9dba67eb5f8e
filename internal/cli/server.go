package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/warmroute/warmroute/internal/fleet"
)

// errStopped is the cause of the contexts that end with the gateway.
var errStopped = errors.New("the gateway has stopped")

// run serves until ctx is done, then drains and stops all that it started. It
// runs once. The error says why serving could not begin or broke off.
func (g *gateway) run(ctx context.Context) error {
	cfg := g.cfg.Load()
	listeners, err := g.listen(ctx, cfg.Server.Listen, cfg.Admin.Listen)
	if err != nil {
		return err
	}
	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	serving, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(errStopped)
	data := g.server(serving, g.dataHandler())
	admin := g.server(work, g.adminHandler())

	var background, servers sync.WaitGroup
	background.Go(func() { _ = g.fleet.Run(work) }) // its error is the cause that stop gives
	background.Go(func() { g.snapshot.run(work, cfg.Cache.SnapshotEvery) })
	background.Go(func() { g.reloadLoop(work) })
	if t := g.recorder.trace; t != nil {
		background.Go(func() { t.run(work) })
	}
	broken := make(chan error, 2)
	serve := func(s *http.Server, l net.Listener) {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			broken <- fmt.Errorf("serve %s: %w", l.Addr(), err)
		}
	}
	servers.Go(func() { serve(data, listeners.data) })
	if listeners.admin != nil {
		servers.Go(func() { serve(admin, listeners.admin) })
	}
	g.log.Info("serving", slog.String("listen", listeners.data.Addr().String()), slog.String("admin", listeners.adminAddress()),
		slog.Int("models", len(g.fleet.Models())))

	select {
	case <-ctx.Done():
		g.drain(data, cut)
	case err = <-broken:
		g.log.Error("serving broke off", slog.String("error", err.Error()))
		cut(err)
		_ = data.Close() // nothing can be done about what it says
	}
	// Metrics and health are served to the end of the drain: it is watched.
	_ = admin.Close()
	servers.Wait()
	stop(errStopped)
	background.Wait()
	g.upstream.Close()
	g.log.Info("stopped", slog.String("after", time.Since(g.started).Round(time.Millisecond).String()))
	return err
}

// listeners are the two sockets of a gateway.
type listeners struct {
	data  net.Listener
	admin net.Listener // nil when it is turned off
}

func (l listeners) adminAddress() string {
	if l.admin == nil {
		return "off"
	}
	return l.admin.Addr().String()
}

// listen opens both sockets or none.
func (g *gateway) listen(ctx context.Context, data, admin string) (l listeners, err error) {
	open := g.world.listen
	if open == nil {
		open = func(ctx context.Context, address string) (net.Listener, error) {
			var lc net.ListenConfig
			return lc.Listen(ctx, "tcp", address)
		}
	}
	if l.data, err = open(ctx, data); err != nil {
		return l, fmt.Errorf("listen for clients: %w", err)
	}
	if admin == "" {
		return l, nil
	}
	if l.admin, err = open(ctx, admin); err != nil {
		return l, errors.Join(fmt.Errorf("listen for the admin side: %w", err), l.data.Close())
	}
	return l, nil
}

// server returns an HTTP server whose requests end with ctx. It has no write
// timeout: streams last as long as they last, and package proxy bounds each
// write. The read timeout is that of package proxy too, which takes it off once
// it has the body; it is here for the others, because before an answer leaves
// the server waits for what was not read of a body.
func (g *gateway) server(ctx context.Context, h http.Handler) *http.Server {
	cfg := g.cfg.Load()
	c := cfg.Server
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: c.HeaderTimeout,
		ReadTimeout:       cfg.Proxy.ReadTimeout,
		IdleTimeout:       c.IdleTimeout,
		MaxHeaderBytes:    int(c.MaxHeaderBytes),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          slog.NewLogLogger(g.log.Handler(), slog.LevelDebug), // clients that speak no HTTP
	}
}

// goodbye is how long requests have to say their last after the grace period,
// such as an error event that ends a stream.
const goodbye = time.Second

// drain lets load balancers see that readiness fails, then refuses new requests,
// then waits for the running ones, and cuts what is left after the grace period.
func (g *gateway) drain(data *http.Server, cut context.CancelCauseFunc) {
	c := g.cfg.Load().Server
	g.draining.Store(true)
	g.log.Info("shutting down: readiness fails, new requests are still served", slog.String("for", c.DrainDelay.String()), slog.Int64("running", g.recorder.running.Load()))
	time.Sleep(c.DrainDelay)

	g.log.Info("shutting down: new requests are refused, running ones finish", slog.String("grace", c.Grace.String()), slog.Int64("running", g.recorder.running.Load()))
	if shutdown(data, c.Grace) == nil {
		return
	}
	g.log.Warn("the grace period is over; cutting what still runs", slog.Int64("running", g.recorder.running.Load()))
	g.cutStreams()
	if shutdown(data, goodbye) == nil {
		return
	}
	cut(errStopped)
	_ = data.Close() // nothing can be done about what it says
}

// cutStreams ends what runs on all instances, as if they had left: clients get
// an error event in their own dialect. Ending their requests would look like
// their own leaving, and tell them nothing.
func (g *gateway) cutStreams() {
	for v := range g.fleet.All() {
		g.proxy.Watch(fleet.Event{Kind: fleet.Left, ID: v.ID, Name: v.Name})
	}
}

func shutdown(s *http.Server, within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return s.Shutdown(ctx)
}
