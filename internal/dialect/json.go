package dialect

import (
	"fmt"
	"strconv"
	"unicode/utf8"
	"unsafe"
)

// maxDepth is how deep JSON may nest. Real requests stay below 30; the bound
// keeps hostile bodies from costing more than their bytes.
const maxDepth = 512

// deeper marks the fault of nesting beyond maxDepth.
const deeper = "a shallower value"

// cursor reads one JSON document front to back and checks it on the way, so
// that a body is looked at once. Whoever walks it takes the values it wants;
// what is left standing is checked and skipped. The first fault ends the walk:
// from then on every read finds nothing.
//
// It exists beside gjson because that needs one pass to validate and one per
// level to find things: over three times the time on a long conversation.
type cursor struct {
	b     []byte
	i     int    // next byte to read
	depth int    // open objects and arrays
	arena []byte // unescaped strings; never grows over its capacity while they are in use
	fault fault
}

// fault is the first thing that is wrong with a document.
type fault struct {
	set  bool
	at   int    // byte offset of the offending byte, the length at an early end
	want string // what would be right there
}

// describe says what is wrong with body, in words that follow its name.
func (f fault) describe(body []byte) string {
	if f.want == deeper {
		return fmt.Sprintf("nests deeper than %d levels at byte %d", maxDepth, f.at)
	}
	if f.at >= len(body) {
		return fmt.Sprintf("is not valid JSON: it ends at byte %d where %s should follow", len(body), f.want)
	}
	r, n := utf8.DecodeRune(body[f.at:])
	got := strconv.QuoteRune(r)
	if r == utf8.RuneError && n == 1 {
		got = fmt.Sprintf("0x%02x", body[f.at])
	}
	return fmt.Sprintf("is not valid JSON: %s at byte %d where %s should be", got, f.at, f.want)
}

// reset makes the cursor ready for b. Strings read before are lost.
func (c *cursor) reset(b []byte) {
	*c = cursor{b: b, arena: c.arena[:0]}
	if cap(c.arena) < len(b) || cap(c.arena) > keepSize {
		c.arena = nil
	}
}

// fail records that the byte at offset at is wrong and ends the walk.
func (c *cursor) fail(at int, want string) {
	if !c.fault.set {
		c.fault = fault{set: true, at: at, want: want}
	}
	c.b = c.b[:0]
	c.i = 0
}

// peek returns the next byte that is no white space, without taking it, and
// zero at the end.
func (c *cursor) peek() byte {
	for c.i < len(c.b) {
		switch ch := c.b[c.i]; ch {
		case ' ', '\n', '\t', '\r':
			c.i++
		default:
			return ch
		}
	}
	return 0
}

// finish checks that nothing follows the document.
func (c *cursor) finish() {
	if c.peek() != 0 || c.i < len(c.b) {
		c.fail(c.i, "the end")
	}
}

// members walks the object at the cursor and hands out its keys. At another
// value it does nothing.
func (c *cursor) members(yield func(key string) bool) {
	if c.peek() != '{' || !c.enter() {
		return
	}
	if c.peek() == '}' {
		c.leave()
		return
	}
	for live := true; ; {
		key := c.key()
		at := c.i
		if c.fault.set {
			return
		}
		live = live && yield(key)
		if c.i == at {
			c.skip()
		}
		switch c.peek() {
		case ',':
			c.i++
		case '}':
			c.leave()
			return
		default:
			c.fail(c.i, "',' or '}'")
			return
		}
	}
}

// elements walks the array at the cursor and hands out the indexes. At another
// value it does nothing.
func (c *cursor) elements(yield func(i int) bool) {
	if c.peek() != '[' || !c.enter() {
		return
	}
	if c.peek() == ']' {
		c.leave()
		return
	}
	live := true
	for i := 0; ; i++ {
		c.peek()
		at := c.i
		live = live && yield(i)
		if c.i == at {
			c.skip()
		}
		switch c.peek() {
		case ',':
			c.i++
		case ']':
			c.leave()
			return
		default:
			c.fail(c.i, "',' or ']'")
			return
		}
	}
}

func (c *cursor) enter() bool {
	if c.depth == maxDepth {
		c.fail(c.i, deeper)
		return false
	}
	c.depth++
	c.i++
	return true
}

func (c *cursor) leave() {
	c.depth--
	c.i++
}

// key reads a member's key and its colon and stops at its value.
func (c *cursor) key() string {
	if c.peek() != '"' {
		c.fail(c.i, "a key in quotes")
		return ""
	}
	key := c.str()
	if c.peek() != ':' {
		c.fail(c.i, "':'")
		return ""
	}
	c.i++
	c.peek()
	return key
}

// text takes the string at the cursor. At another value it takes nothing.
func (c *cursor) text() (string, bool) {
	if c.peek() != '"' {
		return "", false
	}
	return c.str(), true
}

// boolean takes the boolean at the cursor. At another value it takes nothing.
func (c *cursor) boolean() (value, ok bool) {
	switch c.peek() {
	case 't':
		c.word("true")
		return true, true
	case 'f':
		c.word("false")
		return false, true
	}
	return false, false
}

// integer takes the number at the cursor, its fraction cut off. At another
// value it takes nothing; a number that fits no int is taken but not ok.
func (c *cursor) integer() (int, bool) {
	if ch := c.peek(); ch != '-' && (ch < '0' || ch > '9') {
		return 0, false
	}
	raw := c.raw()
	if n, err := strconv.Atoi(raw); err == nil {
		return n, true
	}
	f, err := strconv.ParseFloat(raw, 64)
	if err != nil || f < -1<<53 || f > 1<<53 {
		return 0, false
	}
	return int(f), true
}

// null reports whether the value at the cursor is null, without taking it.
func (c *cursor) null() bool { return c.peek() == 'n' }

// raw takes the value at the cursor as it is written.
func (c *cursor) raw() string {
	c.peek()
	from := c.i
	c.skip()
	if c.fault.set {
		return ""
	}
	return view(c.b[from:c.i])
}

// view is b as a string, without a copy.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// skip checks the value at the cursor and steps over it. It keeps its own
// stack, one bit a level, so that nesting costs no stack of goroutine.
func (c *cursor) skip() {
	var object [maxDepth/64 + 1]uint64
	base := c.depth
	for {
		switch ch := c.peek(); {
		case ch != '{' && ch != '[':
			c.skipScalar(ch)
		case !c.enter():
			return
		case c.peek() == ch+2: // '}' is '{'+2, ']' is '['+2
			c.leave()
		case ch == '{':
			object[c.depth/64] |= 1 << (c.depth % 64)
			c.skipKey()
			continue
		default:
			object[c.depth/64] &^= 1 << (c.depth % 64)
			continue
		}
		if !c.skipEnds(base, &object) {
			return
		}
	}
}

// skipEnds steps over what closes after a value, and over the comma before the
// next. It reports whether a further value follows above the level base.
func (c *cursor) skipEnds(base int, object *[maxDepth/64 + 1]uint64) bool {
	for c.depth > base && !c.fault.set {
		inObject := object[c.depth/64]>>(c.depth%64)&1 == 1
		switch ch := c.peek(); {
		case ch == ',':
			c.i++
			if inObject {
				c.skipKey()
			}
			return !c.fault.set
		case inObject && ch == '}', !inObject && ch == ']':
			c.leave()
		case inObject:
			c.fail(c.i, "',' or '}'")
		default:
			c.fail(c.i, "',' or ']'")
		}
	}
	return false
}

func (c *cursor) skipKey() {
	if c.peek() != '"' {
		c.fail(c.i, "a key in quotes")
		return
	}
	c.skipString()
	if c.peek() != ':' {
		c.fail(c.i, "':'")
		return
	}
	c.i++
}

func (c *cursor) skipScalar(ch byte) {
	switch {
	case ch == '"':
		c.skipString()
	case ch == '-' || ch >= '0' && ch <= '9':
		c.skipNumber()
	case ch == 't':
		c.word("true")
	case ch == 'f':
		c.word("false")
	case ch == 'n':
		c.word("null")
	default:
		c.fail(c.i, "a value")
	}
}

func (c *cursor) word(w string) {
	for j := range len(w) {
		if c.i+j >= len(c.b) || c.b[c.i+j] != w[j] {
			c.fail(c.i+j, w)
			return
		}
	}
	c.i += len(w)
}

// skipNumber checks -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?.
func (c *cursor) skipNumber() {
	if c.b[c.i] == '-' {
		c.i++
	}
	if c.at('0') {
		c.i++
	} else {
		c.digits()
	}
	if c.at('.') {
		c.i++
		c.digits()
	}
	if c.at('e') || c.at('E') {
		c.i++
		if c.at('+') || c.at('-') {
			c.i++
		}
		c.digits()
	}
}

func (c *cursor) at(ch byte) bool { return c.i < len(c.b) && c.b[c.i] == ch }

func (c *cursor) digits() {
	from := c.i
	for c.i < len(c.b) && c.b[c.i]-'0' <= 9 {
		c.i++
	}
	if c.i == from {
		c.fail(c.i, "a digit")
	}
}
