package cli

import (
	"cmp"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/warmroute/warmroute/internal/config"
	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/telemetry"
)

// ServeCmd runs the gateway.
type ServeCmd struct {
	Config string `short:"c" placeholder:"FILE" help:"Configuration file. Changes of it are put into force while the gateway runs."`

	Upstream  []string `short:"u" placeholder:"URL" sep:"none" group:"Quick start, without a file" help:"Base URL of an instance, http://host:port; repeat it for each."`
	Model     string   `placeholder:"NAME" group:"Quick start, without a file" help:"Model that the instances serve. Default: they are asked."`
	Policy    string   `placeholder:"NAME" group:"Quick start, without a file" help:"Routing policy. Default: cost."`
	Engine    string   `placeholder:"KIND" group:"Quick start, without a file" help:"Kind of server: auto, vllm, sglang, llamacpp or openai. Default: auto."`
	KVTokens  int      `name:"kv-tokens" placeholder:"N" group:"Quick start, without a file" help:"Size of each instance's KV cache in tokens. Default: it is learned."`
	APIKeyEnv string   `name:"api-key-env" placeholder:"VAR" group:"Quick start, without a file" help:"Environment variable that holds the instances' API key."`

	Listen      string `placeholder:"ADDR" group:"Overrides" help:"Address for clients. Default: :8080."`
	AdminListen string `placeholder:"ADDR" group:"Overrides" help:"Address for metrics, health and reloads. Default: 127.0.0.1:9091."`
	LogFormat   string `enum:",text,json" default:"" placeholder:"KIND" group:"Overrides" help:"text or json. Default: text."`
	LogLevel    string `enum:",debug,info,warn,error" default:"" placeholder:"LEVEL" group:"Overrides" help:"debug, info, warn or error. Default: info."`
}

// Run implements the command: read the configuration, build the parts, serve
// until told to stop, drain.
func (c *ServeCmd) Run(env *Env) error {
	cfg, err := c.load()
	if err != nil {
		return report(env, err)
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)

	out := newSieve(env.Stderr)
	g, err := newGateway(cfg, c.load, world{hangups: hangups, watch: true}, out)
	if err != nil {
		return report(env, err)
	}
	log.SetFlags(0)
	log.SetOutput(stray{g.log})
	version, goVersion := telemetry.Build()
	g.log.Info("warmroute", slog.String("version", version), slog.String("go", goVersion), slog.String("config", cmp.Or(cfg.Path(), "flags")))
	for _, w := range cfg.Warnings() {
		g.log.Warn("check the configuration", slog.String("warning", w))
	}
	if g.madeToken != "" {
		fmt.Fprintf(env.Stderr, "\nThe admin side can be reached by others and has no token. This one holds until the process ends:\n\n    %s\n\n", g.madeToken)
		out.learn(g.madeToken)
	}
	return g.run(env.Ctx)
}

// report writes all faults of a configuration, one a line.
func report(env *Env, err error) error {
	lines := faultLines(err)
	for _, line := range lines {
		fmt.Fprintln(env.Stderr, line)
	}
	if len(lines) > 1 {
		fmt.Fprintf(env.Stderr, "%d faults\n", len(lines))
	}
	return errReported
}

var (
	errNoSource   = errors.New("nothing to serve: give --config FILE, or --upstream URL for each instance")
	errTwoSources = errors.New("--config and the flags of the quick start exclude each other: put the instances into the file")
)

// load is the configuration that the command line asks for, as it is now.
func (c *ServeCmd) load() (*config.Config, error) {
	quick := len(c.Upstream) > 0 || c.Model != "" || c.Policy != "" || c.Engine != "" || c.KVTokens != 0 || c.APIKeyEnv != ""
	switch {
	case c.Config != "" && quick:
		return nil, errTwoSources
	case c.Config == "" && len(c.Upstream) == 0:
		return nil, errNoSource
	case c.Config == "":
		return c.quickStart()
	}
	cfg, err := config.Load(c.Config)
	if err != nil {
		return nil, err
	}
	return c.override(cfg)
}

// quickStart is a configuration made of flags alone.
func (c *ServeCmd) quickStart() (*config.Config, error) {
	cfg := config.Default()
	defaults := fleet.InstanceConfig{Engine: fleet.Engine(c.Engine), KVTokens: c.KVTokens}
	if c.APIKeyEnv != "" {
		key := os.Getenv(c.APIKeyEnv)
		if key == "" {
			return nil, fmt.Errorf("--api-key-env: environment variable %s is not set or empty", c.APIKeyEnv)
		}
		defaults.APIKey = fleet.Key(key)
	}
	pool := fleet.PoolConfig{Model: c.Model, Policy: c.Policy, Defaults: defaults}
	for _, raw := range c.Upstream {
		if !strings.Contains(raw, "://") {
			raw = "http://" + raw
		}
		if _, err := fleet.ParseURL(raw); err != nil {
			return nil, fmt.Errorf("--upstream: %w", err)
		}
		pool.Instances = append(pool.Instances, fleet.InstanceConfig{URL: raw})
	}
	cfg.Pools = []fleet.PoolConfig{pool}
	return c.override(&cfg)
}

// override puts the flags above the file, and judges the whole again.
func (c *ServeCmd) override(cfg *config.Config) (*config.Config, error) {
	cfg.Server.Listen = cmp.Or(c.Listen, cfg.Server.Listen)
	cfg.Admin.Listen = cmp.Or(c.AdminListen, cfg.Admin.Listen)
	cfg.Log.Format = cmp.Or(c.LogFormat, cfg.Log.Format)
	cfg.Log.Level = cmp.Or(c.LogLevel, cfg.Log.Level)
	if err := errors.Join(cfg.Validate()...); err != nil {
		return nil, err
	}
	return cfg, nil
}
