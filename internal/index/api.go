package index

import (
	"io"
	"iter"

	"github.com/warmroute/warmroute/prefix"
)

// Index is shared by all.
type Index struct{ cfg Config }

// Held is what one instance holds of a chain.
type Held struct {
	Resident int32 // leading blocks believed to be in the instance's cache
	Known    int32 // leading blocks that it once held; those beyond Resident are believed to be evicted
}

// Placement is one request on one instance, from dispatch to end.
type Placement struct{ resident, known int32 }

// Resident returns the leading blocks that were believed to be cached at dispatch.
func (p *Placement) Resident() int { return int(p.resident) }

// Known returns the leading blocks that were known at dispatch.
func (p *Placement) Known() int { return int(p.known) }

// Report is what an engine said was cached.
type Report struct {
	CachedBlocks float64 // leading blocks of the chain that were cached at dispatch
	Slack        float64 // blocks by which CachedBlocks may be off either way; zero means DefaultSlack
}

// InstanceStats is the state of one instance.
type InstanceStats struct {
	ID              prefix.InstanceID
	Name            string
	Absent          bool
	Capacity        float64
	Resident, Known int64
	Flushes         uint64
}

// Stats is the state of the index.
type Stats struct {
	Bytes, Used, Limit    int64
	Blocks, Runs, Holders int64
}

func New(cfg Config) *Index                                                 { return &Index{cfg: cfg} }
func (x *Index) Join(id prefix.InstanceID, name string, capacityBlocks int) {}
func (x *Index) Leave(id prefix.InstanceID)                                 {}
func (x *Index) Flush(id prefix.InstanceID)                                 {}
func (x *Index) SetCapacity(id prefix.InstanceID, blocks int)               {}
func (x *Index) Match(c prefix.Chain, dst []Held) []Held                    { return dst }
func (x *Index) Place(id prefix.InstanceID, c prefix.Chain, p *Placement)   {}
func (x *Index) Confirm(p *Placement)                                       {}
func (x *Index) Finish(p *Placement, c prefix.Chain)                        {}
func (x *Index) TakeBack(p *Placement)                                      {}
func (x *Index) Learn(p *Placement, r Report)                               {}
func (x *Index) Stats() Stats                                               { return Stats{} }
func (x *Index) Instances() iter.Seq[InstanceStats]                         { return func(func(InstanceStats) bool) {} }
func (x *Index) DropAbsent() int                                            { return 0 }
func (x *Index) Save(w io.Writer) error                                     { return nil }
func (x *Index) Load(r io.Reader) error                                     { return nil }
func (x *Index) SaveFile(path string) error                                 { return nil }
func (x *Index) LoadFile(path string) error                                 { return nil }

// TokenReport turns an engine's count of cached tokens into a Report.
func TokenReport(cached, prompt int, promptBytes int64, blockBytes int) Report { return Report{} }
