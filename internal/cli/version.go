package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// VersionCmd prints which build this is.
type VersionCmd struct{}

// Run implements the command.
func (VersionCmd) Run(env *Env) error {
	_, err := fmt.Fprintf(env.Stdout, "warmroute %s %s %s/%s\n", buildVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// buildVersion is the module version of a release, or the commit of a build
// from a working copy, "+dirty" when that copy had changes.
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	commit, dirty := "devel", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			commit = s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+dirty"
		}
	}
	return commit + dirty
}
