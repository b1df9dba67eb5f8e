package cli

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/warmroute/warmroute/internal/sim"
)

// SimCmd runs simulated engines.
type SimCmd struct {
	Engine   string  `default:"llama-3.1-8b-1xh100" placeholder:"PROFILE" help:"What to simulate: a model on its GPUs. Default: ${default}."`
	Model    string  `default:"llama-3.1-8b" placeholder:"NAME" help:"Name of the served model. Default: ${default}."`
	Replicas int     `short:"n" default:"1" placeholder:"N" help:"Number of engines, each with a cache of its own. Default: ${default}."`
	Listen   string  `default:"127.0.0.1:8001" placeholder:"ADDR" help:"Address of the first engine; the others have the ports after it. Default: ${default}."`
	KVTokens int     `name:"kv-tokens" placeholder:"N" help:"Size of each KV cache in tokens. Default: that of the profile."`
	Speed    float64 `default:"1" placeholder:"X" help:"Simulated seconds per second. Default: ${default}."`
	Report   bool    `default:"true" negatable:"" help:"Report cached tokens in usage, as vLLM does with --enable-prompt-tokens-details."`
	Faults   bool    `help:"Serve POST /sim/restart, /sim/kv_tokens and /sim/faults, to break things."`
	LogLevel string  `default:"info" enum:"debug,info,warn,error" placeholder:"LEVEL" help:"debug, info, warn or error. Default: ${default}."`
}

// Run implements the command: it serves until told to stop.
func (c *SimCmd) Run(env *Env) error {
	profile, err := sim.LookupProfile(c.Engine)
	if err != nil {
		return fmt.Errorf("--engine: %w", err)
	}
	switch {
	case c.Replicas < 1 || c.Replicas > maxReplicas:
		return fmt.Errorf("--replicas: %d; want 1 to %d", c.Replicas, maxReplicas)
	case c.KVTokens < 0:
		return fmt.Errorf("--kv-tokens: %d; want 0 (that of the profile) or more", c.KVTokens)
	case !(c.Speed > 0):
		return fmt.Errorf("--speed: %g; want more than 0", c.Speed)
	}
	level := new(slog.LevelVar)
	setLevel(level, c.LogLevel)
	l := newLogger(env.Stderr, "text", level)
	fleet, err := sim.Listen(c.Listen, c.Replicas, sim.ServerOptions{
		Profile: profile, Engine: sim.Options{KVTokens: c.KVTokens}, Model: c.Model, Speed: c.Speed,
		HidePromptDetails: !c.Report, Admin: c.Faults, Log: l,
	})
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	fleet.Grace = simGrace
	for _, url := range fleet.URLs() {
		l.Info("simulating", slog.String("engine", c.Engine), slog.String("model", c.Model), slog.String("url", url))
	}
	if err := fleet.Run(env.Ctx); err != nil && env.Ctx.Err() == nil {
		return err
	}
	return nil
}

// simGrace is how long requests may go on at shutdown.
const simGrace = 5 * time.Second

// maxReplicas keeps a slip of the finger from opening a million sockets.
const maxReplicas = 1000
