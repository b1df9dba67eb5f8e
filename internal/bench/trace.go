package bench

import (
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/warmroute/warmroute/prefix"
)

// MooncakeBlockTokens is the block size of the traces that Mooncake published.
const MooncakeBlockTokens = 512

// Trace replays a recorded sequence of requests at the recorded times. The
// zero factor means 1.
type Trace struct {
	name        string
	records     []prefix.Record
	blockTokens int
	speed       float64
}

// OpenTrace reads a trace in Mooncake's JSON-lines format, gzipped when the
// name ends in .gz. blockTokens is the size of its blocks in tokens; 0 means
// [MooncakeBlockTokens]. speed multiplies the rate of arrivals; 0 means 1.
func OpenTrace(path string, blockTokens int, speed float64) (*Trace, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open trace: %w", err)
	}
	defer file.Close()
	var r io.Reader = file
	if strings.HasSuffix(path, ".gz") {
		if r, err = gzip.NewReader(file); err != nil {
			return nil, fmt.Errorf("open trace %s: %w", path, err)
		}
	}
	t, err := ReadTrace(r, blockTokens, speed)
	if err != nil {
		return nil, fmt.Errorf("read trace %s: %w", path, err)
	}
	t.name, _, _ = strings.Cut(filepath.Base(path), ".")
	return t, nil
}

var errEmptyTrace = errors.New("no request in it")

// ReadTrace reads a trace from r; see [OpenTrace].
func ReadTrace(r io.Reader, blockTokens int, speed float64) (*Trace, error) {
	if blockTokens == 0 {
		blockTokens = MooncakeBlockTokens
	}
	if speed == 0 {
		speed = 1
	}
	t := &Trace{name: "trace", blockTokens: blockTokens, speed: speed}
	for record, err := range prefix.ReadRecords(r) {
		if err != nil {
			return nil, err
		}
		if record.InputLength > 0 {
			t.records = append(t.records, record)
		}
	}
	if len(t.records) == 0 {
		return nil, errEmptyTrace
	}
	slices.SortStableFunc(t.records, func(a, b prefix.Record) int { return cmp.Compare(a.Timestamp, b.Timestamp) })
	return t, nil
}

// Name implements [Workload].
func (t *Trace) Name() string {
	if t.speed == 1 {
		return t.name
	}
	return fmt.Sprintf("%s x%g", t.name, t.speed)
}

// Len is the number of requests.
func (t *Trace) Len() int { return len(t.records) }

// Head returns the trace's first n requests.
func (t *Trace) Head(n int) *Trace {
	head := *t
	head.records = t.records[:min(n, len(t.records))]
	return &head
}

// Source implements [Workload]. The seed changes nothing but the identities of
// answers.
func (t *Trace) Source(seed uint64) Source { return &traceSource{Trace: t, seed: seed} }

type traceSource struct {
	*Trace
	seed  uint64
	taken int
}

func (s *traceSource) Next() (time.Duration, bool) {
	if s.taken == len(s.records) {
		return 0, false
	}
	since := s.records[s.taken].Timestamp - s.records[0].Timestamp
	return seconds(float64(since) / 1000 / s.speed), true
}

func (s *traceSource) Take(r *Request) {
	at, _ := s.Next()
	record := &s.records[s.taken]
	*r = Request{At: at, Prompt: r.Prompt[:0]}
	left := record.InputLength
	for _, id := range record.HashIDs {
		n := min(s.blockTokens, left)
		if n == 0 {
			break
		}
		r.Prompt = append(r.Prompt, Segment{mix(uint64(id)+1, documentText), n})
		left -= n
	}
	if left > 0 { // blocks that the trace leaves out are nobody else's
		r.Prompt = append(r.Prompt, Segment{segmentID(s.seed, questionText, uint64(s.taken)), left})
	}
	if record.SessionID != "" {
		h := fnv.New64a()
		fmt.Fprint(h, record.SessionID)
		r.Session = max(h.Sum64(), 1)
	}
	r.Answer = Segment{segmentID(s.seed, answerText, uint64(s.taken)), max(record.OutputLength, 1)}
	s.taken++
}

func (s *traceSource) Ended(*Request, time.Duration) {}
