package index

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmroute/warmroute/prefix"
)

// snapshot returns what Save writes.
func snapshot(t testing.TB, x *Index) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := x.Save(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// loaded returns an index that has loaded a snapshot, and nobody has joined.
func loaded(t testing.TB, b []byte) *Index {
	t.Helper()
	x := New(Config{})
	if err := x.Load(bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
	if err := x.verify(); err != nil {
		t.Fatal(err)
	}
	return x
}

// TestSnapshotModel saves and loads an index that saw all kinds of things, and compares both for many chains.
func TestSnapshotModel(t *testing.T) {
	f := func(seed uint64, steps, ids int) {
		t.Helper()
		b := newBoth(t, seed, ids)
		for range steps {
			b.step()
		}
		y := loaded(t, snapshot(t, b.x))
		if got := y.Match(chainOf(1), nil); len(got) != 0 {
			t.Errorf("before anybody joined: %v", got)
		}
		for id := range prefix.InstanceID(ids) {
			if b.m.insts[id] != nil {
				y.Join(id, string(rune('a'+id)), b.x.byIDLocked(id).learn.told)
			}
		}
		checkIndex(t, y)
		for range 200 {
			c := chainOf(b.draw()...)
			want, got := b.x.Match(c, nil), y.Match(c, nil)
			for len(got) < len(want) {
				got = append(got, Held{})
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Fatalf("seed %d, %d blocks (-saved +loaded):\n%s", seed, len(c), d)
			}
		}
		if n := y.DropAbsent(); n != 0 {
			t.Errorf("seed %d: %d instances did not join", seed, n)
		}
		z := loaded(t, snapshot(t, y))
		if got, want := z.Stats().Blocks, y.Stats().Blocks; got != want {
			t.Errorf("seed %d: %d blocks after the second load, want %d", seed, got, want)
		}
	}
	for seed := range uint64(8) {
		f(seed, 400, 1+int(seed))
	}
}

func TestSnapshotJoin(t *testing.T) {
	x := newIndex(3)
	x.SetCapacity(0, 100)
	serve(x, 0, rising(0, 90))
	serve(x, 0, rising(1000, 30))
	serve(x, 1, rising(0, 50))
	serve(x, 2, rising(2000, 300))
	y := New(Config{})
	y.Join(7, "b", 40)
	if err := y.Load(bytes.NewReader(snapshot(t, x))); err != nil {
		t.Fatal(err)
	}
	if got := y.Stats().Absent; got != 2 {
		t.Errorf("%d absent, want 2", got)
	}
	f := func(c prefix.Chain, id prefix.InstanceID, want Held) {
		t.Helper()
		if got := y.Match(c, nil)[id]; got != want {
			t.Errorf("instance %d: %+v, want %+v", id, got, want)
		}
		checkIndex(t, y)
	}
	f(rising(0, 90), 7, Held{40, 50}) // what it was told itself counts
	y.Join(1, "a", 0)
	f(rising(0, 90), 1, Held{70, 90})
	f(rising(0, 90), 7, Held{40, 50})
	y.Join(0, "new", 0)
	f(rising(0, 90), 0, Held{})
	y.Leave(1)
	f(rising(0, 90), 1, Held{})
	y.Join(1, "a", 0)
	f(rising(0, 90), 1, Held{}) // Leave forgot it
	if got := y.DropAbsent(); got != 1 {
		t.Errorf("dropped %d, want 1", got)
	}
	y.Join(2, "c", 0)
	f(rising(2000, 300), 2, Held{})
}

// TestSnapshotConfirmed says that loaded blocks are evidence.
func TestSnapshotConfirmed(t *testing.T) {
	x := newIndex(1)
	x.SetCapacity(0, 1000)
	var p Placement
	x.Place(0, rising(0, 30), &p)
	y := loaded(t, snapshot(t, x))
	y.Join(0, "a", 1000)
	serve(y, 0, rising(500, 700))
	y.Place(0, rising(0, 30), &p)
	y.Learn(&p, Report{CachedBlocks: 0})
	if got := y.insts[0].learn.capacity; got >= 1000 {
		t.Errorf("capacity is still %g", got)
	}
}

// damage describes a change to a snapshot and what Load must say of it.
type damage struct {
	name   string
	change func(b []byte) []byte
	want   []string
}

func TestSnapshotDamaged(t *testing.T) {
	x := newIndex(2)
	serve(x, 0, rising(0, 300))
	serve(x, 1, rising(0, 20))
	good := snapshot(t, x)
	last := len(good) - frameHeader - endBytes
	again := func(b []byte, from, to int) { // repairs the checksum of the header
		binary.LittleEndian.PutUint32(b[to:], crc32.Checksum(b[from:to], castagnoli))
	}
	for _, d := range []damage{
		{"empty", func(b []byte) []byte { return nil }, []string{"offset 0", "ends in the middle of the header"}},
		{"text", func(b []byte) []byte { return []byte("{\"version\": 1, \"blocks\": []}") }, []string{"offset 0", "not a snapshot"}},
		{"version", func(b []byte) []byte { b[8] = 2; again(b, 0, 16); return b }, []string{"offset 8", "version 2", "reads version 1"}},
		{"header", func(b []byte) []byte { b[13] ^= 1; return b }, []string{"offset 16", "checksum of the header"}},
		{"blocks", func(b []byte) []byte { b[13] = 2; again(b, 0, 16); return b }, []string{"offset 12", "512 bytes", "of 256"}},
		{"runs", func(b []byte) []byte { b[100] ^= 4; return b }, []string{"offset 20", "checksum of the frame"}},
		{"long", func(b []byte) []byte { b[24] = 0xff; return b }, []string{"offset 20", "frame has"}},
		{"cut", func(b []byte) []byte { return b[:len(b)-1] }, []string{"ends in the middle of a frame"}},
		{"cut at a frame", func(b []byte) []byte { return b[:last] }, []string{"ends in the middle of a frame's header"}},
		{"more", func(b []byte) []byte { return append(b, 0) }, []string{"1 bytes follow the end"}},
		{"frame lost", func(b []byte) []byte { return append(b[:headerBytes:headerBytes], b[last:]...) }, []string{"offset 20", "should be at"}},
	} {
		t.Run(d.name, func(t *testing.T) {
			y := newIndex(2)
			err := y.Load(bytes.NewReader(d.change(bytes.Clone(good))))
			if err == nil {
				t.Fatal("loaded")
			}
			for _, s := range append(d.want, "load snapshot: ") {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("error %q does not say %q", err, s)
				}
			}
			if s := y.Stats(); s.Blocks != 0 || s.Absent != 0 {
				t.Errorf("not empty: %+v", s)
			}
			serve(y, 1, rising(0, 5))
			wantHeld(t, y, rising(0, 9), Held{}, Held{5, 5})
		})
	}
}

func TestSnapshotNotEmpty(t *testing.T) {
	x := newIndex(1)
	serve(x, 0, rising(0, 5))
	b := snapshot(t, x)
	if err := x.Load(bytes.NewReader(b)); !errors.Is(err, errNotEmpty) {
		t.Errorf("got %v, want %v", err, errNotEmpty)
	}
	wantHeld(t, x, rising(0, 5), Held{5, 5})
}

// TestSnapshotTooLarge loads into an index that has room for a part only: the newest.
func TestSnapshotTooLarge(t *testing.T) {
	x := New(Config{Memory: 64 << 20})
	x.Join(0, "a", 0)
	const n = 35_000
	for i := range n {
		serve(x, 0, rising(1000*i, 12))
	}
	y := New(Config{Memory: 4 << 20})
	if err := y.Load(bytes.NewReader(snapshot(t, x))); err != nil {
		t.Fatal(err)
	}
	y.Join(0, "a", 0)
	checkIndex(t, y)
	kept := int(y.Stats().Blocks / 12)
	if kept < n/3 || kept > 3*n/4 {
		t.Errorf("%d of %d prompts kept", kept, n)
	}
	wantHeld(t, y, rising(1000*(n-1), 12), Held{12, 12})
	wantHeld(t, y, rising(1000*(n-kept), 12), Held{12, 12})
	wantHeld(t, y, rising(0, 12), Held{})
	serve(y, 0, rising(7, 500))
	wantHeld(t, y, rising(7, 500), Held{500, 500})
}

// TestSnapshotBusy saves while requests come and go: the snapshot is whole, and right for what nobody touched.
func TestSnapshotBusy(t *testing.T) {
	x := New(Config{})
	for id := range prefix.InstanceID(4) {
		x.Join(id, string(rune('a'+id)), 0)
	}
	const still = 1000
	for i := range still {
		serve(x, prefix.InstanceID(i%4), rising(1_000_000+1000*i, 40))
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for g := range uint64(3) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(g, 1))
			for {
				select {
				case <-stop:
					return
				default:
				}
				serve(x, prefix.InstanceID(rnd.IntN(4)), rising(1000*rnd.IntN(50), 1+rnd.IntN(200)))
			}
		})
	}
	var snaps [][]byte
	for range 5 {
		var b bytes.Buffer
		if err := x.Save(&b); err != nil {
			t.Error(err)
		}
		snaps = append(snaps, b.Bytes())
	}
	close(stop)
	wg.Wait()
	checkIndex(t, x)
	for _, b := range snaps {
		y := loaded(t, b)
		for id := range prefix.InstanceID(4) {
			y.Join(id, string(rune('a'+id)), 0)
		}
		for i := range still {
			c := rising(1_000_000+1000*i, 40)
			if got := y.Match(c, nil)[i%4]; got != (Held{40, 40}) {
				t.Fatalf("prompt %d: %+v", i, got)
			}
		}
	}
}

func TestSaveFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "index.snap")
	x := newIndex(1)
	if err := x.LoadFile(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("load of no file: %v", err)
	}
	for i := range 3 {
		serve(x, 0, rising(1000*i, 200))
		if err := x.SaveFile(path); err != nil {
			t.Fatal(err)
		}
	}
	y := newIndex(1)
	if err := y.LoadFile(path); err != nil {
		t.Fatal(err)
	}
	wantHeld(t, y, rising(2000, 200), Held{200, 200})
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Errorf("directory has %v, %v", files, err)
	}
	if err := x.SaveFile(filepath.Join(dir, "no", "such")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("save into no directory: %v", err)
	}
	if err := os.WriteFile(path, snapshot(t, x)[:300], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := newIndex(1).LoadFile(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("load of a cut file: %v", err)
	}
}

// failing fails after some bytes.
type failing struct{ left int }

func (f *failing) Write(b []byte) (int, error) {
	if f.left -= len(b); f.left < 0 {
		return 0, errNotEmpty
	}
	return len(b), nil
}

func TestSaveFails(t *testing.T) {
	x := newIndex(1)
	serve(x, 0, rising(0, 200))
	for n := 0; n < len(snapshot(t, x)); n += 20 {
		if err := x.Save(&failing{n}); !errors.Is(err, errNotEmpty) {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
	if x.tree.cursor != 0 {
		t.Error("the cursor is left in the tree")
	}
}
