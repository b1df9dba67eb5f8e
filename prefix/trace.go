package prefix

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"strconv"
)

// Record is one request of a trace in Mooncake's JSON-lines format. One hash id
// stands for one block of the prompt and of all before it, so equal leading
// ids mean an equal beginning. The size of a block belongs to the trace, not
// to the record: 512 tokens in the traces that Mooncake published.
type Record struct {
	Timestamp    int64   // arrival in milliseconds since the start of the trace
	InputLength  int     // prompt tokens
	OutputLength int     // generated tokens
	HashIDs      []int64 // one per block of the prompt, the last may be partial
	SessionID    string  // extended format: the conversation; empty when the trace names none
	Delay        int64   // extended format: milliseconds since the session's turn before
}

// MaxRecordBytes is the longest line that ReadRecords accepts: a prompt of ten
// million tokens in blocks of 16 still fits.
const MaxRecordBytes = 16 << 20

// ErrRecordTooLong is wrapped by the error for a line over [MaxRecordBytes].
var ErrRecordTooLong = errors.New("line is too long")

// ReadRecords reads a trace, one JSON object a line. Blank lines are skipped,
// and members it does not know are ignored. The first fault ends the sequence
// with an error that names the line; the record beside it is zero.
func ReadRecords(r io.Reader) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		br := bufio.NewReaderSize(r, 64<<10)
		var long []byte // holds a line that the reader's buffer does not
		for n := 1; ; n++ {
			line, err := readLine(br, &long)
			end := errors.Is(err, io.EOF)
			if err != nil && !end {
				yield(Record{}, fmt.Errorf("read trace line %d: %w", n, err))
				return
			}
			if !blank(line) {
				rec, err := parseRecord(line)
				if err != nil {
					yield(Record{}, fmt.Errorf("parse trace line %d: %w", n, err))
					return
				}
				if !yield(rec, nil) {
					return
				}
			}
			if end {
				return
			}
		}
	}
}

// readLine returns the next line, which is valid until the next call, and
// io.EOF together with the last one.
func readLine(br *bufio.Reader, long *[]byte) ([]byte, error) {
	line, err := br.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, err
	}
	*long = append((*long)[:0], line...)
	for errors.Is(err, bufio.ErrBufferFull) {
		if len(*long) > MaxRecordBytes {
			return nil, ErrRecordTooLong
		}
		line, err = br.ReadSlice('\n')
		*long = append(*long, line...)
	}
	return *long, err
}

func blank(line []byte) bool {
	for _, c := range line {
		if c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			return false
		}
	}
	return true
}

// wireRecord is Record as it is written. Writers differ in how they spell
// numbers (1200, 1200.0) and session ids (7, "7").
type wireRecord struct {
	Timestamp    json.Number     `json:"timestamp"`
	InputLength  json.Number     `json:"input_length"`
	OutputLength json.Number     `json:"output_length"`
	HashIDs      []int64         `json:"hash_ids"`
	SessionID    json.RawMessage `json:"session_id"`
	Delay        json.Number     `json:"delay"`
}

func parseRecord(line []byte) (Record, error) {
	var w wireRecord
	if err := json.Unmarshal(line, &w); err != nil {
		return Record{}, err
	}
	var err error
	number := func(name string, n json.Number, most int64) int64 {
		v, e := wholeNumber(n, most)
		if e != nil && err == nil {
			err = fmt.Errorf("%s %s: %w", name, n, e)
		}
		return v
	}
	rec := Record{
		Timestamp:    number("timestamp", w.Timestamp, math.MaxInt64),
		InputLength:  int(number("input_length", w.InputLength, math.MaxInt32)),
		OutputLength: int(number("output_length", w.OutputLength, math.MaxInt32)),
		Delay:        number("delay", w.Delay, math.MaxInt64),
		HashIDs:      w.HashIDs,
	}
	if err != nil {
		return Record{}, err
	}
	if rec.SessionID, err = sessionID(w.SessionID); err != nil {
		return Record{}, err
	}
	return rec, nil
}

var (
	errNegative = errors.New("must not be negative")
	errTooLarge = errors.New("is too large")
)

func wholeNumber(n json.Number, most int64) (int64, error) {
	if n == "" {
		return 0, nil
	}
	v, err := n.Int64()
	if err != nil {
		// Fractions of a millisecond are dropped. 2^53 bounds what a float holds exactly.
		f, ferr := n.Float64()
		if ferr != nil || math.Abs(f) >= 1<<53 {
			return 0, errTooLarge
		}
		v = int64(math.Floor(f))
	}
	switch {
	case v < 0:
		return 0, errNegative
	case v > most:
		return 0, errTooLarge
	}
	return v, nil
}

func sessionID(raw json.RawMessage) (string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	switch raw[0] {
	case '"':
		var s string
		err := json.Unmarshal(raw, &s)
		return s, err
	case '{', '[', 't', 'f':
		return "", fmt.Errorf("session_id %s: must be a string or a number", raw)
	}
	return string(raw), nil
}

// AppendJSON appends the record as one JSON object, without a line end, and
// returns the longer slice. Zero SessionID and Delay are left out, as in the
// original format.
func (r Record) AppendJSON(b []byte) []byte {
	b = append(b, `{"timestamp": `...)
	b = strconv.AppendInt(b, r.Timestamp, 10)
	b = append(b, `, "input_length": `...)
	b = strconv.AppendInt(b, int64(r.InputLength), 10)
	b = append(b, `, "output_length": `...)
	b = strconv.AppendInt(b, int64(r.OutputLength), 10)
	b = append(b, `, "hash_ids": [`...)
	for i, id := range r.HashIDs {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = strconv.AppendInt(b, id, 10)
	}
	b = append(b, ']')
	if r.SessionID != "" {
		id, _ := json.Marshal(r.SessionID) // a string always marshals
		b = append(b, `, "session_id": `...)
		b = append(b, id...)
	}
	if r.Delay != 0 {
		b = append(b, `, "delay": `...)
		b = strconv.AppendInt(b, r.Delay, 10)
	}
	return append(b, '}')
}

// WriteRecord writes the record as one line. Give it a buffered writer: each
// record is one Write.
func WriteRecord(w io.Writer, r Record) error {
	if _, err := w.Write(append(r.AppendJSON(nil), '\n')); err != nil {
		return fmt.Errorf("write trace record: %w", err)
	}
	return nil
}
