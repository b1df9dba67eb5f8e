package proxy

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/tidwall/gjson"

	"github.com/warmroute/warmroute/internal/dialect"
	"github.com/warmroute/warmroute/internal/upstream"
)

// maxPooledAnswer bounds the buffers that are kept for later answers.
const maxPooledAnswer = 1 << 20

var answers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// answer passes on an answer that comes whole. It is read before anything of it
// is sent, so that an error with status 200, or an answer that breaks off, can be
// mended elsewhere; only what is too long to be kept is sent as it comes.
func (a *attempt) answer(resp *http.Response) *upstream.Fault {
	buf := answers.Get().(*bytes.Buffer)
	buf.Reset()
	defer func() {
		if buf.Cap() <= maxPooledAnswer {
			answers.Put(buf)
		}
	}()
	limit := int64(a.x.g.cfg.AnswerBytes)
	if n := resp.ContentLength; n > 0 && n <= limit {
		buf.Grow(int(n) + bytes.MinRead)
	}
	n, err := buf.ReadFrom(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return a.failed(a.faultOfRead(err))
	}
	if n > limit {
		return a.pass(resp, buf.Bytes())
	}
	var parsed dialect.Answer
	if hasType(resp.Header, "application/json") {
		parsed, err = dialect.ParseAnswer(a.x.kind, buf.Bytes())
	}
	var f *upstream.Fault
	switch {
	case err != nil && !gjson.ValidBytes(buf.Bytes()):
		return a.failed(upstream.NewFault(upstream.Transient, causeAnswer, "the answer is no valid JSON"))
	case parsed.Fault != nil:
		if f = faultOfError(parsed.Fault); f.Class != upstream.Client {
			return a.failed(f)
		}
	}
	a.noteThread(buf.Bytes())
	a.whole(resp, buf.Bytes(), ending{
		fault: f, usage: parsed.Usage, tokens: parsed.Usage.Output,
		answer: parsed.Message, joins: parsed.Joinable,
	})
	return nil
}

// whole sends an answer of which everything is there.
func (a *attempt) whole(resp *http.Response, body []byte, e ending) {
	x := a.x
	if e.fault == nil {
		a.answered()
	}
	a.conclude(e)
	if x.out.hush() {
		body = asEvent(x.kind, resp.StatusCode, body)
	}
	x.out.begin(resp.StatusCode, func(h http.Header) {
		x.fillAnswer(h, resp.Header)
		h["Content-Length"] = []string{strconv.Itoa(len(body))}
		if x.explain {
			h[explanationHeader] = []string{string(x.explanation().encode(maxExplanation))}
		}
	})
	x.rec.Status = x.out.seen()
	if x.out.write(body) != nil {
		x.ended(x.goneFault())
	}
}

// asEvent puts an answer that came whole into a stream that heartbeats have
// begun.
func asEvent(k dialect.Kind, status int, body []byte) []byte {
	if status > 299 {
		return dialect.EventError(k, dialect.ParseError(status, body))
	}
	var b []byte
	for line := range bytes.Lines(body) {
		b = append(b, "data: "...)
		b = append(b, bytes.TrimRight(line, "\r\n")...)
		b = append(b, '\n')
	}
	return append(b, "\ndata: [DONE]\n\n"...)
}

// answered notes that the instance has answered whole.
func (a *attempt) answered() {
	now := time.Now()
	a.first = true
	a.x.rec.First = now
	// The time of a whole answer says little about prefill, unless it is shorter
	// than what was expected of the prefill alone: then that was too much, and
	// nothing has been assumed yet.
	a.lease.FirstToken(now)
	if a.x.order.indexed {
		a.x.g.deps.Index.Confirm(&a.x.order.seat.placement)
	}
}

// noteThread remembers who made a response that a later request may go on from.
func (a *attempt) noteThread(body []byte) {
	if a.x.kind == dialect.Responses {
		a.x.g.threads.put(gjson.GetBytes(body, "id").String(), a.instance.Name())
	}
}

// raw passes on a stream that is none of events.
func (a *attempt) raw(resp *http.Response) *upstream.Fault {
	var first [4 << 10]byte
	n, err := resp.Body.Read(first[:])
	for n == 0 && err == nil {
		n, err = resp.Body.Read(first[:])
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return a.failed(a.faultOfRead(err))
	}
	return a.pass(resp, first[:n])
}

// pass sends an answer as it comes, beginning with what was read of it.
func (a *attempt) pass(resp *http.Response, head []byte) *upstream.Fault {
	x := a.x
	if x.out.hush() {
		return a.failed(upstream.NewFault(upstream.Transient, causeAnswer, "the answer is no stream of events and too long to become one"))
	}
	if !a.firstContent(time.Now()) {
		return a.failed(a.late())
	}
	x.out.begin(resp.StatusCode, func(h http.Header) { x.fillStream(h, resp.Header) })
	x.letGo()
	err := x.out.event(head)
	if err == nil {
		err = a.copyOn(resp.Body)
	}
	if err == nil {
		a.conclude(ending{})
		x.sendTrailer()
		return nil
	}
	// No dialect is spoken here in which an error could be told.
	x.cut = true
	f := x.goneFault()
	if broken := upstream.FaultOf(err); broken != nil && x.ctx.Err() == nil {
		f = truncated(broken)
	}
	a.conclude(ending{fault: f})
	return nil
}

// copyOn sends the rest of a body, each piece by itself. Its error is a Fault
// when the instance is the one who failed.
func (a *attempt) copyOn(body io.Reader) error {
	var piece [32 << 10]byte
	for {
		n, err := body.Read(piece[:])
		if n > 0 {
			if err := a.x.out.event(piece[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return a.faultOfRead(err)
		}
	}
}

// passError passes on what an instance has to say about a fault of the request
// itself, unchanged.
func (a *attempt) passError(resp *http.Response) *upstream.Fault {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil {
		return a.failed(a.faultOfRead(err))
	}
	f := upstream.NewFault(upstream.Client, "status", "")
	f.Status = resp.StatusCode
	a.whole(resp, body, ending{fault: f})
	return nil
}

// maxErrorBody bounds an error's body; engines quote the request in theirs.
const maxErrorBody = 8 << 20
