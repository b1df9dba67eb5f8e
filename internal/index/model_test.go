package index

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/warmroute/warmroute/prefix"
)

// model is what the index should believe, said as plainly as possible: for each instance a map of blocks, sorted by use when somebody
// asks. It never forgets for want of memory.
type model struct {
	insts map[prefix.InstanceID]*modelInstance
}

type modelInstance struct {
	blocks  map[prefix.Block]modelBlock
	next    uint32
	since   uint32
	noticed uint32
	learn   learner
	left    bool
	needed  map[prefix.Block]int // kept by needs until a block changes
}

type modelBlock struct {
	seq       uint32
	depth     int
	confirmed bool
}

// modelPlacement is a request on one instance and what was there before it.
type modelPlacement struct {
	in      *modelInstance
	chain   prefix.Chain
	seq     uint32
	before  []modelBlock // of the leading blocks that were known
	need    []int        // capacity that each of them needed
	state   placementState
	learned bool
}

func newModel() *model { return &model{insts: map[prefix.InstanceID]*modelInstance{}} }

func (m *model) join(id prefix.InstanceID, blocks int) {
	if m.insts[id] == nil {
		m.insts[id] = &modelInstance{blocks: map[prefix.Block]modelBlock{}, next: 1, since: 1}
	}
	m.insts[id].learn.tell(blocks)
}

func (m *model) leave(id prefix.InstanceID) {
	if in := m.insts[id]; in != nil {
		in.left = true
		delete(m.insts, id)
	}
}

// needs returns, by block, the capacity that a cache must have to hold it still.
func (in *modelInstance) needs() map[prefix.Block]int {
	if in.needed != nil {
		return in.needed
	}
	all := make([]prefix.Block, 0, len(in.blocks))
	for b := range in.blocks {
		all = append(all, b)
	}
	slices.SortFunc(all, func(a, b prefix.Block) int {
		x, y := in.blocks[a], in.blocks[b]
		if x.seq != y.seq {
			return int(y.seq) - int(x.seq)
		}
		return x.depth - y.depth
	})
	needs := map[prefix.Block]int{}
	for i, b := range all {
		needs[b] = i + 1
	}
	in.needed = needs
	return needs
}

func (in *modelInstance) held(c prefix.Chain) Held {
	needs := in.needs()
	var h Held
	for _, b := range c {
		n, ok := needs[b]
		if !ok {
			break
		}
		h.Known++
		if n <= in.learn.blocks() {
			h.Resident = h.Known
		}
	}
	return h
}

func (in *modelInstance) touch(c prefix.Chain, confirmed bool) uint32 {
	in.needed = nil
	seq := in.next
	in.next++
	for i, b := range c {
		in.blocks[b] = modelBlock{seq, i, confirmed}
	}
	return seq
}

func (in *modelInstance) flush(before uint32) {
	in.needed = nil
	for b, is := range in.blocks {
		if is.seq < before {
			delete(in.blocks, b)
		}
	}
	in.since = before
}

func (m *model) place(id prefix.InstanceID, c prefix.Chain) *modelPlacement {
	p := &modelPlacement{in: m.insts[id], chain: c}
	if p.in == nil {
		return p
	}
	p.state = sent
	needs := p.in.needs()
	for _, b := range c {
		is, ok := p.in.blocks[b]
		if !ok {
			break
		}
		p.before = append(p.before, is)
		p.need = append(p.need, needs[b])
	}
	p.seq = p.in.touch(c, false)
	return p
}

func (p *modelPlacement) confirm() {
	if p.state != sent {
		return
	}
	p.state = confirmed
	if p.in.left {
		return
	}
	for _, b := range p.chain {
		if is, ok := p.in.blocks[b]; ok {
			is.confirmed = true
			p.in.blocks[b] = is
		}
	}
}

func (p *modelPlacement) finish(c prefix.Chain) {
	if p.state != sent && p.state != confirmed {
		return
	}
	p.state = ended
	if !p.in.left {
		p.in.touch(c, true)
	}
}

func (p *modelPlacement) takeBack() {
	undo := p.state == sent && !p.in.left && p.seq >= p.in.since
	if p.state == sent || p.state == confirmed {
		p.state = ended
	}
	if !undo {
		return
	}
	p.in.needed = nil
	for i, b := range p.chain {
		switch is, ok := p.in.blocks[b]; {
		case !ok || is.seq != p.seq:
		case i < len(p.before) && p.before[i].seq >= p.in.since:
			p.in.blocks[b] = p.before[i]
		default:
			delete(p.in.blocks, b)
		}
	}
}

func (p *modelPlacement) learn(r Report) {
	if p.state == inert || p.in.left || p.learned {
		return
	}
	p.learned = true
	if p.seq < p.in.since {
		return
	}
	alive, dead, seq := 0, 0, uint32(0)
	if n := min(int(math.Floor(r.CachedBlocks-r.slack())), len(p.need)); n > 0 {
		alive = p.need[n-1]
	}
	for i := max(0, int(math.Ceil(r.CachedBlocks+r.slack()))); i < len(p.need); i++ {
		if p.before[i].confirmed && p.before[i].seq >= p.in.since {
			dead, seq = p.need[i], p.before[i].seq
			break
		}
	}
	if p.seq < p.in.noticed {
		dead = 0
	}
	if p.in.learn.observe(alive, dead) {
		if r.CachedBlocks <= r.slack() {
			seq = p.seq - 1
		}
		p.in.flush(seq + 1)
		p.in.noticed = p.in.next
	}
}

// both is an index and its model, driven together.
type both struct {
	t      *testing.T
	x      *Index
	m      *model
	rnd    *rand.Rand
	capped bool      // the index may forget: it may know less than the model, never more
	words  []([]int) // of earlier chains
	ids    int
	open   []*pair
}

type pair struct {
	words []int
	p     Placement
	m     *modelPlacement
}

func newBoth(t *testing.T, seed uint64, ids int) *both {
	return &both{t: t, x: New(Config{}), m: newModel(), rnd: rand.New(rand.NewPCG(seed, 1)), ids: ids}
}

// draw returns the words of a chain that often shares a beginning with an earlier one.
func (b *both) draw() []int {
	var words []int
	if len(b.words) > 0 && b.rnd.IntN(8) > 0 {
		old := b.words[b.rnd.IntN(len(b.words))]
		cut := len(old)
		if b.rnd.IntN(2) == 0 {
			cut = b.rnd.IntN(len(old) + 1)
		}
		words = slices.Clone(old[:cut])
	}
	more := b.rnd.IntN(12)
	if b.rnd.IntN(20) == 0 {
		more = b.rnd.IntN(3 * maxRun)
	}
	if len(words) > 6*maxRun {
		more = 0
	}
	for range more {
		words = append(words, b.rnd.IntN(3))
	}
	if len(b.words) < 60 {
		b.words = append(b.words, words)
	} else {
		b.words[b.rnd.IntN(len(b.words))] = words
	}
	return words
}

func (b *both) id() prefix.InstanceID { return prefix.InstanceID(b.rnd.IntN(b.ids)) }

// step does one random thing to both.
func (b *both) step() {
	switch n := b.rnd.IntN(100); {
	case n < 3:
		id, blocks := b.id(), b.rnd.IntN(400)
		b.x.Join(id, string(rune('a'+id)), blocks)
		b.m.join(id, blocks)
	case n < 4:
		id := b.id()
		b.x.Leave(id)
		b.m.leave(id)
	case n < 5:
		id := b.id()
		b.x.Flush(id)
		if in := b.m.insts[id]; in != nil {
			in.flush(in.next)
		}
	case n < 35 || len(b.open) == 0:
		q, id := &pair{words: b.draw()}, b.id()
		c := chainOf(q.words...)
		b.x.Place(id, c, &q.p)
		q.m = b.m.place(id, c)
		b.open = append(b.open, q)
	default:
		b.goOn(n)
	}
}

// goOn does the next thing to one of the requests under way.
func (b *both) goOn(n int) {
	i := b.rnd.IntN(len(b.open))
	q := b.open[i]
	switch {
	case n < 55:
		b.x.Confirm(&q.p)
		q.m.confirm()
	case n < 80:
		c := q.m.chain
		if b.rnd.IntN(2) == 0 {
			c = chainOf(append(slices.Clone(q.words), b.rnd.IntN(1000), 1, 2)...)
		}
		b.x.Finish(&q.p, c)
		q.m.finish(c)
	case n < 88:
		b.x.TakeBack(&q.p)
		q.m.takeBack()
	case n < 97 && !b.capped:
		r := Report{CachedBlocks: float64(b.rnd.IntN(2+len(q.m.chain))) - b.rnd.Float64(), Slack: b.rnd.Float64() * 3}
		b.x.Learn(&q.p, r)
		q.m.learn(r)
	default:
		b.open = slices.Delete(b.open, i, i+1)
		b.x.Finish(&q.p, nil)
		q.m.finish(q.m.chain)
	}
}

// compare matches some chains in both.
func (b *both) compare() {
	b.t.Helper()
	for range 4 {
		c := chainOf(b.draw()...)
		got := b.x.Match(c, nil)
		for id := range prefix.InstanceID(b.ids) {
			var want, have Held
			if in := b.m.insts[id]; in != nil {
				want = in.held(c)
			}
			if int(id) < len(got) {
				have = got[id]
			}
			if b.capped && have.Known <= want.Known && have.Resident <= min(want.Resident, have.Known) {
				continue
			}
			if have != want {
				b.t.Fatalf("instance %d of %d blocks: got %+v, want %+v", id, len(c), have, want)
			}
		}
	}
	for id, in := range b.m.insts {
		if got := b.x.byIDLocked(id).learn; got != in.learn {
			b.t.Fatalf("instance %d learned %+v, want %+v", id, got, in.learn)
		}
	}
}

func TestModel(t *testing.T) {
	f := func(seed uint64, steps, ids int) {
		t.Helper()
		b := newBoth(t, seed, ids)
		for i := range steps {
			b.step()
			if err := b.x.verify(); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, i, err)
			}
			if i%5 == 0 {
				b.compare()
			}
		}
	}
	seeds := uint64(12)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		f(seed, 1000, 1+int(seed%5))
	}
	f(100, 1500, 40)
}

// TestModelCapped drives the index at its cap: it forgets, but never says that an instance holds what it does not, and keeps its rules.
func TestModelCapped(t *testing.T) {
	f := func(seed uint64, steps, pages int) {
		t.Helper()
		b := newBoth(t, seed, 4)
		b.capped = true
		b.x.cfg.Memory = int64(pages)*(pageBytes+100) + 64<<10
		for id := range prefix.InstanceID(4) {
			b.x.Join(id, string(rune('a'+id)), 0)
			b.m.join(id, 0)
		}
		b.x.tree.mem.limit = pages
		for i := range steps {
			b.step()
			b.x.tree.mem.limit = pages
			if i%16 == 0 {
				if err := b.x.verify(); err != nil {
					t.Fatalf("seed %d, step %d: %v", seed, i, err)
				}
				b.compare()
			}
		}
		if b.x.gone == 0 {
			t.Errorf("seed %d: nothing was forgotten", seed)
		}
	}
	for seed := range uint64(3) {
		f(seed, 3000, 18+int(seed)*4)
	}
}
