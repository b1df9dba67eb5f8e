package index

// ref is the address of an object in an arena: the number of its page, then its word in the page. No object has ref 0.
type ref uint32

const (
	pageBits  = 12
	pageWords = 1 << pageBits // 32 KiB, a size that the Go heap serves without waste
	pageBytes = pageWords * 8
)

// page is the unit in which an arena takes memory from the heap. It holds no pointers, so the collector never looks into it.
type page [pageWords]uint64

// sizes are the words of an object by size class. Up to 16 every length has its own, because short runs are the many; above, the
// steps are at most a third.
var sizes = [...]int{
	1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
	20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128,
	170, 256, 341, 512, 682, 1024, 1365, 2048, 4096,
}

const classes = len(sizes)

// class is an index into sizes.
type class uint8

// classOf returns the smallest class that holds n words, 1 <= n <= pageWords.
func classOf(n int) class {
	if n <= 16 {
		return class(n - 1)
	}
	c := class(16)
	for sizes[c] < n {
		c++
	}
	return c
}

// perPage returns how many objects of a class fit into a page.
func (c class) perPage() int { return pageWords / sizes[c] }

// pageInfo is the bookkeeping of one page.
type pageInfo struct {
	used       uint16 // objects in use
	fresh      uint16 // objects never used since the page got its class
	free       uint16 // 1 + number of the first free object; 0 ends the list, which runs through the objects' first words
	class      class
	next, prev uint32 // pages of the class with room
}

// arena hands out small pieces of pages and takes them back. Pages whose objects are all free can serve another class; they are kept
// rather than given back to the heap, because memory that waits for the collector still counts against the machine. So what the arena
// holds never shrinks and never exceeds its limit. The zero arena has limit 0.
type arena struct {
	limit int // pages that may be taken from the heap
	pages []*page
	info  []pageInfo
	room  [classes]uint32 // a page of the class with room, head of a list; 0 is none
	holes [classes]int    // objects that the class's pages have room for
	spare []uint32        // pages without a class
	live  int64           // words in use, with rounding to classes
}

// at returns the words from r to the end of its page.
func (a *arena) at(r ref) []uint64 { return a.pages[r>>pageBits][r&(pageWords-1):] }

// alloc returns a new object with undefined content, or 0 when the limit does not allow one.
func (a *arena) alloc(c class) ref {
	n := a.room[c]
	if n == 0 {
		if n = a.take(); n == 0 {
			return 0
		}
		a.info[n] = pageInfo{class: c}
		a.link(n)
		a.holes[c] += c.perPage()
	}
	in := &a.info[n]
	size := sizes[c]
	var object int
	if in.free != 0 {
		object = int(in.free) - 1
		in.free = uint16(a.pages[n][object*size])
	} else {
		object = int(in.fresh)
		in.fresh++
	}
	in.used++
	a.holes[c]--
	a.live += int64(size)
	if int(in.used) == c.perPage() {
		a.unlink(n)
	}
	return ref(n)<<pageBits | ref(object*size)
}

// free takes an object back.
func (a *arena) free(r ref, c class) {
	n := uint32(r >> pageBits)
	in := &a.info[n]
	size := sizes[c]
	object := int(r&(pageWords-1)) / size
	if int(in.used) == c.perPage() {
		a.link(n)
	}
	a.pages[n][object*size] = uint64(in.free)
	in.free = uint16(object + 1)
	in.used--
	a.holes[c]++
	a.live -= int64(size)
	if in.used == 0 {
		a.unlink(n)
		a.holes[c] -= c.perPage()
		a.spare = append(a.spare, n)
	}
}

// take returns a page without a class, or 0.
func (a *arena) take() uint32 {
	if n := len(a.spare); n > 0 {
		p := a.spare[n-1]
		a.spare = a.spare[:n-1]
		return p
	}
	if len(a.pages) == 0 {
		a.pages, a.info = append(a.pages, nil), append(a.info, pageInfo{}) // number 0, which stands for none
	}
	if len(a.pages) > a.limit {
		return 0
	}
	a.pages, a.info = append(a.pages, new(page)), append(a.info, pageInfo{})
	return uint32(len(a.pages) - 1)
}

func (a *arena) link(n uint32) {
	in := &a.info[n]
	head := a.room[in.class]
	in.next, in.prev = head, 0
	if head != 0 {
		a.info[head].prev = n
	}
	a.room[in.class] = n
}

func (a *arena) unlink(n uint32) {
	in := &a.info[n]
	if in.prev != 0 {
		a.info[in.prev].next = in.next
	} else {
		a.room[in.class] = in.next
	}
	if in.next != 0 {
		a.info[in.next].prev = in.prev
	}
}

// unused returns how many pages have no class or may still be taken.
func (a *arena) unused() int { return len(a.spare) + max(0, a.limit-max(0, len(a.pages)-1)) }

// need counts objects by class that an operation may allocate.
type need [classes]int

// fits reports whether all of n can be allocated.
func (a *arena) fits(n *need) bool {
	pages := a.unused()
	for c, count := range n {
		if missing := count - a.holes[c]; missing > 0 {
			per := class(c).perPage()
			pages -= (missing + per - 1) / per
		}
	}
	return pages >= 0
}

// bytes returns what the arena holds of the heap.
func (a *arena) bytes() int64 {
	return int64(max(0, len(a.pages)-1))*pageBytes + int64(cap(a.pages))*8 + int64(cap(a.info))*16 + int64(cap(a.spare))*4
}
