package bench

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// RAG is retrieval-augmented generation: every prompt is a shared system text,
// one of Prefixes documents drawn by Zipf popularity, and a question of its
// own. Requests arrive as a Poisson process that does not wait for answers.
type RAG struct {
	Requests     int
	Rate         float64 // arrivals per second
	Prefixes     int     // number of documents
	PrefixTokens int     // length of each
	Zipf         float64 // exponent of their popularity; 0 makes all equal
	SystemTokens int     // system text in front of every document
	Tail         Length  // question
	Output       Length  // answer
}

// Name implements [Workload].
func (w RAG) Name() string {
	return fmt.Sprintf("rag %dx%d zipf %g at %g/s", w.Prefixes, w.PrefixTokens, w.Zipf, w.Rate)
}

// Source implements [Workload].
func (w RAG) Source(seed uint64) Source {
	s := &ragSource{
		RAG:      w,
		seed:     seed,
		ranks:    newZipf(w.Prefixes, w.Zipf),
		arrivals: stream(seed, drawArrivals),
		content:  stream(seed, drawContent),
		lengths:  stream(seed, drawLengths),
	}
	s.at = gap(s.arrivals, w.Rate)
	return s
}

type ragSource struct {
	RAG
	seed                       uint64
	ranks                      zipf
	arrivals, content, lengths *rand.Rand
	taken                      int
	at                         time.Duration
}

func (s *ragSource) Next() (time.Duration, bool) { return s.at, s.taken < s.Requests }

func (s *ragSource) Take(r *Request) {
	document := s.ranks.draw(s.content)
	*r = Request{At: s.at, Prompt: r.Prompt[:0]}
	if s.SystemTokens > 0 {
		r.Prompt = append(r.Prompt, Segment{segmentID(s.seed, systemText, 0), s.SystemTokens})
	}
	r.Prompt = append(r.Prompt,
		Segment{segmentID(s.seed, documentText, uint64(document)), s.PrefixTokens},
		Segment{segmentID(s.seed, questionText, uint64(s.taken)), s.Tail.draw(s.lengths)})
	r.Answer = Segment{segmentID(s.seed, answerText, uint64(s.taken)), max(s.Output.draw(s.lengths), 1)}
	s.taken++
	s.at += gap(s.arrivals, s.Rate)
}

func (s *ragSource) Ended(*Request, time.Duration) {}

// Roles of segments: the same number in two roles is two texts.
const (
	systemText = iota + 1
	documentText
	questionText
	answerText
)

func segmentID(seed uint64, role, n uint64) uint64 { return mix(mix(seed+1, role), n+1) }
