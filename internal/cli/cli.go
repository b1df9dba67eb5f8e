// Package cli is the composition root: it turns a command line into running
// parts. Nothing imports it but cmd/warmroute.
//
// Reading order: cli.go (the grammar and Main), serve.go (from flags to a
// configuration), gateway.go (which parts there are and how they are wired),
// server.go (the story of a gateway's life: listen, serve, drain, stop),
// reload.go, watch.go, rules.go, recorder.go, admin.go, snapshot.go, log.go; then
// the small commands, one file each.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/alecthomas/kong"
)

// Exit codes of [Main].
const (
	ExitOK    = 0 // everything asked for was done
	ExitFault = 1 // the command ran and could not do what was asked
	ExitUsage = 2 // the command line itself is wrong
)

// Env is what a command may touch of the world. Kong binds it, so every Run
// method may take it as an argument: func (c *XCmd) Run(env *Env) error.
type Env struct {
	Ctx    context.Context // cancelled by SIGINT and SIGTERM
	Stdout io.Writer       // results
	Stderr io.Writer       // logs and faults
}

// root is the grammar of the command line: a field is a command.
type root struct {
	Serve   ServeCmd   `cmd:"" help:"Run the gateway."`
	Sim     SimCmd     `cmd:"" help:"Run simulated engines, to try the gateway without a GPU."`
	Demo    DemoCmd    `cmd:"" help:"Show the gain: the same requests under several policies, on simulated engines."`
	Bench   BenchCmd   `cmd:"" help:"Compare policies and measure gateways."`
	Replay  ReplayCmd  `cmd:"" help:"Tell from a log of requests what each policy would have saved. Needs no GPU."`
	Config  ConfigCmd  `cmd:"" help:"Check, print or describe the configuration file."`
	Version VersionCmd `cmd:"" help:"Print the version and exit."`
}

// errReported ends a command with [ExitFault] when everything worth saying has
// been written already.
var errReported = errors.New("faults were reported")

// Main runs one command line, args being without the program's name, and
// returns the exit code. It returns when the command has ended and everything
// that it started has stopped; cancelling ctx asks for that.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	env := &Env{Ctx: ctx, Stdout: stdout, Stderr: stderr}
	var grammar root
	helped := false // kong has printed help, and would exit
	parser, err := kong.New(&grammar,
		kong.Name("warmroute"),
		kong.Description("A prefix-aware LLM gateway: every request goes to the instance that already holds its beginning."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(int) { helped = true }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Bind(env),
	)
	if err != nil {
		fmt.Fprintln(stderr, "BUG: command line grammar:", err)
		return ExitFault
	}
	parsed, err := parser.Parse(args)
	if helped {
		return ExitOK
	}
	if err != nil {
		fmt.Fprintln(stderr, "warmroute:", err)
		return ExitUsage
	}
	switch err := parsed.Run(); {
	case err == nil:
		return ExitOK
	case errors.Is(err, errReported):
		return ExitFault
	default:
		fmt.Fprintln(stderr, "warmroute:", err)
		return ExitFault
	}
}
