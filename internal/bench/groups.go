package bench

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Groups is the shape of the published shared-prefix benchmarks: Groups
// prefixes, each with Prompts questions of its own. Every pass asks each
// question once, in an order drawn anew; Poisson arrivals do not wait for
// answers.
//
//   - llm-d's and inference-perf's shared_prefix repeats the same questions in
//     each pass (150 groups x 5 prompts, 6,000 + 1,200 -> 1,000);
//   - SGLang's generated-shared-prefix is one pass (64 x 16, 2,048 + 128 -> 256);
//   - vLLM's prefix_repetition has new suffixes all the time: Fresh.
type Groups struct {
	Requests       int
	Rate           float64 // arrivals per second
	Groups         int
	Prompts        int // questions of one group
	PrefixTokens   int
	QuestionTokens Length
	Output         Length
	// Fresh makes the questions of every pass new.
	Fresh bool
}

// Name implements [Workload].
func (w Groups) Name() string {
	return fmt.Sprintf("groups %dx%d of %d tokens at %g/s", w.Groups, w.Prompts, w.PrefixTokens, w.Rate)
}

// Source implements [Workload].
func (w Groups) Source(seed uint64) Source {
	s := &groupsSource{Groups: w, seed: seed, arrivals: stream(seed, drawArrivals), content: stream(seed, drawContent)}
	s.at = gap(s.arrivals, w.Rate)
	return s
}

type groupsSource struct {
	Groups
	seed              uint64
	arrivals, content *rand.Rand
	order             []int // of the pass under way
	taken             int
	at                time.Duration
}

func (s *groupsSource) Next() (time.Duration, bool) { return s.at, s.taken < s.Requests }

func (s *groupsSource) Take(r *Request) {
	pass := s.Groups.Groups * s.Prompts
	if s.taken%pass == 0 {
		s.order = s.content.Perm(pass)
	}
	number := uint64(s.order[s.taken%pass])
	group := number / uint64(s.Prompts)
	question := number
	if s.Fresh {
		question = uint64(s.taken)
	}
	// The length belongs to the question, so that it is the same in every pass.
	lengths := stream(s.seed, mix(drawLengths, question))
	*r = Request{At: s.at, Prompt: append(r.Prompt[:0],
		Segment{segmentID(s.seed, documentText, group), s.PrefixTokens},
		Segment{segmentID(s.seed, questionText, question), s.QuestionTokens.draw(lengths)})}
	r.Answer = Segment{segmentID(s.seed, answerText, uint64(s.taken)), max(s.Output.draw(lengths), 1)}
	s.taken++
	s.at += gap(s.arrivals, s.Rate)
}

func (s *groupsSource) Ended(*Request, time.Duration) {}
