package index

import (
	"bytes"
	"slices"
	"testing"

	"github.com/warmroute/warmroute/prefix"
)

// FuzzLoad loads arbitrary bytes: it must fail cleanly or leave an index that keeps its rules and saves what it loaded.
func FuzzLoad(f *testing.F) {
	x := newIndex(2)
	f.Add([]byte{})
	f.Add(snapshot(f, x))
	serve(x, 0, chainOf(1, 2, 3))
	serve(x, 1, chainOf(1, 2))
	serve(x, 1, chainOf(1, 4))
	f.Add(snapshot(f, x))
	f.Fuzz(func(t *testing.T, b []byte) {
		x := New(Config{Memory: 4 << 20})
		if err := x.Load(bytes.NewReader(repair(b))); err != nil {
			if s := x.Stats(); s.Blocks != 0 || s.Absent != 0 {
				t.Fatalf("not empty after %v: %+v", err, s)
			}
		}
		checkIndex(t, x)
		y := loaded(t, snapshot(t, x))
		if got, want := y.Stats(), x.Stats(); got.Blocks != want.Blocks || got.Absent != want.Absent {
			t.Fatalf("saved and loaded %+v, got %+v", want, got)
		}
		for id, in := range x.insts {
			x.Join(prefix.InstanceID(id), in.name, 10)
		}
		for id := range prefix.InstanceID(len(x.insts)) {
			serve(x, id, chainOf(1, 2, 3, 4))
			checkIndex(t, x)
			x.Leave(id)
			checkIndex(t, x)
		}
		if s := x.Stats(); s.Blocks != 0 {
			t.Fatalf("everybody left: %+v", s)
		}
	})
}

// repair makes the checksums and lengths of a snapshot right, so that what is inside is read.
func repair(b []byte) []byte {
	b = bytes.Clone(b)
	if len(b) < headerBytes {
		return b
	}
	sum := func(at int, v uint32) {
		b[at], b[at+1], b[at+2], b[at+3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
	}
	sum(16, crcOf(b[:16]))
	runs := uint64(0)
	for at := headerBytes; at+frameHeader <= len(b); {
		n := int(b[at+1]) | int(b[at+2])<<8
		n = min(n, len(b)-at-frameHeader)
		sum(at+1, uint32(n))
		payload := b[at+frameHeader:][:n]
		switch b[at] {
		case runsFrame:
			d := decoder{b: payload}
			for rec := (record{}); d.at < len(payload) && d.err == nil; runs++ {
				d.run(&rec)
			}
		case endFrame:
			if n == endBytes {
				putUint64(payload, uint64(at))
				putUint64(payload[8:], runs)
			}
		}
		sum(at+5, frameSum(b[at:], payload))
		at += frameHeader + n
	}
	return b
}

// FuzzOperations drives an index with arbitrary chains, among them such as no hash function makes: blocks that come twice, at several
// depths, with several beginnings. It must keep its rules.
func FuzzOperations(f *testing.F) {
	f.Add([]byte("\x00\x05abcab\x00\x03abc\x01\x00\x02\x01\x03\x00"))
	f.Add([]byte("\x00\x09aaaaaaaaa\x40\x04aabb\x03\x00\x03\x01\x05\x06"))
	f.Fuzz(func(t *testing.T, b []byte) {
		x := New(Config{Memory: 4 << 20})
		x.tree.mem.limit = 24
		for id := range prefix.InstanceID(4) {
			x.Join(id, string(rune('a'+id)), 7*int(id))
		}
		d := operations{x: x, b: b}
		for len(d.b) > 0 {
			d.next()
			checkIndex(t, x)
		}
	})
}

// operations reads what to do from bytes.
type operations struct {
	x  *Index
	b  []byte
	ps []*Placement
}

func (d *operations) byte() byte {
	if len(d.b) == 0 {
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

// chain reads a chain; its blocks are the bytes, some of them many times.
func (d *operations) chain() prefix.Chain {
	var c prefix.Chain
	for range d.byte() % 24 {
		v := d.byte()
		c = append(c, prefix.Block(v%8))
		for i := range int(v) / 8 {
			c = append(c, prefix.Block(i%(2+int(v)%8)))
		}
	}
	return c
}

func (d *operations) placement() *Placement {
	if len(d.ps) == 0 {
		return new(Placement)
	}
	return d.ps[int(d.byte())%len(d.ps)]
}

func (d *operations) next() {
	op := d.byte()
	id := prefix.InstanceID(op >> 6)
	switch op % 8 {
	case 0, 7:
		p := new(Placement)
		d.x.Place(id, d.chain(), p)
		d.ps = append(d.ps, p)
	case 1:
		d.x.Confirm(d.placement())
	case 2:
		p := d.placement()
		d.x.Finish(p, append(slices.Clip(p.chain), d.chain()...))
	case 3:
		d.x.TakeBack(d.placement())
	case 4:
		d.x.Learn(d.placement(), Report{CachedBlocks: float64(d.byte()), Slack: float64(d.byte()) / 64})
	case 5:
		switch op >> 3 & 7 {
		case 0:
			d.x.Leave(id)
		case 1:
			d.x.Flush(id)
		case 2:
			d.x.Join(id, "b", int(d.byte()))
		default:
			d.x.Finish(d.placement(), nil)
		}
	case 6:
		d.x.Match(d.chain(), nil)
	}
}
