package dialect

import (
	"bytes"
	"errors"
	"io"
)

// Event is one event of a server-sent stream. Its slices are valid until the
// next call of Next. The Raw of all events, one after the other, is the stream.
type Event struct {
	Raw     []byte // the exact bytes, line ends and the blank line included
	Data    []byte // the data lines, joined by line feeds
	Name    []byte // the event field; empty when there is none
	Comment bool   // there is no data line: comments, pings and stray blank lines
	Partial bool   // the stream ended before the event's blank line
}

// ErrEventTooLong is returned for an event over the Reader's limit.
var ErrEventTooLong = errors.New("stream event is too long")

const (
	// readSize is how much room a read is given at least. Engines write events
	// of some hundred bytes.
	readSize = 4 << 10
	// keepSize is the most memory that a Reader keeps for the events to come.
	keepSize = 256 << 10
	// maxEmptyReads is how many reads may bring nothing and no error.
	maxEmptyReads = 100
)

// Reader cuts a byte stream into server-sent events. Lines end in LF, CR or
// CRLF, a byte order mark may come first, and a line may be as long as the
// limit. An event is handed out as soon as its blank line is there: the Reader
// does not wait for the LF that may follow a CR, which then begins the next Raw.
//
// Beside the fields of the standard it takes "error" for data of an event of
// that name, because llama.cpp writes such lines.
type Reader struct {
	r   io.Reader
	max int
	err error // what the source ended with

	buf     []byte
	from    int    // where the current event begins in buf
	pos     int    // where the next line begins in buf
	lf, cr  finder // the next line ends in buf
	afterCR bool   // the line before ended in a CR at the very end of buf
	started bool   // the first line was read, so no byte order mark may come

	// The current event. Spans are relative to from, which moves with buf.
	lines    int    // data lines
	one      span   // the first data line
	joined   []byte // all data lines, when there are several
	name     span
	errField bool // there was an error line
}

// NewReader returns a Reader of r. Events longer than max bytes are refused.
func NewReader(r io.Reader, max int) *Reader {
	return &Reader{r: r, max: max}
}

// Next returns the next event. At the end of the stream it returns what was
// begun and has no blank line as a Partial event, and after it the source's
// error, which is io.EOF at a clean end.
func (r *Reader) Next() (Event, error) {
	r.begin()
	for {
		for line, ok := r.line(); ok; line, ok = r.line() {
			if r.field(line) {
				return r.event(r.pos)
			}
		}
		if len(r.buf)-r.from > r.max {
			return r.tooLong()
		}
		if r.err != nil {
			return r.rest()
		}
		r.fill()
	}
}

// begin forgets the event before.
func (r *Reader) begin() {
	r.from = r.pos
	r.lines, r.name, r.errField = 0, span{}, false
	if cap(r.joined) > keepSize {
		r.joined = nil
	}
	if left := len(r.buf) - r.from; cap(r.buf) > keepSize && left < readSize {
		r.move(make([]byte, left, 2*readSize))
	}
}

// finder remembers how far a byte was searched for, so that no byte of a long
// line is looked at twice.
type finder struct {
	at    int // where it is, or the end of what was searched
	found bool
}

// next returns the offset of the first c at or behind from, the length of buf
// when there is none yet.
func (f *finder) next(buf []byte, from int, c byte) int {
	if f.at < from {
		*f = finder{at: from}
	}
	if !f.found {
		i := bytes.IndexByte(buf[f.at:], c)
		if i < 0 {
			f.at = len(buf)
			return f.at
		}
		f.at += i
		f.found = true
	}
	return f.at
}

// line takes the next line without its end, if that end is there.
func (r *Reader) line() (span, bool) {
	if r.afterCR && r.pos < len(r.buf) {
		if r.buf[r.pos] == '\n' {
			r.pos++
		}
		r.afterCR = false
	}
	end := min(r.lf.next(r.buf, r.pos, '\n'), r.cr.next(r.buf, r.pos, '\r'))
	if end == len(r.buf) {
		return span{}, false
	}
	line := span{r.pos, end}
	r.pos = end + 1
	if r.buf[end] == '\r' {
		if r.pos == len(r.buf) {
			r.afterCR = true
		} else if r.buf[r.pos] == '\n' {
			r.pos++
		}
	}
	return line, true
}

var byteOrderMark = []byte("\xEF\xBB\xBF")

// field takes in one line and reports whether it is the blank one that ends an
// event.
func (r *Reader) field(l span) bool {
	if !r.started {
		r.started = true
		if bytes.HasPrefix(r.buf[l.from:l.to], byteOrderMark) {
			l.from += len(byteOrderMark)
		}
	}
	if l.from == l.to {
		return true
	}
	key := r.buf[l.from:l.to]
	value := span{l.to - r.from, l.to - r.from}
	if i := bytes.IndexByte(key, ':'); i >= 0 {
		value.from = l.from + i + 1 - r.from
		if i+1 < len(key) && key[i+1] == ' ' {
			value.from++
		}
		key = key[:i]
	}
	switch string(key) {
	case "data":
		r.addData(value)
	case "error":
		r.errField = true
		r.addData(value)
	case "event":
		r.name = value
	}
	return false
}

func (r *Reader) addData(value span) {
	r.lines++
	if r.lines == 1 {
		r.one = value
		return
	}
	if r.lines == 2 {
		r.joined = append(r.joined[:0], r.at(r.one)...)
	}
	r.joined = append(r.joined, '\n')
	r.joined = append(r.joined, r.at(value)...)
}

func (r *Reader) at(s span) []byte { return r.buf[r.from+s.from : r.from+s.to] }

// event returns the current event, which ends at the offset end.
func (r *Reader) event(end int) (Event, error) {
	if end-r.from > r.max {
		return r.tooLong()
	}
	e := Event{Raw: r.buf[r.from:end], Name: r.at(r.name), Comment: r.lines == 0}
	switch r.lines {
	case 0:
	case 1:
		e.Data = r.at(r.one)
	default:
		e.Data = r.joined
	}
	if r.errField {
		e.Name = []byte("error")
	}
	return e, nil
}

// rest returns what the ended stream leaves behind, then its error.
func (r *Reader) rest() (Event, error) {
	end := len(r.buf)
	if r.from == end {
		return Event{}, r.err
	}
	if r.pos < end {
		r.field(span{r.pos, end})
	}
	r.pos = end
	e, err := r.event(end)
	e.Partial = err == nil
	return e, err
}

func (r *Reader) tooLong() (Event, error) {
	r.err = ErrEventTooLong
	r.buf, r.from, r.pos, r.lf, r.cr = nil, 0, 0, finder{}, finder{}
	return Event{}, r.err
}

// fill reads more, making room for it.
func (r *Reader) fill() {
	if cap(r.buf)-len(r.buf) < readSize {
		left := len(r.buf) - r.from
		if dst := r.buf[:cap(r.buf)]; cap(dst)-left >= readSize && left <= cap(dst)/2 {
			r.move(dst[:left])
		} else {
			r.move(make([]byte, left, 2*left+2*readSize))
		}
	}
	for range maxEmptyReads {
		n, err := r.r.Read(r.buf[len(r.buf):cap(r.buf)])
		r.buf = r.buf[:len(r.buf)+n]
		r.err = err
		if n > 0 || err != nil {
			return
		}
	}
	r.err = io.ErrNoProgress
}

// move makes dst the buffer and begins it with the current event. dst may be
// the old buffer's memory.
func (r *Reader) move(dst []byte) {
	copy(dst, r.buf[r.from:])
	r.buf = dst
	r.pos -= r.from
	r.lf.at -= r.from
	r.cr.at -= r.from
	r.from = 0
}
