package proxy

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/warmroute/warmroute/internal/dialect"
	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/upstream"
)

// attempt is one request to one instance, from its dispatch to the return of its
// lease.
type attempt struct {
	x        *exchange
	lease    *fleet.Lease
	instance *fleet.Instance
	ctx      context.Context
	cancel   context.CancelCauseFunc
	patience time.Duration // how long the first content may take
	timer    *time.Timer   // of that; nil when the answer does not stream

	asked    bool // the instance was asked for usage and the client was not the one who asked
	first    bool // the first content was seen
	released bool
	settled  bool // the index knows how it ended
}

// attempt sends the request to the order's seat. It returns nil when the request
// is over, and a fault when the instance has failed and nothing of an answer has
// reached the client.
func (x *exchange) attempt() *upstream.Fault {
	lease := x.order.seat.lease
	a := &attempt{x: x, lease: lease, instance: lease.Instance()}
	a.ctx, a.cancel = context.WithCancelCause(x.ctx)
	defer a.cancel(nil)
	defer a.abandon()
	x.g.running.add(a, a.instance.ID())
	defer x.g.running.remove(a)

	now := time.Now()
	x.rec.Attempts++
	x.rec.Instance = a.instance.Name()
	x.rec.PredictedTokens, x.rec.Cost = x.order.seat.match, x.order.seat.decision.Cost
	x.rec.FailOpen = lease.FailOpen()
	x.rec.Dispatched, x.rec.First = now, time.Time{}
	if x.rec.Attempts == 1 {
		x.rec.Overhead = now.Sub(x.rec.Read) - x.order.held
	}
	if x.rec.Streamed {
		a.patience = x.patience()
		a.timer = time.AfterFunc(a.patience, func() { a.cancel(a.late()) })
		defer a.timer.Stop()
	} else {
		defer time.AfterFunc(x.order.seat.ready, a.assumeFirst).Stop()
	}
	resp, fault := a.send()
	if resp == nil {
		return a.failed(fault)
	}
	defer resp.Body.Close()
	return a.receive(resp)
}

// patience is how long the first content may take, for what the instance has to
// prefill.
func (x *exchange) patience() time.Duration {
	uncached := max(x.order.req.Tokens-x.order.seat.match, 0)
	return x.g.cfg.TTFTTimeout + time.Duration(float64(x.g.cfg.TTFTPer1K)*float64(uncached)/1000)
}

// late is the fault of an instance whose first content does not come in time.
func (a *attempt) late() *upstream.Fault {
	return upstream.NewFault(upstream.Transient, causeTTFT, "no content within "+a.patience.String())
}

// send sends the client's body, with the edits that this instance needs. When
// the instance refuses an edit that was ours, it gets the body without it.
func (a *attempt) send() (*http.Response, *upstream.Fault) {
	x := a.x
	id := a.instance.ID()
	a.asked = x.g.cfg.AskUsage && x.call.MayAskUsage() && !x.desk.lessons.isMute(id)
	resp, fault := a.roundTrip()
	if fault == nil || !a.asked || fault.Class != upstream.Client || !strings.Contains(fault.Detail, "stream_options") {
		return resp, fault
	}
	resp.Body.Close()
	x.desk.lessons.mute(id)
	a.asked = false
	return a.roundTrip()
}

// roundTrip sends the request once. With a fault of class Client there is a
// response, which is the client's.
func (a *attempt) roundTrip() (*http.Response, *upstream.Fault) {
	resp, err := a.instance.RoundTrip(a.request())
	if err != nil {
		if f := upstream.FaultOf(err); f != nil {
			return nil, f
		}
		return nil, upstream.NewFault(upstream.Transient, "other", "the transport failed")
	}
	fault := upstream.Classify(resp, time.Now())
	if fault != nil && fault.Class != upstream.Client {
		resp.Body.Close()
		return nil, fault
	}
	return resp, fault
}

// request is the request to the instance. Its headers are the client's; upstream
// lets through what may pass.
func (a *attempt) request() *http.Request {
	x := a.x
	model := ""
	if name := a.lease.Model(); x.call.Model != "" && x.call.Model != name {
		model = name
	}
	body := x.call.Edit(model, a.asked)
	header := make(http.Header, len(x.r.Header)+2)
	maps.Copy(header, x.r.Header)
	header["X-Request-Id"] = []string{x.rec.ID}
	if len(header["Content-Type"]) == 0 {
		header["Content-Type"] = []string{"application/json"}
	}
	owner := x.body
	req := &http.Request{
		Method: http.MethodPost,
		// The query stays behind: engines read none, and clients put keys there.
		URL:           &url.URL{Path: x.r.URL.Path},
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        header,
		Body:          owner.reader(body),
		ContentLength: int64(len(body)),
		// A kept-alive connection that closes before a byte is written is replaced by
		// the transport itself.
		GetBody: func() (io.ReadCloser, error) { return owner.reader(body), nil },
	}
	return req.WithContext(a.ctx)
}

// receive passes the instance's answer on.
func (a *attempt) receive(resp *http.Response) *upstream.Fault {
	if resp.StatusCode <= 299 && hasType(resp.Header, "text/event-stream") {
		return a.stream(resp)
	}
	begun := a.x.out.hush()
	switch {
	case resp.StatusCode > 299:
		return a.passError(resp)
	case a.x.rec.Streamed && !hasType(resp.Header, "application/json") && !begun:
		return a.raw(resp)
	}
	return a.answer(resp)
}

// hasType reports whether a body is of the type and can be read as such. Packed
// bodies cannot.
func hasType(h http.Header, contentType string) bool {
	return strings.HasPrefix(h.Get("Content-Type"), contentType) && h.Get("Content-Encoding") == ""
}

// failed ends an attempt of which nothing has reached the client.
func (a *attempt) failed(f *upstream.Fault) *upstream.Fault {
	if a.x.ctx.Err() != nil {
		// Whatever broke, it broke because the request was called off.
		f = contextFault(a.x.ctx)
	}
	a.release(resultOf(f))
	a.takeBack()
	return f
}

// firstContent notes the first content of the answer. It reports false when the
// time for it is over, and the instance has been given up.
func (a *attempt) firstContent(now time.Time) bool {
	if a.timer != nil && !a.timer.Stop() {
		return false
	}
	a.first = true
	a.x.rec.First = now
	a.lease.FirstToken(now)
	if a.x.order.indexed {
		a.x.g.deps.Index.Confirm(&a.x.order.seat.placement)
	}
	a.x.g.wake(now, nil)
	return true
}

// assumeFirst takes the prefill of an answer that does not stream to be over when
// it was expected to be. Nobody sees its first token, and if it were held against
// the instance until the answer is there, every instance that writes long answers
// would look full. It runs beside the handler and touches none of its state.
func (a *attempt) assumeFirst() {
	now := time.Now()
	a.lease.Assume(now)
	a.x.g.wake(now, nil)
}

// release gives the lease back. Only the first call counts.
func (a *attempt) release(o fleet.Outcome) {
	if a.released {
		return
	}
	a.released = true
	a.x.desk.release(a.lease, o)
}

// takeBack makes the index forget what the attempt was believed to leave on the
// instance.
func (a *attempt) takeBack() {
	if a.settled || !a.x.order.indexed {
		return
	}
	a.settled = true
	a.x.g.deps.Index.TakeBack(&a.x.order.seat.placement)
}

// abandon gives back what a panic has left.
func (a *attempt) abandon() {
	a.release(fleet.Outcome{Result: fleet.ClientGone})
	a.takeBack()
}

// faultOfRead is the fault of an answer that could not be read on.
func (a *attempt) faultOfRead(err error) *upstream.Fault {
	if f := upstream.FaultOf(err); f != nil {
		return f
	}
	if errors.Is(err, dialect.ErrEventTooLong) {
		return upstream.NewFault(upstream.Transient, causeEvent, "an event of the stream is longer than event_bytes")
	}
	return upstream.NewFault(upstream.Transient, "other", "the answer broke off")
}
