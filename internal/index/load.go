package index

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"

	"github.com/warmroute/warmroute/prefix"
)

// Load fills an empty index from what [Index.Save] wrote. Instances that have joined already get what the snapshot has under their name;
// the others' share waits for them to join, or for [Index.DropAbsent]. All blocks count as confirmed. What does not fit into the
// memory cap is left out, the oldest first.
//
// A snapshot that is damaged, cut off, of another version or of another block size is refused as a whole: the error says what is wrong and
// at which byte, and the index stays empty and usable. Other calls wait until Load returns, some 3 seconds for a full index of 256 MiB.
// Beside the memory of the index it needs some 16 bytes for each pair of run and instance meanwhile, and the snapshot itself, which
// [Index.LoadFile] does not.
func (x *Index) Load(r io.Reader) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return fmt.Errorf("load snapshot: %w", err)
	}
	return x.load(bytes.NewReader(b), int64(len(b)))
}

var errNotEmpty = errors.New("index is not empty")

// load is Load from a source of known size that can be read in any order.
func (x *Index) load(src io.ReaderAt, size int64) error {
	x.change.Lock()
	defer x.change.Unlock()
	l := &loader{x: x, src: src, size: size, owners: map[uint64]*instance{}, entries: map[*instance][]entry{}}
	if err := l.scan(); err != nil {
		return fmt.Errorf("load snapshot: %w", err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.tree.runs > 0 {
		return fmt.Errorf("load snapshot: %w", errNotEmpty)
	}
	before := slices.Clone(x.insts)
	learned := make([]learner, len(before))
	for i, in := range before {
		if in != nil {
			learned[i] = in.learn
		}
	}
	err := l.build()
	if err == nil {
		return nil
	}
	copy(x.insts, before)
	clear(x.insts[len(before):])
	x.reset()
	for i, in := range before {
		if in != nil {
			in.held, in.stack.dir, in.stack.total, in.learn = 0, nil, 0, learned[i]
			x.settleLocked(in)
		}
	}
	return fmt.Errorf("load snapshot: %w", err)
}

// loader reads one snapshot: first through to its end, to see that it is whole, then the runs backwards, so that the newest and their
// parents come first.
type loader struct {
	x       *Index
	src     io.ReaderAt
	size    int64
	buf     []byte
	frames  []frame // of runs
	names   []nameRecord
	starts  []int
	rec     record
	hs      []holder
	serial  int                  // of the record
	seen    [MaxInstances]int    // the last record that the instance held, by its number
	owners  map[uint64]*instance // by content
	full    bool                 // the memory cap is reached
	entries map[*instance][]entry
	slots   int // pages that the stacks will take
}

// frame is the place of a frame's header.
type frame struct{ at, length int64 }

// nameRecord is an instance of a snapshot.
type nameRecord struct {
	content uint64
	name    string
	learn   learner
}

// entry is a holder that was loaded, with its touch in the snapshot.
type entry struct {
	at    ref
	touch uint32
}

// faultAt is an error with the place of what is wrong.
func faultAt(at int64, format string, args ...any) error {
	return fmt.Errorf("offset %d: %w", at, fmt.Errorf(format, args...))
}

// read returns n bytes at an offset, in memory that the next read uses again.
func (l *loader) read(at, n int64, what string) ([]byte, error) {
	if n > l.size-at {
		return nil, faultAt(l.size, "snapshot ends in the middle of %s", what)
	}
	l.buf = slices.Grow(l.buf[:0], int(n))[:n]
	if _, err := l.src.ReadAt(l.buf, at); err != nil {
		return nil, faultAt(at, "read %s: %w", what, err)
	}
	return l.buf, nil
}

// scan checks the header and every frame, and notes where the runs are.
func (l *loader) scan() error {
	if err := l.header(); err != nil {
		return err
	}
	at := int64(headerBytes)
	runs := uint64(0)
	for {
		kind, payload, err := l.frame(at)
		if err != nil {
			return err
		}
		next := at + frameHeader + int64(len(payload))
		switch kind {
		case runsFrame:
			starts, err := l.records(payload, at)
			if err != nil {
				return err
			}
			runs += uint64(len(starts))
			l.frames = append(l.frames, frame{at, int64(len(payload))})
		case namesFrame:
			if err := l.instances(payload, at); err != nil {
				return err
			}
		case endFrame:
			return l.end(payload, at, runs)
		default:
			return faultAt(at, "unknown kind of frame %q", kind)
		}
		at = next
	}
}

func (l *loader) header() error {
	b, err := l.read(0, int64(headerBytes), "the header")
	if err != nil {
		return err
	}
	n := len(magic)
	if string(b[:n]) != magic {
		return faultAt(0, "not a snapshot of an index: begins with %q", b[:n])
	}
	if v := binary.LittleEndian.Uint32(b[n:]); v != version {
		return faultAt(int64(n), "snapshot has version %d, this program reads version %d", v, version)
	}
	if want, got := binary.LittleEndian.Uint32(b[n+8:]), crc32.Checksum(b[:n+8], castagnoli); got != want {
		return faultAt(int64(n+8), "checksum of the header is %08x, should be %08x", got, want)
	}
	if size := binary.LittleEndian.Uint32(b[n+4:]); int(size) != l.x.cfg.BlockBytes {
		return faultAt(int64(n+4), "snapshot has blocks of %d bytes, the index of %d", size, l.x.cfg.BlockBytes)
	}
	return nil
}

// frame reads the frame at an offset.
func (l *loader) frame(at int64) (kind byte, payload []byte, err error) {
	head, err := l.read(at, frameHeader, "a frame's header")
	if err != nil {
		return 0, nil, err
	}
	length, want := int64(binary.LittleEndian.Uint32(head[1:])), binary.LittleEndian.Uint32(head[5:])
	if length > maxFrame {
		return 0, nil, faultAt(at, "frame has %d bytes, at most %d are allowed", length, maxFrame)
	}
	b, err := l.read(at, frameHeader+length, "a frame")
	if err != nil {
		return 0, nil, err
	}
	if got := frameSum(b, b[frameHeader:]); got != want {
		return 0, nil, faultAt(at, "checksum of the frame is %08x, should be %08x", got, want)
	}
	return b[0], b[frameHeader:], nil
}

func (l *loader) end(payload []byte, at int64, runs uint64) error {
	if len(payload) != endBytes {
		return faultAt(at, "last frame has %d bytes, should have %d", len(payload), endBytes)
	}
	if n := binary.LittleEndian.Uint64(payload); n != uint64(at) {
		return faultAt(at, "last frame is at byte %d, should be at %d", at, n)
	}
	if n := binary.LittleEndian.Uint64(payload[8:]); n != runs {
		return faultAt(at, "snapshot has %d runs, should have %d", runs, n)
	}
	if rest := l.size - at - frameHeader - endBytes; rest > 0 {
		return faultAt(l.size-rest, "%d bytes follow the end", rest)
	}
	return nil
}

// records returns where the runs of a frame's payload start.
func (l *loader) records(payload []byte, at int64) ([]int, error) {
	l.starts = l.starts[:0]
	d := decoder{b: payload}
	for len(d.b) > d.at {
		l.starts = append(l.starts, d.at)
		if d.run(&l.rec); d.err != nil {
			return nil, faultAt(at+frameHeader+int64(d.at), "run %d of the frame: %w", len(l.starts), d.err)
		}
	}
	return l.starts, nil
}

// instances reads what the snapshot says of instances.
func (l *loader) instances(payload []byte, at int64) error {
	d := decoder{b: payload}
	for len(d.b) > d.at {
		n := nameRecord{content: d.uvarint(math.MaxUint32)}
		n.name = string(d.take(int(d.uvarint(maxNameBytes))))
		n.learn.told = int(d.uvarint(math.MaxInt32))
		n.learn.capacity, n.learn.proven = d.float(), d.float()
		if d.err == nil && slices.ContainsFunc(l.names, func(o nameRecord) bool { return o.content == n.content || o.name == n.name }) {
			d.err = fmt.Errorf("instance %q or content %d comes twice", n.name, n.content)
		}
		if d.err != nil {
			return faultAt(at+frameHeader+int64(d.at), "instance %d: %w", len(l.names)+1, d.err)
		}
		l.names = append(l.names, n)
	}
	return nil
}

// build enters everything into the index. Index.mu is held.
func (l *loader) build() error {
	for _, n := range l.names {
		l.adopt(n)
	}
	for _, f := range slices.Backward(l.frames) {
		_, payload, err := l.frame(f.at)
		if err != nil {
			return err
		}
		starts, err := l.records(payload, f.at)
		if err != nil {
			return err
		}
		for _, start := range slices.Backward(starts) {
			d := decoder{b: payload, at: start}
			d.run(&l.rec)
			l.graft(&l.rec)
		}
		if l.full {
			break
		}
	}
	for _, in := range l.x.insts {
		if in != nil {
			l.stack(in)
		}
	}
	return nil
}

// adopt finds or makes the instance of a name.
func (l *loader) adopt(n nameRecord) {
	x := l.x
	i := slices.IndexFunc(x.insts, func(in *instance) bool { return in != nil && !in.left && in.name == n.name })
	var in *instance
	if i >= 0 {
		in = x.insts[i]
	} else if in = x.newInstanceLocked(n.name); in == nil {
		x.full++
		return
	}
	told := in.learn.told
	in.learn = n.learn
	in.learn.tell(told)
	l.owners[n.content] = in
}

// graft adds what a run of the snapshot has and the tree has not. What is there already is newer.
func (l *loader) graft(rec *record) {
	t := &l.x.tree
	parent := ref(0)
	if !rec.root {
		if parent = t.lookupFirst(rec.first); parent == 0 {
			return // forgotten, or cut in another way, while the snapshot was written
		}
		if p := t.run(parent); t.block(p, p.len()-1) != rec.last {
			return
		}
	}
	blocks := rec.blocks
	for len(blocks) > 0 {
		at := t.lookup(parent, blocks[0])
		if at == 0 {
			break
		}
		n := t.common(t.run(at), blocks)
		if blocks = blocks[n:]; n < t.run(at).len() {
			return
		}
		parent = at
	}
	if len(blocks) == 0 {
		return
	}
	if hs := l.holders(rec, parent, len(rec.blocks)-len(blocks)); len(hs) > 0 {
		l.add(parent, blocks, hs)
	}
}

// holders returns the holders of what follows a run's first skip blocks, which must hold all of the parent and have touched it later.
func (l *loader) holders(rec *record, parent ref, skip int) []holder {
	t := &l.x.tree
	hs := l.hs[:0]
	l.serial++
	for _, r := range rec.holders {
		in := l.owners[r.content]
		n := r.blocks - skip
		if in == nil || n <= 0 {
			continue
		}
		touch := r.touch
		if parent != 0 {
			above, ok := t.hold(t.run(parent), in.number)
			if !ok || above.len() < t.run(parent).len() {
				continue
			}
			touch = min(touch, above.touch())
		}
		if l.seen[in.number] == l.serial {
			continue // twice
		}
		l.seen[in.number] = l.serial
		hs = append(hs, newHolder(in.number, n, false, touch))
	}
	l.hs = hs
	return hs
}

// add makes a run the oldest, if there is memory for it and for the slots that its holders will need.
func (l *loader) add(parent ref, blocks prefix.Chain, hs []holder) {
	x, t := l.x, &l.x.tree
	most := slices.MaxFunc(hs, func(a, b holder) int { return cmp.Compare(a.len(), b.len()) }).len()
	blocks = blocks[:most]
	n := need{}
	n[runClass]++
	if most > 1 {
		n[classOf(most-1)]++
	}
	for k := 2; k <= len(hs); k++ {
		if c := holdersClass(k); n[c] == 0 {
			n[c]++
		}
	}
	n[slotClass] += l.slots + len(hs)
	x.countBuckets(&n, 1)
	if l.full || !t.mem.fits(&n) {
		l.full = true
		return
	}
	at := t.add(parent, blocks)
	r := t.run(at)
	t.unlink(at, r)
	t.pushOldest(at, r)
	for _, h := range hs {
		t.setHold(r, h)
		in := x.insts[h.inst()]
		in.held += int64(h.len())
		es := l.entries[in]
		if len(es)%slotsPerPage == 0 {
			l.slots++
		}
		l.entries[in] = append(es, entry{at, h.touch()})
	}
}

// draft is a slot in the making.
type draft struct {
	touch       uint32 // in the snapshot
	tail        ref
	weight, end int
}

// stack numbers the touches of an instance anew and makes its slots. Entries are in the order of use, newest first, so that parents come
// before their children. A slot must be one way down the tree; where a snapshot says otherwise, the other branches get older slots.
func (l *loader) stack(in *instance) {
	x, t := l.x, &l.x.tree
	es := l.entries[in]
	slices.SortStableFunc(es, func(a, b entry) int { return cmp.Compare(b.touch, a.touch) })
	base := in.stack.next
	newest := base + uint32(len(es)) // number of the first draft; the others count down
	var drafts []draft
	for _, e := range es {
		r := t.run(e.at)
		h, _ := t.hold(r, in.number)
		i := len(drafts)
		if p := r.parent(); p != 0 {
			above, _ := t.hold(t.run(p), in.number)
			if d := int(newest - above.touch()); drafts[d].touch == e.touch && drafts[d].tail == p {
				i = d
			}
		}
		if i == len(drafts) {
			drafts = append(drafts, draft{touch: e.touch, end: t.depth(e.at)})
		}
		d := &drafts[i]
		d.tail = e.at
		d.weight += h.len()
		d.end += h.len()
		t.setHold(r, newHolder(in.number, h.len(), true, newest-uint32(i)))
	}
	for i, d := range slices.Backward(drafts) {
		sl := newSlot(newest - uint32(i))
		sl.setTail(d.tail)
		sl.setWeight(d.weight)
		sl.setEnd(d.end)
		in.stack.push(&t.mem, sl)
	}
	if len(es) > 0 {
		in.stack.next = newest + 1
		in.epoch++
	}
	x.settleLocked(in)
}

// depth returns the number of blocks above a run.
func (t *tree) depth(at ref) int {
	n := 0
	for at = t.run(at).parent(); at != 0; at = t.run(at).parent() {
		n += t.run(at).len()
	}
	return n
}

// lookupFirst returns a run that begins with block h, or 0.
func (t *tree) lookupFirst(h prefix.Block) ref {
	if t.table.buckets == 0 {
		return 0
	}
	at := t.head(t.table.bucket(h))
	for at != 0 && t.run(at).first() != h {
		at = t.run(at).chained()
	}
	return at
}
