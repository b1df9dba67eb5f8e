package bench

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"
)

// Chat is multi-turn conversation. Each session shares a system text with its
// group, then alternates user messages and answers; every turn sends all that
// was said before, answers included. A session waits for its answer, thinks,
// and sends the next turn.
//
// With Rate set, sessions start as a Poisson process. With Rate 0 the workload
// is a closed loop: Users sessions are open at any time, and one that ends is
// replaced at once.
type Chat struct {
	Sessions     int
	Rate         float64 // session starts per second; 0 means a closed loop
	Users        int     // open sessions of the closed loop
	Groups       int     // number of different system texts
	SystemTokens int
	Turns        Length        // user messages of one session
	User         Length        // tokens of a user message
	Output       Length        // tokens of an answer
	Think        time.Duration // mean pause between an answer and the next message, exponential
}

// Name implements [Workload].
func (w Chat) Name() string {
	if w.Rate > 0 {
		return fmt.Sprintf("chat %d sessions at %g/s", w.Sessions, w.Rate)
	}
	return fmt.Sprintf("chat %d sessions, %d users", w.Sessions, w.Users)
}

// Source implements [Workload].
func (w Chat) Source(seed uint64) Source {
	s := &chatSource{Chat: w, seed: seed, arrivals: stream(seed, drawArrivals), open: map[uint64]*session{}}
	if w.Rate == 0 {
		for range min(w.Users, w.Sessions) {
			s.start(seconds(s.arrivals.Float64() * w.Think.Seconds()))
		}
		return s
	}
	s.start(gap(s.arrivals, w.Rate))
	return s
}

// session is one conversation that has a turn to send or an answer to get.
type session struct {
	number  uint64
	at      time.Duration // arrival of the turn that waits to be taken
	said    []Segment     // everything up to and including that turn
	turn    int
	turns   int
	lengths *rand.Rand // its own, so that its content does not depend on who answers first

	recorded []turn // of a session that is replayed
}

type chatSource struct {
	Chat
	seed     uint64
	arrivals *rand.Rand
	started  int
	waiting  sessionHeap
	open     map[uint64]*session // taken, not yet answered
}

// start opens one more session, if any is left.
func (s *chatSource) start(at time.Duration) {
	if s.started == s.Sessions {
		return
	}
	number := uint64(s.started)
	s.started++
	group := number % uint64(max(s.Groups, 1))
	c := &session{number: number, at: at, lengths: stream(s.seed, mix(drawLengths, number))}
	c.turns = max(s.Turns.draw(c.lengths), 1)
	if s.SystemTokens > 0 {
		c.said = append(c.said, Segment{segmentID(s.seed, systemText, group), s.SystemTokens})
	}
	s.say(c)
	s.waiting.push(c)
}

// say appends the next user message.
func (s *chatSource) say(c *session) {
	id := segmentID(s.seed, questionText, c.number<<16|uint64(c.turn))
	c.said = append(c.said, Segment{id, max(s.User.draw(c.lengths), 1)})
}

func (s *chatSource) Next() (time.Duration, bool) {
	if len(s.waiting) == 0 {
		return 0, false
	}
	return s.waiting[0].at, true
}

func (s *chatSource) Take(r *Request) {
	c := s.waiting.pop()
	answer := Segment{segmentID(s.seed, answerText, c.number<<16|uint64(c.turn)), max(s.Output.draw(c.lengths), 1)}
	*r = Request{At: c.at, Prompt: append(r.Prompt[:0], c.said...), Answer: answer, Session: c.number + 1, Turn: c.turn}
	s.open[r.Session] = c
	if s.Rate > 0 && c.turn == 0 {
		s.start(c.at + gap(s.arrivals, s.Rate))
	}
}

func (s *chatSource) Ended(r *Request, now time.Duration) {
	c, ok := s.open[r.Session]
	if !ok {
		return
	}
	delete(s.open, r.Session)
	pause := seconds(c.lengths.ExpFloat64() * s.Think.Seconds())
	c.turn++
	if c.turn == c.turns {
		if s.Rate == 0 {
			s.start(now + pause)
		}
		return
	}
	c.said = append(c.said, r.Answer)
	c.at = now + pause
	s.say(c)
	s.waiting.push(c)
}

func (h *sessionHeap) push(c *session) { heap.Push(h, c) }
func (h *sessionHeap) pop() *session   { return heap.Pop(h).(*session) }

// sessionHeap orders sessions by the arrival of their next turn; equal times
// by number, so that a run repeats exactly.
type sessionHeap []*session

func (h sessionHeap) Len() int { return len(h) }
func (h sessionHeap) Less(i, j int) bool {
	if h[i].at != h[j].at {
		return h[i].at < h[j].at
	}
	return h[i].number < h[j].number
}
func (h sessionHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *sessionHeap) Push(x any)   { *h = append(*h, x.(*session)) }
func (h *sessionHeap) Pop() any {
	old := *h
	c := old[len(old)-1]
	*h = old[:len(old)-1]
	return c
}
