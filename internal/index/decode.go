package index

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/warmroute/warmroute/prefix"
)

var (
	errShort  = errors.New("ends too early")
	errNumber = errors.New("malformed number")
)

// decoder reads the payload of a frame. After an error, which it keeps, everything is zero.
type decoder struct {
	b   []byte
	at  int
	err error
}

func (d *decoder) take(n int) []byte {
	if d.err != nil {
		return nil
	}
	if n > len(d.b)-d.at {
		d.err = errShort
		return nil
	}
	d.at += n
	return d.b[d.at-n : d.at]
}

func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) uint64() uint64 {
	if b := d.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// float returns a number that is finite and not negative.
func (d *decoder) float() float64 {
	f := math.Float64frombits(d.uint64())
	if d.err == nil && !(f >= 0 && f <= math.MaxInt32) {
		d.err = fmt.Errorf("%g is not a number of blocks", f)
		return 0
	}
	return f
}

func (d *decoder) uvarint(most uint64) uint64 {
	if d.err != nil {
		return 0
	}
	v, n := binary.Uvarint(d.b[d.at:])
	switch {
	case n == 0:
		d.err = errShort
	case n < 0:
		d.err = errNumber
	case v > most:
		d.err = fmt.Errorf("%d is more than %d", v, most)
	default:
		d.at += n
		return v
	}
	return 0
}

// run reads a run into rec, in whose memory it puts the lists.
func (d *decoder) run(rec *record) {
	*rec = record{blocks: rec.blocks[:0], holders: rec.holders[:0]}
	switch kind := d.byte(); {
	case kind == 0:
		rec.root = true
	case kind == 1:
		rec.first, rec.last = prefix.Block(d.uint64()), prefix.Block(d.uint64())
	case d.err == nil:
		d.err = fmt.Errorf("unknown kind of run %d", kind)
	}
	n := int(d.uvarint(maxRun))
	if n == 0 && d.err == nil {
		d.err = errors.New("has no blocks")
	}
	for words := d.take(8 * n); len(words) > 0; words = words[8:] {
		rec.blocks = append(rec.blocks, prefix.Block(binary.LittleEndian.Uint64(words)))
	}
	holders := int(d.uvarint(MaxInstances))
	if holders == 0 && d.err == nil {
		d.err = errors.New("has no holders")
	}
	for range holders {
		h := heldRecord{content: d.uvarint(math.MaxUint32), blocks: int(d.uvarint(uint64(n))), touch: uint32(d.uvarint(math.MaxUint32 - 1))}
		if d.err != nil {
			return
		}
		if h.blocks == 0 || h.touch == 0 {
			d.err = errors.New("a holder holds nothing")
			return
		}
		rec.holders = append(rec.holders, h)
	}
}
