package index

import (
	"cmp"
	"iter"
	"slices"

	"github.com/warmroute/warmroute/prefix"
)

// counts are what an instance's statistics add up.
type counts struct {
	placed, reports, flushes uint64
	predicted, known         uint64 // blocks, of all placements
	expected, reported       uint64 // blocks, of those that had a report
}

// Stats are the numbers of a whole index.
type Stats struct {
	Bytes int64 // taken from the heap; never more than Limit
	Used  int64 // of these, in use
	Limit int64 // Config.Memory

	Blocks  int64 // distinct blocks known
	Runs    int64 // runs that they are stored in
	Holders int64 // pairs of run and instance
	Absent  int   // instances of a snapshot that have not joined

	Short     uint64 // placements whose prompt was shorter than one block: nothing of it can be matched
	Forgotten uint64 // runs forgotten to stay below Limit
	Truncated uint64 // placements of which only a beginning could be stored
	Refused   uint64 // joins beyond MaxInstances
}

// InstanceStats are the numbers of one instance. Block counts are totals since it joined, unless told otherwise.
type InstanceStats struct {
	ID       prefix.InstanceID // meaningless when Absent
	Name     string
	Absent   bool    // known from a snapshot, has not joined
	Capacity float64 // learned or told cache size in blocks; 0 while unknown

	KnownBlocks    int64 // now: given to it at some time and not forgotten
	ResidentBlocks int64 // now: believed to be in its cache, those included that the index forgot

	Placed  uint64 // requests
	Reports uint64 // answers that said what was cached
	Flushes uint64 // restarts and flushes, told or noticed

	PredictedBlocks uint64 // leading blocks believed to be cached, over all placements
	MatchedBlocks   uint64 // leading blocks known, over all placements
	ExpectedBlocks  uint64 // leading blocks believed to be cached, over the placements with a report
	ReportedBlocks  uint64 // blocks that those reports said were cached
}

// Stats returns the numbers of the index. It takes microseconds.
func (x *Index) Stats() Stats {
	x.mu.RLock()
	defer x.mu.RUnlock()
	s := Stats{
		Bytes:     x.bytesLocked(),
		Used:      x.tree.mem.live * 8,
		Limit:     x.cfg.Memory,
		Blocks:    x.tree.blocks,
		Runs:      int64(x.tree.runs),
		Holders:   x.tree.holders,
		Short:     x.short,
		Forgotten: x.gone,
		Truncated: x.cutOf,
		Refused:   x.full,
	}
	for _, in := range x.insts {
		if in != nil && !in.joined {
			s.Absent++
		}
	}
	return s
}

// bytesLocked returns what the index holds of the heap.
func (x *Index) bytesLocked() int64 {
	n := x.besideLocked() + x.tree.mem.bytes() + int64(cap(x.tree.table.pages))*4
	for _, in := range x.insts {
		if in != nil {
			n += int64(cap(in.stack.dir)) * 16
		}
	}
	return n
}

// besideLocked returns what the lists of instances take.
func (x *Index) besideLocked() int64 {
	const perInstance = 320 // with its name
	n := int64(cap(x.insts))*8 + int64(cap(x.edges))*12 + int64(cap(x.byID))*4
	for _, in := range x.insts {
		if in != nil {
			n += perInstance
		}
	}
	return n
}

// Instances yields the numbers of every instance, those that joined first, by id, then the others by name.
func (x *Index) Instances() iter.Seq[InstanceStats] {
	return func(yield func(InstanceStats) bool) {
		for _, s := range x.instanceStats() {
			if !yield(s) {
				return
			}
		}
	}
}

func (x *Index) instanceStats() []InstanceStats {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var all []InstanceStats
	for _, in := range x.insts {
		if in == nil || in.left {
			continue
		}
		all = append(all, InstanceStats{
			ID:              in.id,
			Name:            in.name,
			Absent:          !in.joined,
			Capacity:        in.learn.capacity,
			KnownBlocks:     in.held,
			ResidentBlocks:  int64(in.used),
			Placed:          in.counts.placed,
			Reports:         in.counts.reports,
			Flushes:         in.counts.flushes,
			PredictedBlocks: in.counts.predicted,
			MatchedBlocks:   in.counts.known,
			ExpectedBlocks:  in.counts.expected,
			ReportedBlocks:  in.counts.reported,
		})
	}
	slices.SortFunc(all, compareStats)
	return all
}

func compareStats(a, b InstanceStats) int {
	switch {
	case a.Absent != b.Absent:
		if a.Absent {
			return 1
		}
		return -1
	case a.Absent:
		return cmp.Compare(a.Name, b.Name)
	}
	return cmp.Compare(a.ID, b.ID)
}
