package proxy

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/tidwall/gjson"

	"github.com/warmroute/warmroute/internal/dialect"
	"github.com/warmroute/warmroute/internal/upstream"
)

// stream is an answer that comes as events.
type stream struct {
	*attempt

	resp   *http.Response
	events *dialect.Reader
	state  *dialect.Stream
	held   held      // what came before the commit
	last   time.Time // last content
}

// stream passes the events of an answer on, each by itself. Until the first
// content nothing of it reaches the client, so that a fault can be mended
// elsewhere.
func (a *attempt) stream(resp *http.Response) *upstream.Fault {
	cfg := &a.x.g.cfg
	learn := cfg.LearnBytes
	if !a.x.order.indexed {
		learn = 0
	}
	s := &stream{
		attempt: a,
		resp:    resp,
		events:  dialect.NewReader(resp.Body, cfg.EventBytes),
		state:   dialect.NewStream(a.x.kind, learn),
		held:    held{maxEvents: cfg.HeldEvents, maxBytes: cfg.HeldBytes},
	}
	for {
		ev, err := s.events.Next()
		if err != nil {
			return s.eof(err)
		}
		if over, fault := s.event(ev); over {
			return fault
		}
	}
}

// event handles one event. It reports whether the attempt is over.
func (s *stream) event(ev dialect.Event) (over bool, fault *upstream.Fault) {
	if ev.Partial && !mend(&ev) {
		return false, nil // the end follows, and says what to do about it
	}
	class := s.state.Observe(ev)
	switch class {
	case dialect.Failure:
		return true, s.failure(ev)
	case dialect.UsageOnly:
		if s.asked {
			return false, nil // ours, not the client's
		}
	case dialect.Content, dialect.Finish, dialect.Done:
		if !s.content(class) {
			return true, s.broken(s.late())
		}
	case dialect.Held:
		s.noteThread(ev)
	}
	if !s.held.over {
		if !s.first && s.held.add(ev.Raw) {
			return false, nil
		}
		s.commit()
	}
	if class == dialect.Done {
		s.done(ev.Raw)
		return true, nil
	}
	if s.x.out.event(ev.Raw) != nil {
		return true, s.clientGone()
	}
	return false, nil
}

// mend completes an event at the end of the stream that lacks only its blank
// line. Half an event must not be passed on: what follows would become part of
// it.
func mend(ev *dialect.Event) bool {
	if string(ev.Data) != "[DONE]" && !gjson.ValidBytes(ev.Data) {
		return false
	}
	raw := append([]byte(nil), ev.Raw...)
	if !bytes.HasSuffix(raw, []byte("\n")) {
		raw = append(raw, '\n')
	}
	ev.Raw = append(raw, '\n')
	return true
}

// content notes a piece of the answer or its end. It reports false when the
// first one has come too late.
func (s *stream) content(class dialect.Class) bool {
	now := time.Now()
	switch {
	case !s.first:
		if !s.firstContent(now) {
			return false
		}
	case class == dialect.Content:
		s.x.g.deps.Recorder.Gap(s.x.rec.Asked, now.Sub(s.last))
	}
	if class == dialect.Content {
		s.last = now
		s.lease.Token(now, 1)
	}
	return true
}

// noteThread remembers who makes a response that a later request may go on from.
func (s *stream) noteThread(ev dialect.Event) {
	if s.x.kind == dialect.Responses && !s.first && !ev.Comment {
		s.x.g.threads.put(gjson.GetBytes(ev.Data, "response.id").String(), s.instance.Name())
	}
}

// commit sends the status and what was held. From here on the choice is final.
func (s *stream) commit() {
	s.x.out.begin(s.resp.StatusCode, func(h http.Header) { s.x.fillStream(h, s.resp.Header) })
	s.x.letGo()
	if early := s.held.take(); len(early) > 0 {
		_ = s.x.out.event(early) // the next write tells of the same error
	}
}

// ending describes the end of the stream to the books.
func (s *stream) ending(f *upstream.Fault) ending {
	e := ending{fault: f, usage: s.state.Usage(), tokens: s.state.Tokens()}
	// A client that stops an answer goes on with what it has got, but what an
	// instance breaks off nobody will send again.
	if f == nil || f.Class == upstream.ClientGone {
		e.answer, e.joins = s.state.Answer()
	}
	return e
}

// done ends a stream at its marker.
func (s *stream) done(marker []byte) {
	s.conclude(s.ending(nil))
	if s.x.explain && s.x.out.insert(s.x.explanationComment()) != nil {
		s.x.ended(s.x.goneFault())
		return
	}
	if s.x.out.event(marker) != nil {
		s.x.ended(s.x.goneFault())
		return
	}
	s.x.sendTrailer()
	s.drain(nil)
}

// linger is how long the rest of an answer may take after its end was seen.
// Reading it lets the connection serve again.
const linger = 100 * time.Millisecond

// drain reads what is left of the stream and shows it to pass, if there is one.
func (s *stream) drain(pass func(raw []byte) error) {
	timer := time.AfterFunc(linger, func() { s.cancel(nil) })
	defer timer.Stop()
	for {
		ev, err := s.events.Next()
		if err != nil || ev.Partial {
			return
		}
		if pass != nil && pass(ev.Raw) != nil {
			return
		}
	}
}

// failure ends a stream that holds an error in place of content.
func (s *stream) failure(ev dialect.Event) *upstream.Fault {
	f := faultOfError(s.state.Fault())
	if !s.held.over {
		if !s.first && f.Class != upstream.Client {
			return s.failed(f)
		}
		s.commit() // no other instance would answer a fault of the request itself
	}
	s.conclude(s.ending(f))
	if s.x.out.event(ev.Raw) == nil {
		// Engines end even a failed stream with their marker.
		s.drain(s.x.out.event)
	}
	s.x.sendTrailer()
	return nil
}

// eof ends a stream that has come to an end or broken off.
func (s *stream) eof(err error) *upstream.Fault {
	if s.state.Complete() {
		return s.unmarked()
	}
	if errors.Is(err, io.EOF) {
		return s.broken(upstream.NewFault(upstream.Transient, causeUnmarked, "the stream ended without its marker"))
	}
	return s.broken(s.faultOfRead(err))
}

// unmarked ends a stream without a marker that has said why its answer ended:
// nothing is missing.
func (s *stream) unmarked() *upstream.Fault {
	s.conclude(s.ending(nil))
	if s.x.explain && s.x.out.insert(s.x.explanationComment()) != nil {
		s.x.ended(s.x.goneFault())
		return nil
	}
	s.x.sendTrailer()
	return nil
}

// broken ends a stream that is not all of an answer: elsewhere it may still
// become one, unless the client has got a part of it.
func (s *stream) broken(f *upstream.Fault) *upstream.Fault {
	switch {
	case s.x.r.Context().Err() != nil:
		return s.clientGone()
	case !s.held.over:
		return s.failed(f)
	}
	s.conclude(s.ending(truncated(f)))
	s.x.out.fail(s.x.kind, incomplete, true)
	s.x.sendTrailer()
	return nil
}

// incomplete tells the client that a stream is not all of the answer.
var incomplete = &dialect.Error{
	Status: http.StatusBadGateway, Type: serverError, Code: "stream_incomplete",
	Message: "The stream ended before the answer was complete.",
}

// clientGone ends a stream whose client has left or does not read.
func (s *stream) clientGone() *upstream.Fault {
	f := s.x.goneFault()
	if !s.held.over {
		return s.failed(f)
	}
	s.cancel(nil)
	s.conclude(s.ending(f))
	return nil
}
