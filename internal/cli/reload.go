package cli

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/warmroute/warmroute/internal/config"
)

// reloadResult is what became of a reload.
type reloadResult struct {
	Result       string   `json:"result"` // applied, unchanged or refused
	Changes      []string `json:"changes,omitzero"`
	NeedsRestart []string `json:"needs_restart,omitzero"` // changes among them that are not in force yet
	Faults       []string `json:"faults,omitzero"`        // why it was refused
}

// reload reads the configuration again and puts it into force. When it has
// faults the old one stays, whole. Counters, leases and running requests go on
// either way.
func (g *gateway) reload(trigger string) reloadResult {
	g.reloading.Lock()
	defer g.reloading.Unlock()
	l := g.log.With(slog.String("trigger", trigger))
	next, err := g.load()
	if err != nil {
		return g.refuse(l, err)
	}
	g.sieve.learn(next.Secrets()...)
	changes := config.Diff(g.cfg.Load(), next)
	if len(changes) == 0 {
		g.metrics.Reloaded("unchanged", time.Now())
		l.Info("configuration read again; nothing has changed")
		g.cfg.Store(next) // it may refer to other files
		g.told()
		return reloadResult{Result: "unchanged"}
	}
	if err := g.fleet.Apply(next.Pools); err != nil {
		return g.refuse(l, err)
	}
	g.settle(next)
	g.told()
	g.metrics.Reloaded("applied", time.Now())
	l.Info("configuration applied", slog.Any("changes", changes))
	for _, w := range next.Warnings() {
		l.Warn("check the configuration", slog.String("warning", w))
	}
	result := reloadResult{Result: "applied", Changes: changes, NeedsRestart: slices.DeleteFunc(slices.Clone(changes), config.Live)}
	if len(result.NeedsRestart) > 0 {
		l.Warn("some changes need a restart", slog.Any("changes", result.NeedsRestart))
	}
	return result
}

// told lets the watcher know that the configuration has been replaced.
func (g *gateway) told() {
	select {
	case g.replaced <- struct{}{}:
	default: // it has not looked yet, and will see this one too
	}
}

// refuse logs every fault of a configuration that is not put into force.
func (g *gateway) refuse(l *slog.Logger, err error) reloadResult {
	g.metrics.Reloaded("refused", time.Now())
	faults := faultLines(err)
	for _, f := range faults {
		l.Error("configuration refused; the old one stays in force", slog.String("fault", f))
	}
	return reloadResult{Result: "refused", Faults: faults}
}

// faultLines are the faults of a configuration, one each.
func faultLines(err error) []string {
	faults, ok := errors.AsType[config.Faults](err)
	if !ok {
		return strings.Split(err.Error(), "\n")
	}
	lines := make([]string, len(faults))
	for i, f := range faults {
		lines[i] = f.String()
	}
	return lines
}
