package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// Live is a benchmark over HTTP: one workload against one or several targets
// at the same time. Every target gets the same requests at the same moments, so
// whatever disturbs the machine disturbs all of them alike. Targets must not
// share engines, or each is measured under the other's load.
type Live struct {
	Targets  []Target
	Workload Workload
	Seed     uint64
	Wordings []*Wording // one for each target
	// Concurrent, when set, keeps so many requests in flight at each target and
	// takes no notice of arrival times.
	Concurrent int
	// Speed is how many seconds of the workload a second of wall time holds: 1
	// for real engines, the engines' own for simulated ones.
	Speed   float64
	Timeout time.Duration // of one request in wall time; zero means none
	HTTP    *http.Client
	// Answered, when set, hears of each reply, target by number. Calls for one
	// target come one after the other.
	Answered func(target int, r *Reply)
}

// LiveRun is the replies of one target, in order of the workload. Of a run that
// was broken off there are those of the requests that were taken.
type LiveRun struct {
	Target  Target
	Replies []*Reply
	Wall    time.Duration // from the start to the last answer
}

// Run sends the workload to all targets. When ctx ends it breaks off what is
// open and returns what there is.
func (l *Live) Run(ctx context.Context) ([]LiveRun, error) {
	if len(l.Targets) == 0 || len(l.Targets) != len(l.Wordings) {
		return nil, fmt.Errorf("run live: %d targets and %d wordings", len(l.Targets), len(l.Wordings))
	}
	if !(l.Speed > 0) {
		return nil, fmt.Errorf("run live: speed %g: %w", l.Speed, errors.New("must be more than 0"))
	}
	runs := make([]LiveRun, len(l.Targets))
	start := time.Now()
	var wg sync.WaitGroup
	for i := range l.Targets {
		wg.Go(func() {
			d := &driver{
				Live: l, number: i, source: l.Workload.Source(l.Seed), ended: make(chan ending),
				sender: sender{target: l.Targets[i], http: l.HTTP, start: start, timeout: l.Timeout},
				said:   map[uint64]string{},
			}
			d.run(ctx)
			runs[i] = LiveRun{Target: l.Targets[i], Replies: d.replies, Wall: time.Since(start)}
		})
	}
	wg.Wait()
	return runs, nil
}

// driver plays the workload to one target. Its goroutine alone touches the
// source; each request has a goroutine of its own that reports its end.
type driver struct {
	*Live
	number  int
	source  Source
	sender  sender
	ended   chan ending
	open    int
	replies []*Reply
	said    map[uint64]string // answers of conversations by segment
	blocks  chainer[uint64]
	seen    ceiling
}

// ending is a request whose answer is there.
type ending struct {
	request *Request
	reply   *Reply
}

func (d *driver) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		at, ok := d.source.Next()
		if ctx.Err() != nil {
			ok = false
		}
		if !ok && d.open == 0 {
			return
		}
		due := time.Duration(float64(at) / d.Speed)
		var arrival <-chan time.Time
		switch {
		case !ok: // wait for what is open
		case d.Concurrent == 0:
			timer.Reset(due - time.Since(d.sender.start))
			arrival = timer.C
		case d.open < d.Concurrent:
			d.take(ctx, time.Since(d.sender.start))
			continue
		}
		var stop <-chan struct{}
		if ok {
			stop = ctx.Done()
		}
		select {
		case <-arrival:
			d.take(ctx, due)
		case e := <-d.ended:
			d.end(e)
		case <-stop:
		}
	}
}

// take sends the next request of the source on its way.
func (d *driver) take(ctx context.Context, due time.Duration) {
	q := &Request{}
	d.source.Take(q)
	if d.Concurrent > 0 {
		q.At = time.Duration(float64(due) * d.Speed)
	}
	reply := &Reply{Due: due, Planned: q.Answer.Tokens, Session: q.Session, ceiling: d.ceiling(q)}
	d.replies = append(d.replies, reply)
	prompt := d.pieces(q)
	d.open++
	go func() {
		body, err := d.Wordings[d.number].body(prompt, q.Answer.Tokens)
		if err != nil {
			reply.Err, reply.Class = err, FailedCompose
		} else {
			d.sender.send(ctx, body, reply)
		}
		d.ended <- ending{q, reply}
	}()
}

// pieces is the prompt with the answers that a conversation has got so far.
func (d *driver) pieces(q *Request) []piece {
	prompt := make([]piece, len(q.Prompt))
	for i, s := range q.Prompt {
		text, answer := d.said[s.ID] // of this conversation or of the one it forked from
		prompt[i] = piece{Segment: s, answer: answer, said: text}
	}
	return prompt
}

// ceiling is the share of the prompt that one cache without limits would hold
// when it has seen the requests before.
func (d *driver) ceiling(q *Request) float64 {
	d.blocks.reset(liveBlockTokens)
	for _, s := range q.Prompt {
		d.blocks.add(s)
	}
	inPrompt, tokens := len(d.blocks.blocks), q.PromptTokens()
	d.blocks.add(q.Answer)
	known := d.seen.lookup(d.blocks.blocks)
	d.seen.add(d.blocks.blocks, known)
	return ratio(float64(min(known, cacheable(inPrompt, liveBlockTokens, tokens))*liveBlockTokens), float64(tokens))
}

// liveBlockTokens is the block size that ceilings are counted in: vLLM's.
const liveBlockTokens = 16

func (d *driver) end(e ending) {
	d.open--
	if e.request.Session != 0 {
		d.said[e.request.Answer.ID] = e.reply.text
		e.reply.text = ""
	}
	now := time.Duration(float64(time.Since(d.sender.start)) * d.Speed)
	d.source.Ended(e.request, now)
	if d.Answered != nil {
		d.Answered(d.number, e.reply)
	}
}
