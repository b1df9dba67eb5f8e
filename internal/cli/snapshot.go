package cli

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/warmroute/warmroute/internal/index"
	"github.com/warmroute/warmroute/internal/telemetry"
)

// snapshot keeps the index across restarts, so that a new process is not cold.
// Losing it costs hit rate for a while and nothing else, so none of its errors
// stops the gateway.
type snapshot struct {
	path    string // empty: the index is not kept
	index   *index.Index
	log     *slog.Logger
	metrics *telemetry.Metrics
}

// load reads the snapshot into the index, which must be empty.
func (s *snapshot) load() {
	if s.path == "" {
		return
	}
	path := slog.String("path", s.path)
	if info, err := os.Stat(s.path); err == nil && !info.Mode().IsRegular() {
		// A pipe would block the start. A device, such as the null one of somebody
		// who wants no snapshot, would be replaced by the first one.
		s.metrics.Snapshot("load", "error")
		s.log.Error("the path of the index snapshot is no regular file; the index is not kept", path, slog.String("mode", info.Mode().String()))
		s.path = ""
		return
	}
	switch err := s.index.LoadFile(s.path); {
	case err == nil:
		s.metrics.Snapshot("load", "ok")
		s.log.Info("index snapshot loaded", path, slog.Int64("blocks", s.index.Stats().Blocks))
	case errors.Is(err, os.ErrNotExist):
		s.metrics.Snapshot("load", "none")
		s.log.Info("no index snapshot yet; starting cold", path)
	default:
		s.metrics.Snapshot("load", "error")
		s.log.Warn("index snapshot cannot be used; starting cold, caches are learned anew", path, slog.String("error", err.Error()))
	}
}

// save writes the snapshot.
func (s *snapshot) save() {
	if s.path == "" {
		return
	}
	began := time.Now()
	if err := s.index.SaveFile(s.path); err != nil {
		s.metrics.Snapshot("save", "error")
		s.log.Warn("index snapshot was not saved", slog.String("path", s.path), slog.String("error", err.Error()))
		return
	}
	s.metrics.Snapshot("save", "ok")
	s.log.Debug("index snapshot saved", slog.String("path", s.path), slog.String("took", time.Since(began).String()))
}

// absence is how long the instances of a snapshot have to join. After it, what
// is known of the others only takes memory.
const absence = 10 * time.Minute

// run saves the snapshot now and then, until ctx is done, and once more. An
// interval of zero saves at the end only.
func (s *snapshot) run(ctx context.Context, every time.Duration) {
	defer s.save()
	gone := time.After(absence)
	var due <-chan time.Time
	if every > 0 && s.path != "" {
		t := time.NewTicker(every)
		defer t.Stop()
		due = t.C
	}
	for {
		select {
		case <-due:
			s.save()
		case <-gone:
			if n := s.index.DropAbsent(); n > 0 {
				s.log.Info("instances of the snapshot have not come back; dropped", slog.Int("instances", n))
			}
		case <-ctx.Done():
			return
		}
	}
}
