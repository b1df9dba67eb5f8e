// Package index remembers which instance holds which blocks.
//
// Nobody tells a gateway what an engine's KV cache holds or evicts. The index models it: every dispatch and every end of a request touches
// a chain of blocks on one instance, and an engine evicts what was touched longest ago. A block's stack distance is the number of distinct
// blocks touched since, and it is resident while that is below the instance's capacity, which is learned from what answers report as
// cached. Blocks beyond the capacity stay known, so that a capacity that is too small is found out.
//
// # Reading order
//
//   - index.go: [Index], instances coming and going, and [Index.Match], the lookup of every request.
//   - place.go: the life of a request: [Index.Place], [Index.Confirm], [Index.Finish], [Index.TakeBack].
//   - learn.go: what a [Report] says about the capacity, and how far it is believed.
//   - run.go, table.go, order.go: the compressed tree of runs, its hash table, its order of use.
//   - stack.go: the touches of one instance and their stack distances.
//   - room.go: forgetting, so that the memory cap holds before each insertion.
//   - arena.go: the pages that everything above is stored in.
//   - save.go, load.go, decode.go, file.go: the snapshot; the format is described at [Index.Save].
//   - config.go, stats.go: settings and numbers.
//
// # Rules that always hold
//
//   - An instance that holds a block of a chain holds every block before it, and touched those at the same time or later.
//   - A run has at least one holder, and one of them holds all of it. A run with children is held in full by all their holders.
//   - In the order of use a parent is newer than its children.
//   - The weight of a slot is the number of blocks that it touched last, forgotten ones included.
//   - What the index takes from the heap never exceeds [Config.Memory], not even for a moment; loading and saving need a little beside it.
//
// The package is pure: it reads no clock, starts no goroutine and logs nothing. All methods of [Index] may be called concurrently.
package index
