package telemetry

import (
	"runtime"
	"runtime/debug"
)

// Build says which build of the gateway this is: the module version of a
// release or the commit of a build from a working copy ("+dirty" when that copy
// had changes), and the version of Go that compiled it.
func Build() (version, goVersion string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown", runtime.Version()
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v, info.GoVersion
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
	return commit + dirty, info.GoVersion
}
