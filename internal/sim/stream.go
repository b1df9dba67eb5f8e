package sim

import (
	"errors"
)

// chunks makes the events of a streamed answer in one route's format. usage in opening and content is nil unless the request wants
// it in every chunk.
type chunks interface {
	// opening returns the event before a choice's first token, or nil.
	opening(choice int, usage any) any
	// content returns the event of a choice's next tokens; end is not nil with the last.
	content(choice int, text string, ids []TokenID, end *answer, usage any) any
	// usage returns the event after the last choice.
	usage(u usage) any
}

// streamChoices writes an event for each token as the engine generates it. perPrompt is the number of choices of one prompt.
func (c *call) streamChoices(q *sampling, format chunks, perPrompt int) error {
	if err := c.submit(true); err != nil {
		return err
	}
	t := &choiceStream{stream: c.newStream(), format: format, q: q}
	left := len(c.sequences)
	for left > 0 {
		if err := c.wait(); err != nil {
			return err
		}
		for i := range c.sequences {
			ended, err := t.catchUp(i)
			if err != nil {
				return t.fail(err)
			}
			if ended {
				left--
			}
		}
		t.flush()
		if t.ending {
			return nil
		}
	}
	if q.asksUsage() || c.s.o.ForceUsage {
		t.event(format.usage(c.usage(perPrompt)))
	}
	t.done()
	t.flush()
	return nil
}

// choiceStream is a stream of choices under way.
type choiceStream struct {
	*stream
	format chunks
	q      *sampling
	opened bool
	ending bool // a fault ended the stream
}

// catchUp writes what a choice has generated since the last time, an event a token, and reports whether that was the rest.
func (t *choiceStream) catchUp(i int) (ended bool, err error) {
	q := t.c.sequences[i]
	if q.told == len(q.answer.tokens) {
		return false, nil // ended before
	}
	n := t.c.news(i)
	if n.err != nil {
		return false, n.err
	}
	if n.tokens > 0 && !t.opened {
		t.opened = true
		for j := range t.c.sequences {
			if ev := t.format.opening(j, t.running(nil)); ev != nil {
				t.event(ev)
			}
		}
	}
	for q.told < n.tokens && !t.ending {
		text, ids := q.delta(q.told + 1)
		var end *answer
		if q.told == len(q.answer.tokens) {
			end = &q.answer
		}
		t.event(t.format.content(i, text, ids, end, t.running(q)))
		t.ending = t.breaksAfter(q.told)
	}
	return q.told == len(q.answer.tokens), nil
}

// running returns the usage up to now, if the request wants it in every chunk.
func (t *choiceStream) running(q *sequence) any {
	if !t.q.asksUsage() || !t.q.StreamOptions.ContinuousUsage {
		return nil
	}
	u := usage{PromptTokens: t.c.sequences[0].req.PromptTokens}
	if q != nil {
		u.CompletionTokens = q.told
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

// fail ends a stream that has begun with an error event.
func (t *choiceStream) fail(err error) error {
	e, ok := errors.AsType[*apiError](err)
	if !ok {
		return err
	}
	t.c.abort()
	t.event(e.body())
	t.done()
	t.flush()
	return nil
}
