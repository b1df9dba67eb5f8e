package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/warmroute/warmroute/internal/config"
	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/sim"
)

// demoStage is a fresh fleet of simulated engines and a fresh gateway in front
// of it.
type demoStage struct {
	policy  string
	gateway *gateway
	admin   string // address of the admin side; empty when it is off
	engines []string
	client  *http.Client
	cancel  context.CancelFunc
	ended   chan error // what the gateway and the engines returned, one each
}

// openStage starts engines and gateway, and waits until all engines are ready.
func (d *demo) openStage(policy string) (*demoStage, error) {
	engines, err := sim.Listen("127.0.0.1:0", d.Instances, sim.ServerOptions{
		Profile: d.profile, Engine: sim.Options{KVTokens: demoKVTokens}, Model: demoModel, Speed: d.Speed,
	})
	if err != nil {
		return nil, fmt.Errorf("start engines: %w", err)
	}
	engines.Grace = simGrace
	cfg := d.config(policy, engines.URLs())
	s := &demoStage{policy: policy, engines: engines.URLs(), ended: make(chan error, 2)}
	w := world{listen: s.listener(d)}
	s.gateway, err = newGateway(cfg, func() (*config.Config, error) { return cfg, nil }, w, newSieve(d.env.Stderr))
	if err != nil {
		return nil, fmt.Errorf("start gateway: %w", err)
	}
	// Every connection that a request may want is kept, so that none pays for a
	// handshake of the demo's own client.
	s.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true}}
	ctx, cancel := context.WithCancel(context.WithoutCancel(d.env.Ctx))
	s.cancel = cancel
	// The engines outlive the gateway's drain.
	work, stopEngines := context.WithCancel(context.WithoutCancel(ctx))
	go func() { s.ended <- engines.Run(work) }()
	go func() {
		defer stopEngines()
		s.ended <- s.gateway.run(ctx)
	}()
	if err := s.ready(d); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// config is that of `warmroute serve` in front of the engines, but for what a
// short demo needs otherwise: quick shutdown, a quiet log, no snapshot.
func (d *demo) config(policy string, urls []string) *config.Config {
	cfg := config.Default()
	cfg.Server.Listen = d.address
	cfg.Server.DrainDelay, cfg.Server.Grace = 0, simGrace
	if d.Once {
		cfg.Admin.Listen = ""
	}
	cfg.Log.Level, cfg.Log.Access = "error", false
	cfg.Routing.Policy = policy
	// The bound on holding requests is meant in the engines' time.
	cfg.Routing.MaxHold = time.Duration(float64(cfg.Routing.MaxHold) / d.Speed)
	pool := fleet.PoolConfig{Model: demoModel}
	for i, url := range urls {
		pool.Instances = append(pool.Instances, fleet.InstanceConfig{Name: fmt.Sprintf("sim-%d", i), URL: url, Engine: fleet.VLLM})
	}
	cfg.Pools = []fleet.PoolConfig{pool}
	return &cfg
}

// listener opens the gateway's sockets. The clients' address has been claimed
// before; the admin side takes any free port when its own is taken.
func (s *demoStage) listener(d *demo) func(context.Context, string) (net.Listener, error) {
	return func(ctx context.Context, address string) (net.Listener, error) {
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", address)
		if address == d.address {
			return l, err
		}
		if errors.Is(err, syscall.EADDRINUSE) {
			l, err = lc.Listen(ctx, "tcp", "127.0.0.1:0")
		}
		if err == nil {
			s.admin = l.Addr().String()
		}
		return l, err
	}
}

// demoStartTimeout bounds the start of a stage.
const demoStartTimeout = 20 * time.Second

func (s *demoStage) ready(d *demo) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(demoStartTimeout)
	for {
		if m, ok := s.gateway.model(demoModel); ok && m.Ready == d.Instances {
			return nil
		}
		select {
		case <-tick.C:
		case err := <-s.ended:
			s.ended <- err
			return fmt.Errorf("start gateway: %w", err)
		case <-timeout:
			return errors.New("start gateway: the simulated engines do not get ready")
		case <-d.env.Ctx.Done():
			return errors.New("interrupted before the comparison was complete")
		}
	}
}

// close stops the gateway, then the engines, and waits for both.
func (s *demoStage) close() error {
	s.client.CloseIdleConnections()
	s.cancel()
	return errors.Join(<-s.ended, <-s.ended)
}

// claimAddress finds the address that all gateways of the demo listen on, one
// after the other.
func (c *DemoCmd) claimAddress(ctx context.Context) (string, error) {
	var lc net.ListenConfig
	try := func(address string) (string, error) {
		l, err := lc.Listen(ctx, "tcp", address)
		if err != nil {
			return "", err
		}
		defer l.Close()
		return l.Addr().String(), nil
	}
	switch {
	case c.Listen != "":
		address, err := try(c.Listen)
		if err != nil {
			return "", fmt.Errorf("--listen: %w", err)
		}
		return address, nil
	case !c.Once:
		if address, err := try(demoDefaultListen); err == nil {
			return address, nil
		}
	}
	address, err := try("127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return address, nil
}

// url is the gateway's base URL as a client on this machine writes it.
func (s *demoStage) url() string { return "http://" + reachable(s.gateway.cfg.Load().Server.Listen) }

// reachable puts this machine's name where an address means all interfaces.
func reachable(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}
