package cli

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/warmroute/warmroute/internal/config"
)

// settleTime is how long files must be quiet before they are read: editors and
// Kubernetes change several at once.
const settleTime = 200 * time.Millisecond

// reloadLoop reloads at each hang-up signal and each change of the files that
// the configuration comes from, until ctx is done.
func (g *gateway) reloadLoop(ctx context.Context) {
	w := g.newWatcher()
	defer w.close()
	// The first look is due at once: a file may have changed since it was read.
	quiet := time.NewTimer(settleTime)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.world.hangups:
			g.reload("signal")
		case <-g.replaced:
			w.follow(g.cfg.Load())
			quiet.Reset(settleTime)
		case _, ok := <-w.events():
			if ok {
				quiet.Reset(settleTime)
			}
		case err := <-w.errors():
			g.log.Warn("watching the configuration", slog.String("error", err.Error()))
		case <-quiet.C:
			if w.touched() {
				g.reload("file change")
			}
		}
	}
}

// watcher tells when the files of the configuration hold something else than
// what was read. It watches their directories, because editors and Kubernetes
// replace files. Its methods belong to one goroutine.
type watcher struct {
	log  *slog.Logger
	fs   *fsnotify.Watcher // nil: changes are not noticed
	seen config.Sources    // as last read, or last looked at
}

func (g *gateway) newWatcher() *watcher {
	w := &watcher{log: g.log}
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

// follow makes the files of cfg those that are watched.
func (w *watcher) follow(cfg *config.Config) {
	if w.fs == nil {
		return
	}
	w.seen = cfg.Sources()
	for file := range w.seen {
		dir := filepath.Dir(file)
		if slices.Contains(w.fs.WatchList(), dir) {
			continue
		}
		if err := w.fs.Add(dir); err != nil {
			w.log.Warn("changes of a file are not noticed; send SIGHUP instead", slog.String("file", file), slog.String("error", err.Error()))
		}
	}
}

// touched reports whether a file holds something else than when it was last read
// or looked at. One that cannot be read counts as empty: the reload will say so.
func (w *watcher) touched() bool {
	touched := false
	for file, before := range w.seen {
		b, err := os.ReadFile(file)
		if err != nil {
			b = nil
		}
		if now := sha256.Sum256(b); now != before {
			touched = true
			w.seen[file] = now
		}
	}
	return touched
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
