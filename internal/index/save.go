package index

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"

	"github.com/warmroute/warmroute/prefix"
)

const (
	magic        = "WARMIDX\n"
	version      = 1
	headerBytes  = len(magic) + 4 + 4 + 4
	frameHeader  = 1 + 4 + 4
	maxFrame     = 64 << 20
	runsFrame    = 'R'
	namesFrame   = 'I'
	endFrame     = 'E'
	endBytes     = 16
	saveRuns     = 512       // runs copied under one read lock: some 100 microseconds
	saveBytes    = 256 << 10 // or so many bytes
	maxNameBytes = 1 << 16
)

// castagnoli is the polynomial that processors compute by themselves.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Save writes a snapshot. It copies some hundred runs at a time, so that other calls never wait long, and what is touched meanwhile is
// written again: the snapshot is right as of its end. A second Save waits for the first.
//
// # Format
//
// All integers are little-endian; uvarints are those of encoding/binary; checksums are CRC-32C.
//
//	header   "WARMIDX\n", version uint32 (1), bytes per block uint32, checksum uint32 of the 16 bytes before
//	frames   kind byte, payload length uint32, checksum uint32 of kind, length and payload; payload
//
// Frames of kind 'R' hold runs, from the one used longest ago to the newest. A run may come again, then the later one holds; its parent,
// if it still exists, always comes after it.
//
//	byte 1, hashes of the parent's first and last block uint64 each; or byte 0 for the beginning of a chain
//	blocks uvarint (1 to 128), their hashes uint64 each
//	holders uvarint, each: content uvarint, leading blocks held uvarint, touch uvarint (larger is newer; comparable within one content)
//
// One frame of kind 'I' follows. It says whose the contents are; holders of others have left or were flushed while the snapshot was
// written. For each instance:
//
//	content uvarint, length of name uvarint, name
//	capacity told uvarint, capacity learned, largest need proven: IEEE 754 double as uint64 each, in blocks
//
// The last frame, kind 'E', has the number of bytes before it uint64, and the number of runs in all frames uint64. Nothing follows.
func (x *Index) Save(w io.Writer) error {
	x.saving.Lock()
	defer x.saving.Unlock()
	s := saver{x: x, w: w}
	if err := s.header(); err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	x.mu.Lock()
	x.tree.cursor = x.tree.oldest
	s.limit = 2*x.tree.runs + saveRuns
	x.mu.Unlock()
	err := s.content()
	if err != nil {
		x.mu.Lock()
		x.tree.cursor = 0
		x.mu.Unlock()
		return fmt.Errorf("save snapshot: %w", err)
	}
	return nil
}

// saver writes one snapshot.
type saver struct {
	x       *Index
	w       io.Writer
	buf     []byte // of one frame
	written uint64
	runs    uint64
	limit   int // runs after which frames grow, so that the save ends however busy the index is
}

func (s *saver) header() error {
	b := append([]byte(nil), magic...)
	b = binary.LittleEndian.AppendUint32(b, version)
	b = binary.LittleEndian.AppendUint32(b, uint32(s.x.cfg.BlockBytes))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return s.write(b)
}

func (s *saver) write(b []byte) error {
	n, err := s.w.Write(b)
	s.written += uint64(n)
	return err
}

// content writes all frames.
func (s *saver) content() error {
	atOnce := saveRuns
	for more := true; more; {
		s.begin(runsFrame)
		more = s.copyRuns(atOnce)
		if len(s.buf) == frameHeader {
			continue
		}
		if err := s.end(); err != nil {
			return err
		}
		if s.runs > uint64(s.limit) {
			atOnce *= 2
		}
	}
	s.begin(namesFrame)
	s.copyNames()
	if err := s.end(); err != nil {
		return err
	}
	before := s.written
	s.begin(endFrame)
	s.buf = binary.LittleEndian.AppendUint64(s.buf, before)
	s.buf = binary.LittleEndian.AppendUint64(s.buf, s.runs)
	return s.end()
}

// begin starts a frame.
func (s *saver) begin(kind byte) {
	s.buf = append(s.buf[:0], kind, 0, 0, 0, 0, 0, 0, 0, 0)
}

// end writes the frame.
func (s *saver) end() error {
	binary.LittleEndian.PutUint32(s.buf[1:], uint32(len(s.buf)-frameHeader))
	binary.LittleEndian.PutUint32(s.buf[5:], frameSum(s.buf[:5], s.buf[frameHeader:]))
	return s.write(s.buf)
}

// frameSum is the checksum of a frame: of its kind and length, and of its payload.
func frameSum(head, payload []byte) uint32 {
	return crc32.Update(crc32.Checksum(head[:5], castagnoli), castagnoli, payload)
}

// copyRuns appends up to n runs to the frame and reports whether there are more. Writers keep out and move the cursor along when they
// move its run; readers do not look at it.
func (s *saver) copyRuns(n int) bool {
	x := s.x
	x.mu.RLock()
	defer x.mu.RUnlock()
	t := &x.tree
	grown := n > saveRuns
	for ; n > 0 && t.cursor != 0 && len(s.buf) < maxFrame/2 && (grown || len(s.buf) < saveBytes); n-- {
		r := t.run(t.cursor)
		s.copyRun(r)
		t.cursor = r.newer()
	}
	return t.cursor != 0
}

// copyRun appends a run that somebody holds.
func (s *saver) copyRun(r *run) {
	x, t := s.x, &s.x.tree
	holders := 0
	for _, w := range t.holdersOf(r) {
		if in := x.insts[holder(w).inst()]; in.keeps(holder(w)) {
			holders++
		}
	}
	if holders == 0 {
		return
	}
	s.runs++
	if p := r.parent(); p != 0 {
		above := t.run(p)
		s.buf = append(s.buf, 1)
		s.buf = binary.LittleEndian.AppendUint64(s.buf, uint64(above.first()))
		s.buf = binary.LittleEndian.AppendUint64(s.buf, uint64(t.block(above, above.len()-1)))
	} else {
		s.buf = append(s.buf, 0)
	}
	s.buf = binary.AppendUvarint(s.buf, uint64(r.len()))
	for i := range r.len() {
		s.buf = binary.LittleEndian.AppendUint64(s.buf, uint64(t.block(r, i)))
	}
	s.buf = binary.AppendUvarint(s.buf, uint64(holders))
	for _, w := range t.holdersOf(r) {
		h := holder(w)
		if in := x.insts[h.inst()]; in.keeps(h) {
			s.buf = binary.AppendUvarint(s.buf, uint64(in.uid))
			s.buf = binary.AppendUvarint(s.buf, uint64(h.len()))
			s.buf = binary.AppendUvarint(s.buf, uint64(h.touch()))
		}
	}
}

// keeps reports whether a holder is neither flushed nor of an instance that left, and only waits to be swept out.
func (in *instance) keeps(h holder) bool { return !in.left && h.touch() >= in.since }

// copyNames appends what is known of the instances.
func (s *saver) copyNames() {
	s.x.mu.RLock()
	defer s.x.mu.RUnlock()
	for _, in := range s.x.insts {
		if in == nil || in.left || len(in.name) > maxNameBytes {
			continue
		}
		s.buf = binary.AppendUvarint(s.buf, uint64(in.uid))
		s.buf = binary.AppendUvarint(s.buf, uint64(len(in.name)))
		s.buf = append(s.buf, in.name...)
		s.buf = binary.AppendUvarint(s.buf, uint64(in.learn.told))
		s.buf = binary.LittleEndian.AppendUint64(s.buf, math.Float64bits(in.learn.capacity))
		s.buf = binary.LittleEndian.AppendUint64(s.buf, math.Float64bits(in.learn.proven))
	}
}

// record is a run of a snapshot.
type record struct {
	root        bool
	first, last prefix.Block // of the parent
	blocks      prefix.Chain
	holders     []heldRecord
}

// heldRecord is a holder of a run of a snapshot.
type heldRecord struct {
	content uint64
	blocks  int
	touch   uint32
}
