package cli

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

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
		return reloadResult{Result: "unchanged"}
	}
	if err := g.fleet.Apply(next.Pools); err != nil {
		return g.refuse(l, err)
	}
	g.settle(next)
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

// settleTime is how long files must be quiet before they are read: editors and
// Kubernetes change several at once.
const settleTime = 200 * time.Millisecond

// reloadLoop reloads at each hang-up signal and each change of the files that
// the configuration comes from, until ctx is done.
func (g *gateway) reloadLoop(ctx context.Context) {
	w := g.newWatcher()
	defer w.close()
	quiet := time.NewTimer(settleTime)
	quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.world.hangups:
			w.touched() // what is read now is not news later
			g.reload("signal")
			w.follow(g.cfg.Load())
		case _, ok := <-w.events():
			if ok {
				quiet.Reset(settleTime)
			}
		case err := <-w.errors():
			g.log.Warn("watching the configuration", slog.String("error", err.Error()))
		case <-quiet.C:
			if w.touched() {
				g.reload("file change")
				w.follow(g.cfg.Load())
			}
		}
	}
}

// watcher tells when the content of the configuration's files has changed. It
// watches their directories, because editors and Kubernetes replace files. Its
// methods belong to one goroutine.
type watcher struct {
	log  *slog.Logger
	fs   *fsnotify.Watcher // nil: changes are not noticed
	seen map[string]digest // what each file held when it was last looked at
}

// digest stands for the content of a file.
type digest [sha256.Size]byte

func (g *gateway) newWatcher() *watcher {
	w := &watcher{log: g.log, seen: make(map[string]digest)}
	cfg := g.cfg.Load()
	if !g.world.watch || cfg.Path() == "" {
		return w
	}
	fs, err := fsnotify.NewWatcher()
	if err != nil {
		g.log.Warn("changes of the configuration file are not noticed; send SIGHUP instead", slog.String("error", err.Error()))
		return w
	}
	w.fs = fs
	w.follow(cfg)
	return w
}

// follow makes the files of cfg those that are watched. What a file that was
// watched before held is not looked at again: it may have changed since it was
// read, and that is news.
func (w *watcher) follow(cfg *config.Config) {
	if w.fs == nil {
		return
	}
	seen := make(map[string]digest)
	for _, file := range append([]string{cfg.Path()}, cfg.Files()...) {
		old, ok := w.seen[file]
		if !ok {
			old = digestOf(file)
		}
		seen[file] = old
		dir := filepath.Dir(file)
		if slices.Contains(w.fs.WatchList(), dir) {
			continue
		}
		if err := w.fs.Add(dir); err != nil {
			w.log.Warn("changes of a file are not noticed; send SIGHUP instead", slog.String("file", file), slog.String("error", err.Error()))
		}
	}
	w.seen = seen
}

// touched reports whether a file holds something else than when it was last
// looked at.
func (w *watcher) touched() bool {
	touched := false
	for file, old := range w.seen {
		now := digestOf(file)
		touched = touched || now != old
		w.seen[file] = now
	}
	return touched
}

// digestOf reads a file. One that cannot be read counts as empty: the reload
// will say so.
func digestOf(file string) digest {
	b, err := os.ReadFile(file)
	if err != nil {
		b = nil
	}
	return sha256.Sum256(b)
}

// events and errors are those of the directories; nil channels when nothing is
// watched.
func (w *watcher) events() <-chan fsnotify.Event {
	if w.fs == nil {
		return nil
	}
	return w.fs.Events
}

func (w *watcher) errors() <-chan error {
	if w.fs == nil {
		return nil
	}
	return w.fs.Errors
}

func (w *watcher) close() {
	if w.fs != nil {
		_ = w.fs.Close() // the process is stopping
	}
}
