package cli

import (
	"fmt"
	"runtime"

	"github.com/warmroute/warmroute/internal/telemetry"
)

// VersionCmd prints which build this is.
type VersionCmd struct{}

// Run implements the command.
func (VersionCmd) Run(env *Env) error {
	version, goVersion := telemetry.Build()
	_, err := fmt.Fprintf(env.Stdout, "warmroute %s %s %s/%s\n", version, goVersion, runtime.GOOS, runtime.GOARCH)
	return err
}
