package dialect

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// plain returns the offset, from i on, of the first byte that ends a run of
// plain string bytes: a quote, a backslash or a control character.
func plain(b []byte, i int) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	for ; i+8 <= len(b); i += 8 {
		x := binary.LittleEndian.Uint64(b[i:])
		quote, slash := x^ones*'"', x^ones*'\\'
		// The lowest set bit is exact: a borrow can only mark bytes above a true hit.
		hit := ((quote-ones)&^quote | (slash-ones)&^slash | (x-ones*' ')&^x) & highs
		if hit != 0 {
			return i + bits.TrailingZeros64(hit)/8
		}
	}
	for i < len(b) && b[i] != '"' && b[i] != '\\' && b[i] >= ' ' {
		i++
	}
	return i
}

func (c *cursor) skipString() {
	for i := c.i + 1; ; {
		i = plain(c.b, i)
		switch {
		case i < len(c.b) && c.b[i] == '"':
			c.i = i + 1
			return
		case i < len(c.b) && c.b[i] == '\\':
			if i+1 < len(c.b) && escapes[c.b[i+1]] != 0 {
				i += 2
			} else if _, i = c.unicode(i); c.fault.set {
				return
			}
		default:
			c.fail(i, "the string's end")
			return
		}
	}
}

// str takes the string at the cursor, whose opening quote is the next byte.
// Without escapes it is a view of the document, else it lies in the arena.
func (c *cursor) str() string {
	from := c.i + 1
	i := plain(c.b, from)
	if i < len(c.b) && c.b[i] == '"' {
		c.i = i + 1
		return view(c.b[from:i])
	}
	if c.arena == nil {
		// Unescaping never lengthens, so what is left of the document is room enough.
		c.arena = make([]byte, 0, len(c.b)-from)
	}
	a := c.arena // held apart: each store to the cursor would tell the collector
	start := len(a)
	for {
		a = append(a, c.b[from:i]...)
		switch {
		case i < len(c.b) && c.b[i] == '"':
			c.i = i + 1
			c.arena = a
			return view(a[start:])
		case i < len(c.b) && c.b[i] == '\\':
			if i+1 < len(c.b) && escapes[c.b[i+1]] != 0 {
				a = append(a, escapes[c.b[i+1]])
				from = i + 2
			} else {
				var r rune
				if r, from = c.unicode(i); c.fault.set {
					return ""
				}
				a = utf8.AppendRune(a, r)
			}
			i = plain(c.b, from)
		default:
			c.fail(i, "the string's end")
			return ""
		}
	}
}

// escapes holds what the escapes of two bytes stand for.
var escapes = [256]byte{
	'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t',
}

// unicode reads the \uXXXX at i, and the one behind it when they are a pair. It
// returns the character and the offset behind it. Half a pair is U+FFFD.
func (c *cursor) unicode(i int) (rune, int) {
	if i+1 >= len(c.b) || c.b[i+1] != 'u' {
		c.fail(min(i+1, len(c.b)), "an escape")
		return 0, i
	}
	r, at := hex4(c.b, i+2)
	if at >= 0 {
		c.fail(at, "a hexadecimal digit")
		return 0, i
	}
	i += 6
	if !utf16.IsSurrogate(r) {
		return r, i
	}
	if i+1 < len(c.b) && c.b[i] == '\\' && c.b[i+1] == 'u' {
		// A broken second half is found when it is read for itself.
		if low, at := hex4(c.b, i+2); at < 0 {
			if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
				return pair, i + 6
			}
		}
	}
	return utf8.RuneError, i
}

// hex4 reads four hexadecimal digits at i. The second result is the offset of
// the first byte that is none, or -1.
func hex4(b []byte, i int) (rune, int) {
	var r rune
	for j := i; j < i+4; j++ {
		if j >= len(b) {
			return 0, len(b)
		}
		d := rune(b[j])
		switch {
		case d >= '0' && d <= '9':
			d -= '0'
		case d >= 'a' && d <= 'f':
			d -= 'a' - 10
		case d >= 'A' && d <= 'F':
			d -= 'A' - 10
		default:
			return 0, j
		}
		r = r<<4 | d
	}
	return r, -1
}
