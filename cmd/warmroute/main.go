// Command warmroute is a prefix-aware LLM gateway: it sends each request to
// the instance that already holds the KV cache of that request's beginning.
// Everything it does is in package cli.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/warmroute/warmroute/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(cli.Main(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
