package prompt

import (
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// compact writes the JSON in s without insignificant white space, and with the
// characters themselves in place of the escapes for what is no ASCII: engines
// parse such JSON and render it anew, so neither reaches the model. Key order
// stays as it is, because it does. Text that is no JSON comes out in some way
// that depends on nothing but the text.
func compact(w Writer, s string) {
	c := compactor{w: w, s: s, clean: strings.IndexByte(s, mark) < 0}
	for c.i < len(s) {
		switch s[c.i] {
		case ' ', '\n', '\t', '\r':
			c.flush()
			for c.i < len(s) && (s[c.i] == ' ' || s[c.i] == '\n' || s[c.i] == '\t' || s[c.i] == '\r') {
				c.i++
			}
			c.from = c.i
		case '"':
			c.i++
			c.str()
		default:
			c.i++
		}
	}
	c.flush()
}

// compactor writes s without what compacting drops: long runs at a time.
type compactor struct {
	w       Writer
	s       string
	clean   bool // no byte of s needs doubling
	from, i int  // s[from:i] is looked at and not yet written
}

func (c *compactor) flush() {
	if c.clean {
		_, _ = c.w.WriteString(c.s[c.from:c.i])
	} else {
		text(c.w, c.s[c.from:c.i])
	}
	c.from = c.i
}

// str passes over the rest of a string, its closing quote included.
func (c *compactor) str() {
	for c.i < len(c.s) {
		switch c.s[c.i] {
		case '"':
			c.i++
			return
		case '\\':
			r, end := escape(c.s, c.i)
			if r >= 0 {
				c.flush()
				writeRune(c.w, r)
				c.from = end
			}
			c.i = end
		default:
			c.i++
		}
	}
}

// writeRune writes r byte by byte: a slice given to an interface would live on
// the heap.
func writeRune(w Writer, r rune) {
	var b [utf8.UTFMax]byte
	for _, c := range b[:utf8.EncodeRune(b[:], r)] {
		_ = w.WriteByte(c)
	}
}

// escape reads the escape at s[i] and returns the character to write for it
// and the offset behind. The character is negative when the escape is to stay:
// it stands for ASCII, where escapes have one spelling in practice, or for half
// a pair.
func escape(s string, i int) (rune, int) {
	if i+1 < len(s) && s[i+1] == '/' {
		return '/', i + 2
	}
	r, end := unicodeEscape(s, i)
	if utf16.IsSurrogate(r) {
		low, after := unicodeEscape(s, end)
		r = utf16.DecodeRune(r, low)
		if r == utf8.RuneError {
			return -1, end
		}
		end = after
	}
	if r < utf8.RuneSelf {
		r = -1
	}
	return r, min(end, len(s))
}

// unicodeEscape reads \uXXXX at s[i]. Of another escape it returns -1 and the
// offset behind its two bytes.
func unicodeEscape(s string, i int) (rune, int) {
	if i+6 > len(s) || s[i] != '\\' || s[i+1] != 'u' {
		return -1, i + 2
	}
	n, err := strconv.ParseUint(s[i+2:i+6], 16, 16)
	if err != nil {
		return -1, i + 2
	}
	return rune(n), i + 6
}
