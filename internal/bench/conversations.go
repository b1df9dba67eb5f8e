package bench

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/warmroute/warmroute/internal/sim"
)

// Conversations replays recorded texts. Sessions start as a Poisson process;
// in a session the next turn comes a pause after the answer, and its prompt is
// everything that was said, with the recorded answers.
type Conversations struct {
	name     string
	sessions [][]turn
	// Rate is session starts per second.
	Rate float64
	// Think is the mean pause between an answer and the next turn, exponential.
	Think time.Duration
	// Repeat is how often all sessions are replayed, each time in another
	// order. Zero means once.
	Repeat int
}

// turn is what is new in a prompt, and its answer.
type turn struct {
	new    []Segment
	answer Segment
}

// OpenConversations reads JSON lines of texts, gzipped when the name ends in
// .gz. A line is a conversation {"session_id", "messages": [OpenAI messages]},
// in which every assistant message is a turn's answer, or a passage with
// questions {"context", "questions": [texts]}, each of which becomes a session
// of one turn.
func OpenConversations(path string, rate float64, think time.Duration) (*Conversations, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open conversations: %w", err)
	}
	defer file.Close()
	var r io.Reader = file
	if strings.HasSuffix(path, ".gz") {
		if r, err = gzip.NewReader(file); err != nil {
			return nil, fmt.Errorf("open conversations %s: %w", path, err)
		}
	}
	c, err := readConversations(r)
	if err != nil {
		return nil, fmt.Errorf("read conversations %s: %w", path, err)
	}
	c.name, _, _ = strings.Cut(filepath.Base(path), ".")
	c.Rate, c.Think = rate, think
	return c, nil
}

// recorded is a line of a file of texts.
type recorded struct {
	Messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
		Calls   json.RawMessage `json:"tool_calls"`
	} `json:"messages"`
	Context   string   `json:"context"`
	Questions []string `json:"questions"`
}

// answerTokens is the length of answers that were not recorded.
const answerTokens = 40

func readConversations(r io.Reader) (*Conversations, error) {
	c := &Conversations{}
	lines := json.NewDecoder(r)
	for n := 1; ; n++ {
		var line recorded
		err := lines.Decode(&line)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("record %d: %w", n, err)
		}
		if turns := line.turns(); len(turns) > 0 {
			c.sessions = append(c.sessions, turns)
		}
		passage := textSegment("user", line.Context)
		for _, q := range line.Questions {
			c.sessions = append(c.sessions, []turn{{[]Segment{passage, textSegment("user", q)}, Segment{textSegment("assistant", q).ID, answerTokens}}})
		}
	}
	if len(c.sessions) == 0 {
		return nil, errEmptyTrace
	}
	return c, nil
}

// turns cuts a conversation at its answers.
func (l *recorded) turns() []turn {
	var out []turn
	var t turn
	for _, m := range l.Messages {
		s := textSegment(m.Role, string(m.Content)+string(m.Calls))
		if m.Role != "assistant" {
			t.new = append(t.new, s)
			continue
		}
		if len(t.new) == 0 && len(out) == 0 {
			t.new = append(t.new, s) // a conversation that begins with an answer
			continue
		}
		t.answer = s
		out = append(out, t)
		t = turn{}
	}
	return out
}

// messageTokens is what a chat template adds to each message, about.
const messageTokens = 4

// textSegment knows a text by its hash, so that equal texts are shared.
func textSegment(role, text string) Segment {
	h := fnv.New64a()
	fmt.Fprint(h, role, "\x00", text)
	return Segment{max(h.Sum64(), 1), len(sim.AppendTokens(nil, text)) + messageTokens}
}

// Name implements [Workload].
func (c *Conversations) Name() string {
	return fmt.Sprintf("%s, %d sessions at %g/s", c.name, len(c.sessions)*max(c.Repeat, 1), c.Rate)
}

// Source implements [Workload].
func (c *Conversations) Source(seed uint64) Source {
	s := &replaySource{Conversations: c, seed: seed, arrivals: stream(seed, drawArrivals), order: stream(seed, drawContent)}
	s.open = map[uint64]*session{}
	s.start(gap(s.arrivals, c.Rate))
	return s
}

type replaySource struct {
	*Conversations
	seed            uint64
	arrivals, order *rand.Rand
	pass            []int // the order of the pass under way
	started         int
	waiting         sessionHeap
	open            map[uint64]*session
}

func (s *replaySource) start(at time.Duration) {
	if s.started == len(s.sessions)*max(s.Repeat, 1) {
		return
	}
	if s.started%len(s.sessions) == 0 {
		s.pass = s.order.Perm(len(s.sessions))
	}
	number := uint64(s.started)
	c := &session{number: number, at: at, lengths: stream(s.seed, mix(drawLengths, number))}
	c.recorded = s.sessions[s.pass[s.started%len(s.sessions)]]
	c.said = append(c.said, c.recorded[0].new...)
	s.started++
	s.waiting.push(c)
}

func (s *replaySource) Next() (time.Duration, bool) {
	if len(s.waiting) == 0 {
		return 0, false
	}
	return s.waiting[0].at, true
}

func (s *replaySource) Take(r *Request) {
	c := s.waiting.pop()
	*r = Request{At: c.at, Prompt: append(r.Prompt[:0], c.said...), Answer: c.recorded[c.turn].answer, Session: c.number + 1, Turn: c.turn}
	s.open[r.Session] = c
	if c.turn == 0 {
		s.start(c.at + gap(s.arrivals, s.Rate))
	}
}

func (s *replaySource) Ended(r *Request, now time.Duration) {
	c, ok := s.open[r.Session]
	if !ok {
		return
	}
	delete(s.open, r.Session)
	c.turn++
	if c.turn == len(c.recorded) {
		return
	}
	c.said = append(append(c.said, r.Answer), c.recorded[c.turn].new...)
	c.at = now + seconds(c.lengths.ExpFloat64()*s.Think.Seconds())
	s.waiting.push(c)
}
