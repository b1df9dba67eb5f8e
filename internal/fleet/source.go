package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"
)

// sourceSpec says where instances come from: exactly one of its fields is set.
type sourceSpec struct {
	file string
	dns  DNSConfig
}

// key identifies a source; pools that name the same one share it.
func (s sourceSpec) key() string {
	if s.file != "" {
		return "file " + s.file
	}
	d := s.dns
	return fmt.Sprintf("dns %s %t %d %s %s", d.Name, d.isSRV(), d.Port, d.Scheme, d.Refresh)
}

func sourceSpecs(g PoolConfig) []sourceSpec {
	var specs []sourceSpec
	if g.File != "" {
		specs = append(specs, sourceSpec{file: g.File})
	}
	for _, d := range g.DNS {
		specs = append(specs, sourceSpec{dns: d})
	}
	return specs
}

// source is one place that instances are found in. Its fields are guarded by
// Fleet.mu, but for spec, which is set once.
type source struct {
	sourceSpec
	stop  context.CancelFunc // ends its loop; nil before Run started it
	found []InstanceConfig   // the last good view
	good  time.Time          // when that was
	err   error              // of the last look; nil when it was good
}

// sourcesLocked returns the sources that the groups name, the known ones among
// them with what they have found.
func (f *Fleet) sourcesLocked(groups []PoolConfig) map[string]*source {
	sources := make(map[string]*source)
	for _, g := range groups {
		for _, spec := range sourceSpecs(g) {
			key := spec.key()
			if known := f.sources[key]; known != nil {
				sources[key] = known
			} else if sources[key] == nil {
				sources[key] = &source{sourceSpec: spec}
			}
		}
	}
	return sources
}

// swapSourcesLocked makes sources the current ones and stops the others.
func (f *Fleet) swapSourcesLocked(sources map[string]*source) {
	for key, s := range f.sources {
		if sources[key] != s && s.stop != nil {
			s.stop()
		}
	}
	f.sources = sources
}

// follow watches a source until ctx is done.
func (f *Fleet) follow(ctx context.Context, s *source) {
	if s.file != "" {
		f.followFile(ctx, s)
		return
	}
	f.followDNS(ctx, s)
}

// report notes the outcome of a look at a source. A failed look, or one that
// finds nobody, changes nothing: the last good view stands, and probes tell who
// of it is well.
func (f *Fleet) report(ctx context.Context, s *source, found []InstanceConfig, err error) {
	if ctx.Err() != nil {
		return
	}
	f.mu.Lock()
	news := (err == nil) != (s.err == nil) || s.good.IsZero()
	s.err = err
	if err == nil {
		s.good = time.Now()
	}
	f.mu.Unlock()
	if err == nil {
		f.refresh(s, found)
	}
	if !news {
		return
	}
	level, msg := slog.LevelInfo, "instance source read"
	text := ""
	if err != nil {
		level, msg, text = slog.LevelWarn, "instance source failed; its last view stands", err.Error()
	}
	f.deps.Log.LogAttrs(ctx, level, msg, slog.String("source", s.key()), slog.Int("instances", len(found)), slog.String("error", text))
}

// jitter returns d, up to a tenth more or less, so that what starts together
// does not stay together.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}

// sleep waits for d and reports whether ctx still runs.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
