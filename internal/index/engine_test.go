package index

import (
	"container/list"
	"math/rand/v2"
	"slices"

	"github.com/warmroute/warmroute/prefix"
)

// engine is the KV cache of an engine, as vLLM keeps it, with nothing of the index in it: blocks of 16 tokens, found by the hash of their
// beginning; a hit on whole blocks and on at most n-1 tokens; blocks in use can't be evicted; at the end of a request its blocks go to the
// end of the free list, last block first, so that tails are evicted first.
type engine struct {
	capacity int // blocks
	blocks   map[engineKey]*engineCell
	free     *list.List // of *engineCell, the next to evict first
	used     int
	off      bool // prefix caching is off
}

// engineKey identifies a block by our block in which its last token lies, which depends on all before, and its number.
type engineKey struct {
	block  prefix.Block
	number int
}

type engineCell struct {
	key  engineKey
	refs int
	in   *list.Element // of free
}

// job is a request in the engine.
type job struct {
	prompt  *text
	output  int // tokens
	cached  int // tokens found cached at the beginning
	cells   []*engineCell
	pending []engineKey // prompt blocks that are computed at the end of the step
}

// text is a prompt as both sides see it: our chain, and how many tokens each of our blocks has.
type text struct {
	chain  prefix.Chain
	tokens []int // of the leading blocks, cumulated
}

func (x *text) total() int { return x.tokens[len(x.tokens)-1] }

// key returns the key of an engine's block.
func (x *text) key(number int) engineKey {
	last := 16*number + 15
	lo, hi := 0, len(x.tokens)
	for lo < hi {
		mid := (lo + hi) / 2
		if x.tokens[mid] <= last {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return engineKey{x.chain[lo], number}
}

func newEngine(tokens int) *engine {
	return &engine{capacity: tokens / 16, blocks: map[engineKey]*engineCell{}, free: list.New()}
}

// restart empties the cache.
func (e *engine) restart() {
	clear(e.blocks)
	e.free.Init()
	e.used = 0
}

// resize changes the capacity.
func (e *engine) resize(tokens int) {
	e.capacity = tokens / 16
	for e.used > e.capacity && e.free.Len() > 0 {
		e.evict()
	}
}

func (e *engine) evict() {
	c := e.free.Remove(e.free.Front()).(*engineCell)
	delete(e.blocks, c.key)
	e.used--
}

// start admits a request: it looks for hits and takes memory, but what it computes can be hit after the step only.
func (e *engine) start(t *text, output int) *job {
	j := &job{prompt: t, output: output}
	n := 0
	for !e.off && 16*(n+1) <= t.total()-1 {
		c := e.blocks[t.key(n)]
		if c == nil {
			break
		}
		if c.refs++; c.in != nil {
			e.free.Remove(c.in)
			c.in = nil
		}
		j.cells = append(j.cells, c)
		n++
	}
	j.cached = 16 * n
	for ; 16*(n+1) <= t.total(); n++ {
		j.pending = append(j.pending, t.key(n))
		e.take()
	}
	return j
}

func (e *engine) take() {
	if e.used >= e.capacity && e.free.Len() > 0 {
		e.evict()
	}
	e.used++
}

// step ends the step in which a request's prompt was computed.
func (e *engine) step(j *job) {
	for _, k := range j.pending {
		c := &engineCell{key: k, refs: 1}
		if e.blocks[k] == nil {
			e.blocks[k] = c
		}
		j.cells = append(j.cells, c)
	}
	j.pending = nil
}

// finish ends a request after its output, which takes memory too.
func (e *engine) finish(j *job) {
	for i := range j.output / 16 {
		e.take()
		k := engineKey{prefix.Block(mix(uint64(j.prompt.chain[len(j.prompt.chain)-1]) + uint64(i))), -1}
		c := &engineCell{key: k, refs: 1}
		e.blocks[k] = c
		j.cells = append(j.cells, c)
	}
	for _, c := range slices.Backward(j.cells) {
		if c.refs--; c.refs == 0 {
			if e.blocks[c.key] == c {
				c.in = e.free.PushBack(c)
			} else {
				e.used-- // a duplicate, or from before a restart
				e.used = max(e.used, 0)
			}
		}
	}
	for e.used > e.capacity && e.free.Len() > 0 {
		e.evict()
	}
}

// traffic draws prompts: documents that are asked again and again (Zipf), each time with another question, and conversations.
type traffic struct {
	rnd       *rand.Rand
	documents []*text
	zipf      *rand.Zipf
	talks     []*text
	words     int
	perBlock  float64 // tokens of one of our blocks, on average
}

func newTraffic(seed uint64, documents, blocks int) *traffic {
	rnd := rand.New(rand.NewPCG(seed, 7))
	w := &traffic{rnd: rnd, zipf: rand.NewZipf(rnd, 1.1, 4, uint64(documents-1)), perBlock: 64}
	for range documents {
		w.documents = append(w.documents, w.extend(&text{}, blocks*3/4+rnd.IntN(blocks/2)))
	}
	w.talks = make([]*text, documents/4)
	return w
}

// extend returns a text with n blocks more. Tokens per block vary by text and by block.
func (w *traffic) extend(t *text, n int) *text {
	u := &text{chain: append(prefix.Chain{}, t.chain...), tokens: append([]int{}, t.tokens...)}
	density := w.perBlock * (0.85 + 0.3*w.rnd.Float64())
	h, total := uint64(1), 0
	if len(t.chain) > 0 {
		h, total = uint64(t.chain[len(t.chain)-1]), t.total()
	}
	for range n {
		w.words++
		h = mix(h ^ mix(uint64(w.words)))
		total += int(density * (0.8 + 0.4*w.rnd.Float64()))
		u.chain, u.tokens = append(u.chain, prefix.Block(h)), append(u.tokens, total)
	}
	return u
}

func (w *traffic) draw() *text {
	if w.rnd.IntN(3) == 0 {
		i := w.rnd.IntN(len(w.talks))
		if w.talks[i] == nil || len(w.talks[i].chain) > 80 {
			w.talks[i] = &text{}
		}
		w.talks[i] = w.extend(w.talks[i], 4+w.rnd.IntN(8))
		return w.talks[i]
	}
	return w.extend(w.documents[w.zipf.Uint64()], 2+w.rnd.IntN(6))
}

// scene is one engine behind an index: requests overlap, are confirmed after a step and end some requests later.
type scene struct {
	x        *Index
	e        *engine
	w        *traffic
	running  []*flight
	overlap  int
	silent   bool // the engine reports nothing
	reports  int
	expected float64 // blocks that the index believed to be cached
	actual   float64 // blocks that the engine found
	output   int
	burst    int // every so many requests, two with one new prefix come in one step
	n        int
}

type flight struct {
	p Placement
	j *job
	t *text
}

func newScene(seed uint64, tokens int) *scene {
	s := &scene{x: New(Config{}), e: newEngine(tokens), w: newTraffic(seed, 100, 40), overlap: 6, output: 48}
	s.x.Join(0, "engine", 0)
	return s
}

// run sends n requests.
func (s *scene) run(n int) {
	for range n {
		s.n++
		step := []*flight{s.send(s.w.draw())}
		if s.burst > 0 && s.n%s.burst == 0 {
			t := s.w.extend(&text{}, 30)
			step = append(step, s.send(s.w.extend(t, 2)), s.send(s.w.extend(t, 2)))
		}
		for _, f := range step {
			s.e.step(f.j)
			s.x.Confirm(&f.p)
		}
		s.running = append(s.running, step...)
		for len(s.running) > s.overlap {
			i := s.w.rnd.IntN(len(s.running))
			s.end(s.running[i])
			s.running = append(s.running[:i], s.running[i+1:]...)
		}
	}
}

// restart restarts the engine: what runs there fails, and nobody tells the index why.
func (s *scene) restart() {
	for _, f := range s.running {
		s.x.TakeBack(&f.p)
	}
	s.running = s.running[:0]
	s.e.restart()
}

func (s *scene) send(t *text) *flight {
	f := &flight{t: t}
	s.x.Place(0, t.chain, &f.p)
	f.j = s.e.start(t, s.output)
	return f
}

func (s *scene) end(f *flight) {
	s.e.finish(f.j)
	s.x.Finish(&f.p, f.t.chain)
	r := TokenReport(f.j.cached, f.t.total(), int64(len(f.t.chain))*256, 256)
	s.expected += float64(f.p.Resident())
	s.actual += r.CachedBlocks
	if !s.silent {
		s.x.Learn(&f.p, r)
		s.reports++
	}
}

// window forgets what was counted, runs n requests, and returns what the index believed to be cached, relative to what was, and the
// learned capacity in tokens.
func (s *scene) window(n int) (ratio, tokens float64) {
	s.expected, s.actual = 0, 0
	s.run(n)
	return s.expected / s.actual, s.capacity() * s.w.perBlock
}

func (s *scene) capacity() float64 { return s.x.insts[0].learn.capacity }
