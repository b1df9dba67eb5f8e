package fleet

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// sample is one line of a metrics page.
type sample struct {
	name   string
	labels []label
	value  float64
}

type label struct{ name, value string }

// label returns the value of a label, or "".
func (s sample) label(name string) string {
	for _, l := range s.labels {
		if l.name == name {
			return l.value
		}
	}
	return ""
}

// maxLine bounds a line of a metrics page; a longer one is skipped.
const maxLine = 64 << 10

// readSamples reads a page in the Prometheus text format (version 0.0.4, and
// OpenMetrics as far as values go) and passes on the samples whose name is
// wanted. Lines that it does not understand are counted and skipped, so that one
// bad label does not blind the gateway; an error means that the page was not
// read to its end. Lines that nobody wants, nearly all of a page, cost no
// allocation.
func readSamples(r io.Reader, wanted func(name []byte) bool, emit func(sample)) (skipped int, err error) {
	br := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := br.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			skipped++
			err = discardLine(br)
			line = nil
		}
		if len(line) > 0 && !readLine(line, wanted, emit) {
			skipped++
		}
		if errors.Is(err, io.EOF) {
			return skipped, nil
		}
		if err != nil {
			return skipped, fmt.Errorf("read metrics: %w", err)
		}
	}
}

func discardLine(br *bufio.Reader) error {
	for {
		_, err := br.ReadSlice('\n')
		if !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

// readLine reports whether it understood the line; comments and what nobody
// wants count as understood.
func readLine(line []byte, wanted func([]byte) bool, emit func(sample)) bool {
	line = bytes.TrimSpace(line)
	if len(line) == 0 || line[0] == '#' {
		return true
	}
	end := bytes.IndexAny(line, "{ \t")
	if end <= 0 {
		return false
	}
	if !wanted(line[:end]) {
		return true
	}
	s := sample{name: string(line[:end])}
	rest := bytes.TrimLeft(line[end:], " \t")
	if len(rest) > 0 && rest[0] == '{' {
		var ok bool
		if s.labels, rest, ok = readLabels(rest[1:]); !ok {
			return false
		}
	}
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		return false
	}
	v, err := strconv.ParseFloat(string(fields[0]), 64)
	if err != nil {
		return false
	}
	s.value = v
	emit(s)
	return true
}

// readLabels reads name="value" pairs up to the closing brace and returns what
// follows it.
func readLabels(b []byte) (labels []label, rest []byte, ok bool) {
	for {
		b = bytes.TrimLeft(b, " \t,")
		if len(b) == 0 {
			return nil, nil, false
		}
		if b[0] == '}' {
			return labels, b[1:], true
		}
		name, after, found := bytes.Cut(b, []byte{'='})
		if !found {
			return nil, nil, false
		}
		after = bytes.TrimLeft(after, " \t")
		if len(after) == 0 || after[0] != '"' {
			return nil, nil, false
		}
		value, tail, ok := readQuoted(after[1:])
		if !ok {
			return nil, nil, false
		}
		labels = append(labels, label{name: string(bytes.TrimSpace(name)), value: value})
		b = tail
	}
}

// readQuoted reads up to the closing quote, resolving \\, \" and \n.
func readQuoted(b []byte) (value string, rest []byte, ok bool) {
	var sb strings.Builder
	for i := 0; i < len(b); i++ {
		switch c := b[i]; c {
		case '"':
			return sb.String(), b[i+1:], true
		case '\\':
			i++
			if i == len(b) {
				return "", nil, false
			}
			switch b[i] {
			case 'n':
				sb.WriteByte('\n')
			case '\\', '"':
				sb.WriteByte(b[i])
			default:
				sb.WriteByte('\\')
				sb.WriteByte(b[i])
			}
		default:
			sb.WriteByte(c)
		}
	}
	return "", nil, false
}

// page is the wanted samples of one metrics page.
type page []sample

// keep is a filter over samples; nil keeps all.
type keep func(sample) bool

// sum adds up the samples under the first of the names that has any.
func (p page) sum(k keep, names ...string) (total float64, ok bool) {
	for _, name := range names {
		for _, s := range p {
			if s.name == name && (k == nil || k(s)) && !math.IsNaN(s.value) {
				total, ok = total+s.value, true
			}
		}
		if ok {
			return total, true
		}
	}
	return 0, false
}

// mean is the average of the samples under the first of the names that has any.
func (p page) mean(k keep, names ...string) (float64, bool) {
	for _, name := range names {
		n := 0
		total, ok := p.sum(func(s sample) bool {
			if k != nil && !k(s) {
				return false
			}
			n++
			return true
		}, name)
		if ok && n > 0 {
			return total / float64(n), true
		}
	}
	return 0, false
}
