package index

import "sort"

// slot is one touch of a chain on one instance: a dispatch, or the end of a request. Its blocks are those that nobody touched since on
// that instance; because every later touch takes leading blocks, they are the last `weight` of the `end` leading blocks of one chain.
//
//	word 0  number of the touch | the run of the deepest of its blocks that the index still knows; 0 when it knows none
//	word 1  weight (24 bits) | end (24) | placements that may give blocks back to it (16)
//
// A slot whose blocks were forgotten for want of memory keeps its weight: the engine did not forget them.
type slot [slotWords]uint64

const (
	slotWords    = 2
	slotsPerPage = 128
	slotClass    = class(29) // slotsPerPage*slotWords words
	maxChain     = 1<<24 - 1
	maxPins      = 1<<16 - 1
	// staleSlots is how many slots of a page may be of no use before the page is packed.
	staleSlots = 32
	// sparseSlots is how many slots two neighbouring pages may have together to become one.
	sparseSlots = 96
)

func (s *slot) seq() uint32        { return low(s[0]) }
func (s *slot) tail() ref          { return ref(high(s[0])) }
func (s *slot) setTail(t ref)      { setHigh(&s[0], uint32(t)) }
func (s *slot) weight() int        { return int(s[1] & maxChain) }
func (s *slot) setWeight(n int)    { s[1] = s[1]&^maxChain | uint64(min(max(n, 0), maxChain)) }
func (s *slot) end() int           { return int(s[1] >> 24 & maxChain) }
func (s *slot) setEnd(n int)       { s[1] = s[1]&^(maxChain<<24) | uint64(min(n, maxChain))<<24 }
func (s *slot) pins() int          { return int(s[1] >> 48) }
func (s *slot) setPins(n int)      { s[1] = s[1]&^(maxPins<<48) | uint64(n)<<48 }
func (s *slot) idle() bool         { return s.tail() == 0 && s.pins() == 0 }
func newSlot(seq uint32) slot      { return slot{uint64(seq)} }
func slotAt(ws []uint64) *slot     { return (*slot)(ws) }
func slotsOf(ws []uint64) []uint64 { return ws[:slotsPerPage*slotWords] }

// slotPage is a full or partial page of slots.
type slotPage struct {
	at    ref
	first uint32 // the least touch that may be in the page
	sum   uint32 // of the slots' weights
	n     uint16
	stale uint16 // slots that became idle since the page was packed
}

// stack is the LRU stack of one instance: its touches, oldest first. The stack distance of a block is the weight of the newer slots plus
// the shallower blocks of its own, which is the number of distinct blocks that an engine with one LRU list keeps in preference to it.
type stack struct {
	dir   []slotPage
	next  uint32 // number of the next touch; 0 is never used
	total int    // weight of all slots
}

// slot returns slot i of a page.
func (s *stack) slot(mem *arena, page, i int) *slot {
	return slotAt(mem.at(s.dir[page].at)[i*slotWords:])
}

// locate returns the place of the oldest slot with a number of at least seq; the page is len(s.dir) when there is none.
func (s *stack) locate(mem *arena, seq uint32) (page, i int) {
	page = sort.Search(len(s.dir), func(p int) bool { return s.dir[p].first > seq }) - 1
	if page < 0 {
		return 0, 0
	}
	words := slotsOf(mem.at(s.dir[page].at))
	lo, hi := 0, int(s.dir[page].n)
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if low(words[mid*slotWords]) < seq {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == int(s.dir[page].n) {
		return page + 1, 0
	}
	return page, lo
}

// get returns the slot of a touch and the number of its page, or nil.
func (s *stack) get(mem *arena, seq uint32) (*slot, int) {
	page, i := s.locate(mem, seq)
	if page == len(s.dir) {
		return nil, 0
	}
	sl := s.slot(mem, page, i)
	if sl.seq() != seq {
		return nil, 0
	}
	return sl, page
}

// needsPage reports whether the next push needs memory.
func (s *stack) needsPage() bool {
	return len(s.dir) == 0 || s.dir[len(s.dir)-1].n == slotsPerPage
}

// push adds a slot as the newest. There must be memory for it.
func (s *stack) push(mem *arena, sl slot) {
	if n := len(s.dir) - 1; n >= 0 && s.dir[n].n == slotsPerPage && s.dir[n].stale > 0 {
		s.pack(mem, n)
	}
	if s.needsPage() {
		s.dir = append(s.dir, slotPage{at: mem.alloc(slotClass), first: sl.seq()})
	}
	p := &s.dir[len(s.dir)-1]
	*slotAt(mem.at(p.at)[int(p.n)*slotWords:]) = sl
	p.n++
	p.sum += uint32(sl.weight())
	s.total += sl.weight()
}

// add changes the weight of a slot of a page.
func (s *stack) add(sl *slot, page, n int) {
	before := sl.weight()
	sl.setWeight(before + n)
	s.dir[page].sum += uint32(sl.weight() - before)
	s.total += sl.weight() - before
}

// settle tells the page that one of its slots may have become idle, and packs it when many did. Places of slots are void afterwards.
func (s *stack) settle(mem *arena, page int, sl *slot) {
	if !sl.idle() {
		return
	}
	s.dir[page].stale++
	if s.dir[page].stale >= staleSlots {
		s.pack(mem, page)
	}
}

// pack removes the idle slots without weight from a page, joins neighbouring idle ones, and drops idle ones that are older than every
// other: distances count newer weight only. It never needs memory.
func (s *stack) pack(mem *arena, page int) {
	p := &s.dir[page]
	words := slotsOf(mem.at(p.at))
	n, sum := 0, 0
	for i := range int(p.n) {
		sl := *slotAt(words[i*slotWords:])
		if sl.idle() {
			if sl.weight() == 0 || n == 0 && page == 0 {
				continue
			}
			if n > 0 {
				if last := slotAt(words[(n-1)*slotWords:]); last.idle() {
					sum -= last.weight()
					last.setWeight(last.weight() + sl.weight())
					sum += last.weight()
					continue
				}
			}
		}
		*slotAt(words[n*slotWords:]) = sl
		sum += sl.weight()
		n++
	}
	s.total += sum - int(p.sum)
	p.n, p.sum, p.stale = uint16(n), uint32(sum), 0
	switch {
	case n == 0:
		s.release(mem, page)
	case page > 0 && n+int(s.dir[page-1].n) <= sparseSlots:
		s.join(mem, page-1)
	case page+1 < len(s.dir) && n+int(s.dir[page+1].n) <= sparseSlots:
		s.join(mem, page)
	}
}

// join moves the slots of the next page into this one.
func (s *stack) join(mem *arena, page int) {
	p, q := &s.dir[page], &s.dir[page+1]
	copy(mem.at(p.at)[int(p.n)*slotWords:slotsPerPage*slotWords], mem.at(q.at)[:int(q.n)*slotWords])
	p.n += q.n
	p.sum += q.sum
	p.stale += q.stale
	s.release(mem, page+1)
}

// release gives a page back.
func (s *stack) release(mem *arena, page int) {
	mem.free(s.dir[page].at, slotClass)
	s.dir = append(s.dir[:page], s.dir[page+1:]...)
}

// newerThan returns the weight of the slots newer than slot i of a page.
func (s *stack) newerThan(mem *arena, page, i int) int {
	sum := 0
	for _, p := range s.dir[page+1:] {
		sum += int(p.sum)
	}
	words := slotsOf(mem.at(s.dir[page].at))
	for j := i + 1; j < int(s.dir[page].n); j++ {
		sum += slotAt(words[j*slotWords:]).weight()
	}
	return sum
}

// reach returns how much larger than its depth the capacity must be to hold a block of a slot: leading blocks up to depth d of the
// slot's chain are resident when reach+d <= capacity.
func (s *stack) reach(mem *arena, seq uint32) int {
	page, i := s.locate(mem, seq)
	if page == len(s.dir) {
		return 0
	}
	sl := s.slot(mem, page, i)
	return s.newerThan(mem, page, i) + sl.weight() - sl.end()
}

// cut returns where residency ends for a capacity: blocks of touches newer than seq are resident, of seq itself those above depth.
// used is the resident weight.
func (s *stack) cut(mem *arena, capacity int) (seq uint32, depth, used int) {
	if s.total <= capacity {
		return 0, 0, s.total
	}
	for page := len(s.dir) - 1; page >= 0; page-- {
		p := &s.dir[page]
		if used+int(p.sum) <= capacity {
			used += int(p.sum)
			continue
		}
		words := slotsOf(mem.at(p.at))
		for i := int(p.n) - 1; i >= 0; i-- {
			sl := slotAt(words[i*slotWords:])
			w := sl.weight()
			if used+w > capacity {
				return sl.seq(), max(0, sl.end()-(used+w-capacity)), capacity
			}
			used += w
		}
	}
	return 0, 0, used
}

// clear gives every page back.
func (s *stack) clear(mem *arena) {
	for _, p := range s.dir {
		mem.free(p.at, slotClass)
	}
	s.dir, s.total = nil, 0
}

// dropFirst removes the first n slots of the oldest page.
func (s *stack) dropFirst(mem *arena, n int) {
	p := &s.dir[0]
	words := slotsOf(mem.at(p.at))
	for i := range n {
		w := slotAt(words[i*slotWords:]).weight()
		p.sum -= uint32(w)
		s.total -= w
	}
	copy(words, words[n*slotWords:int(p.n)*slotWords])
	p.n -= uint16(n)
	if p.n == 0 {
		s.release(mem, 0)
	}
}
