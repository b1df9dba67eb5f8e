package proxy

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	randv2 "math/rand/v2"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/warmroute/warmroute/internal/dialect"
	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/prompt"
	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/internal/upstream"
	"github.com/warmroute/warmroute/prefix"
)

// exchange is one request from its arrival to its record. Its methods run in the
// handler's goroutine.
type exchange struct {
	g    *Gateway
	r    *http.Request
	out  client
	kind dialect.Kind
	rec  Record

	ctx    context.Context // the client's, with the deadline; set by run
	body   *payload        // nil when it was let go
	call   *dialect.Call   // aliases body; nil when that was let go
	hasher *prefix.Hasher
	pool   *fleet.Pool
	desk   *desk
	order  order

	glimpse *glimpse // the shadow's; nil when there is none

	promptBytes int64 // of the canonical prompt
	text        bool  // the canonical prompt is text: it may teach bytes per token
	single      bool  // the prompt is one sequence for the engine, without media
	known       bool  // Recorder.Started was called
	explain     bool
	cut         bool // the answer broke off, and only a cut connection can say so
}

var hashers = sync.Pool{New: func() any { return new(prefix.Hasher) }}

// open begins an exchange.
func (g *Gateway) open(w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{g: g, r: r, ctx: r.Context()}
	x.out.reset(w, g.cfg.WriteTimeout)
	x.rec.ID = requestID(r.Header)
	x.rec.Received = time.Now()
	x.explain = g.cfg.Explain && wantsExplanation(r.Header)
	w.Header()["X-Request-Id"] = []string{x.rec.ID}
	if d := g.cfg.ReadTimeout; d > 0 && r.Body != http.NoBody {
		// For every request, because before the server sends an answer it waits for
		// what was not read of a body. A connection without deadlines is one of a
		// test or has its own.
		_ = x.out.ctl.SetReadDeadline(x.rec.Received.Add(d))
	}
	return x
}

// close ends an exchange, after a panic too, and gives its record.
func (x *exchange) close() {
	if v := recover(); v != nil {
		x.recovered(v)
	}
	x.out.end()
	x.letGo()
	if x.hasher != nil {
		x.glimpse.end(&x.rec, x.hasher.Chain())
		x.rec.Chain, x.rec.BlockBytes = x.order.chain, x.hasher.BlockBytes()
		x.rec.PromptBytes, x.rec.Session = x.promptBytes, x.order.req.Session
		defer hashers.Put(x.hasher) // the record's chain is in its memory
	}
	x.rec.End = time.Now()
	x.rec.AnswerBytes = x.out.sent
	x.rec.Held = x.order.held
	if !x.known {
		x.g.deps.Recorder.Started(x.rec.Asked)
	}
	x.g.deps.Recorder.Ended(&x.rec)
	if x.cut {
		panic(http.ErrAbortHandler)
	}
}

// letGo gives the body back when no further attempt can need it: prompts are
// long, and streams last.
func (x *exchange) letGo() {
	if x.body != nil {
		x.body.release()
		x.body, x.call = nil, nil
	}
}

// finish tells the client why there is no answer, if there is none, and settles
// the record.
func (x *exchange) finish(r *refusal) {
	if r == nil {
		return
	}
	x.rec.Class, x.rec.Cause, x.rec.Detail = r.class, r.cause, r.detail
	if r.class == upstream.ClientGone {
		// Without the cut the server would send an empty answer of success.
		x.rec.Status, x.cut = StatusClientGone, true
		return
	}
	x.rec.Status = r.public.Status
	if x.explain && !x.out.hush() && x.out.seen() == 0 {
		x.out.w.Header().Set(explanationHeader, string(x.explanation().encode(maxExplanation)))
	}
	if !x.out.fail(x.kind, r.public, x.rec.Streamed) {
		x.cut = true
	}
	if seen := x.out.seen(); seen != 0 {
		x.rec.Status = seen
	}
}

// run takes a request of an API through its life.
func (x *exchange) run() *refusal {
	if x.r.Method != http.MethodPost {
		x.out.w.Header().Set("Allow", http.MethodPost)
		return refuse(refuseMethod(x.r.Method, x.r.URL.Path))
	}
	if r := x.admit(); r != nil {
		return r
	}
	if r := x.receive(); r != nil {
		return r
	}
	if d := x.g.cfg.Deadline; d > 0 {
		ctx, cancel := context.WithDeadlineCause(x.ctx, x.rec.Received.Add(d), deadlineFault(d))
		defer cancel()
		x.ctx = ctx
	}
	if r := x.prepare(); r != nil {
		return r
	}
	return x.serve()
}

// admit checks the client's key.
func (x *exchange) admit() *refusal {
	if x.g.deps.Admit == nil {
		return nil
	}
	tenant, refused := x.g.deps.Admit(x.r)
	if refused != nil {
		return refuse(refused)
	}
	x.rec.Tenant = tenant
	return nil
}

// receive reads the body and decodes what routing needs.
func (x *exchange) receive() *refusal {
	if err := checkContentType(x.r.Header); err != nil {
		return x.refuseBody(err)
	}
	x.body = newPayload()
	err := readBody(x.body, x.r, x.g.cfg.BodyBytes)
	if err == nil && x.g.cfg.ReadTimeout > 0 {
		// The server goes on reading to see whether the client leaves: it must not
		// meet the deadline.
		_ = x.out.ctl.SetReadDeadline(time.Time{})
	}
	x.rec.BodyBytes = int64(x.body.buf.Len())
	if err != nil {
		return x.refuseBody(err)
	}
	x.rec.Read = time.Now()
	call, err := dialect.Decode(x.kind, x.body.bytes())
	if err != nil {
		return x.refuseBody(err)
	}
	x.call = call
	x.rec.Asked, x.rec.Streamed, x.rec.UnknownParts = keepName(call.Model), call.Stream, call.Unknown
	return nil
}

// keepName copies a model's name out of the body, at most as long as anybody
// would log.
func keepName(s string) string {
	const most = 256
	return string([]byte(s[:min(len(s), most)]))
}

// refuseBody is the answer to a body that could not be read or understood.
func (x *exchange) refuseBody(err error) *refusal {
	if e, ok := errors.AsType[*dialect.Error](err); ok {
		return refuse(e)
	}
	switch {
	// Asked first, because the server calls a request off that it cannot read.
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refuse(&dialect.Error{Status: http.StatusRequestTimeout, Type: invalidRequest, Code: "request_timeout", Message: "The body did not arrive in time."})
	case x.r.Context().Err() != nil:
		return gone()
	case x.r.Header.Get("Content-Encoding") != "" && isUnpacking(err):
		return refuse(badBody("invalid_encoding", "The body is not valid gzip."))
	case isBroken(err):
		return gone()
	}
	// What net/http says then has no name: a chunk or a trailer is none.
	return refuse(badBody("invalid_body", "The body's chunked transfer encoding is malformed."))
}

// prepare finds the pool and describes the request to the policy.
func (x *exchange) prepare() *refusal {
	pool, r := x.findPool()
	if r != nil {
		return r
	}
	x.pool, x.desk = pool, x.g.desk(pool)
	x.rec.Model = pool.Name()
	x.known = true
	x.g.deps.Recorder.Started(x.rec.Asked)

	p := &x.call.Prompt
	p.Scope.Model, p.Scope.Tenant = pool.Name(), x.rec.Tenant
	if base := pool.Base(); base != "" {
		p.Scope.Model, p.Scope.Adapter = base, pool.Name()
	}
	x.hasher = hashers.Get().(*prefix.Hasher)
	x.hasher.Reset(x.g.deps.BlockBytes)
	prompt.Write(x.hasher, p)
	x.promptBytes = x.hasher.Bytes()
	plain := !media(p)
	x.text = plain && len(p.Tokens) == 0
	x.single = plain && len(p.Raw)+len(p.Tokens) <= 1
	x.describe()
	return nil
}

// findPool finds who serves the model. A request that names none means the only
// one there is.
func (x *exchange) findPool() (*fleet.Pool, *refusal) {
	f := x.g.deps.Fleet
	if pool, ok := f.Pool(x.call.Model); ok {
		return pool, nil
	}
	if x.call.Model != "" {
		return nil, x.g.refuseModel(x.call.Model)
	}
	var only *fleet.Pool
	n := 0
	for p := range f.Pools() {
		if p.Base() == "" {
			only, n = p, n+1
		}
	}
	if n == 1 {
		return only, nil
	}
	return nil, refuse(&dialect.Error{
		Status: http.StatusBadRequest, Type: invalidRequest, Code: "model_required", Param: "model",
		Message: "The body must name a model, because this gateway serves several.",
	})
}

// homeBlocks is how much of a prompt's beginning decides ties: enough to tell
// applications apart, not so much that the last message counts.
const homeBlocks = 4

// describe fills in the order.
func (x *exchange) describe() {
	o := &x.order
	call := x.call
	tokens := x.desk.lessons.tokens(x.promptBytes)
	if n := countIDs(&call.Prompt); n > 0 {
		tokens = n
	}
	x.rec.PromptTokens = tokens
	if x.kind == dialect.Tokenize {
		// Nothing is prefilled.
		tokens, x.rec.PromptTokens = 1, 0
	}
	o.since = x.rec.Read
	o.rule = x.g.deps.Rule(x.pool)
	o.chain = x.hasher.Chain()
	o.perTok = float64(x.promptBytes) / float64(max(tokens, 1))
	o.indexed = generates(x.kind)
	o.explain = x.explain
	o.thread = x.g.threads.get(call.Previous)
	o.req = route.Request{
		Tokens: tokens, Draw: randv2.Uint64(),
		Session: sessionKey(x.r.Header, call.Session),
	}
	if o.indexed {
		o.req.Output = x.desk.lessons.expect(call.MaxTokens) * max(call.Choices, 1)
	}
	o.req.Home = o.req.Draw
	if n := len(o.chain); n > 0 {
		o.req.Home = uint64(o.chain[min(n, homeBlocks)-1])
	}
	o.req.Simple = o.req.Home // of a prompt without text: token ids, images alone
	if n := o.rule.HeadChars; n > 0 {
		if head := prompt.HeadText(&call.Prompt, n); head != "" {
			o.req.Simple = route.Hash(prefix.SimpleKey(head, n))
		}
	}
	x.rec.ShortPrompt = len(o.chain) == 0
	x.rec.Policy = o.rule.Policy.Name()
}

// countIDs is the number of tokens of a prompt that came as token ids.
func countIDs(r *prompt.Request) int {
	n := 0
	for _, ids := range r.Tokens {
		n += len(ids)
	}
	return n
}

// serve tries instances until one has answered or nobody is left.
func (x *exchange) serve() *refusal {
	x.g.budget.earn()
	if x.g.cfg.Heartbeat > 0 && x.rec.Streamed {
		x.out.startPulse(x.g.cfg.Heartbeat, x.fillHeartbeat)
	}
	x.glimpse = x.order.rule.Shadow.watch(x.pool, &x.order, x.g.deps.BlockBytes)
	var last *upstream.Fault
	for {
		x.desk.place(x.ctx, &x.order)
		seat := &x.order.seat
		x.rec.Reason = seat.decision.Reason.String()
		x.rec.AvailableTokens = max(x.rec.AvailableTokens, seat.best)
		if seat.lease == nil {
			return x.unseated(last)
		}
		if last != nil {
			x.rec.Tries = append(x.rec.Tries, Try{Instance: x.rec.Instance, Class: last.Class, Cause: last.Reason})
		}
		last = x.attempt()
		if last == nil {
			return nil
		}
		if !x.again(last) {
			return refuseFault(last, x.pool, time.Now())
		}
	}
}

// unseated is the end of a request that got no instance: last is the fault of
// the attempt before, if there was one.
func (x *exchange) unseated(last *upstream.Fault) *refusal {
	now := time.Now()
	switch {
	case x.ctx.Err() != nil:
		return refuseFault(contextFault(x.ctx), x.pool, now)
	case last != nil:
		return refuseFault(last, x.pool, now)
	}
	return refuseSeat(x.order.seat.decision, x.pool, now)
}

// again reports whether another instance is to be tried after the fault.
func (x *exchange) again(f *upstream.Fault) bool {
	if !f.Class.Retryable() || x.ctx.Err() != nil || x.rec.Attempts > x.g.cfg.Retries {
		return false
	}
	if !x.g.budget.spend(time.Now()) {
		return false
	}
	x.order.failed = append(x.order.failed, x.order.seat.lease.Instance().ID())
	x.order.seat = seat{}
	return true
}

// explanation is what there is to say about the request now.
func (x *exchange) explanation() *Explanation {
	x.rec.Held = x.order.held
	return explanation(&x.rec, x.order.seat.why)
}

// requestID is the client's own name for the request if it is sane, else a new
// one.
func requestID(h http.Header) string {
	if v := h["X-Request-Id"]; len(v) > 0 && saneID(v[0]) {
		return v[0]
	}
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return "req-" + hex.EncodeToString(b[:])
}

// saneID reports whether s may stand in headers and logs as it is.
func saneID(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') &&
			c != '-' && c != '_' && c != '.' && c != ':' && c != '/' && c != '=' && c != '+' {
			return false
		}
	}
	return true
}
