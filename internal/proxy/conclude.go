package proxy

import (
	"errors"
	"os"

	"github.com/warmroute/warmroute/internal/dialect"
	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/index"
	"github.com/warmroute/warmroute/internal/prompt"
	"github.com/warmroute/warmroute/internal/upstream"
)

// ending is how an attempt ended of which the client has got, or gets, the
// answer.
type ending struct {
	fault  *upstream.Fault // nil: well
	usage  dialect.Usage
	tokens int // contents counted
	answer prompt.Message
	joins  bool // the answer is what the instance holds behind the prompt
}

// conclude ends the attempt: the lease goes back, the books are made, and what
// the answer has taught is learned. Only the first call counts.
func (a *attempt) conclude(e ending) {
	if a.released {
		return
	}
	if e.fault == nil {
		a.release(fleet.Outcome{Result: fleet.Served})
	} else {
		a.release(resultOf(e.fault))
	}
	a.account(e)
	a.x.ended(e.fault)
	if !a.first {
		a.takeBack()
		return
	}
	if e.fault == nil {
		a.learn()
	}
	a.remember(e)
}

// account writes the tokens into the record.
func (a *attempt) account(e ending) {
	r := &a.x.rec
	r.OutputTokens = e.tokens
	if u := e.usage; u.HasUsage {
		if u.Prompt > 0 && r.PromptTokens > 0 {
			// Predictions count in tokens as estimated. In shares of the prompt they mean
			// the same, and that is what they are compared in.
			scale := float64(u.Prompt) / float64(r.PromptTokens)
			r.PredictedTokens = min(int(float64(r.PredictedTokens)*scale), u.Prompt)
			r.AvailableTokens = min(int(float64(r.AvailableTokens)*scale), u.Prompt)
		}
		r.UsageKnown = true
		r.PromptTokens, r.OutputTokens = u.Prompt, u.Output
	}
	r.CachedTokens, r.CachedKnown = a.x.desk.lessons.cached(a.instance.ID(), e.usage)
}

// learn takes what a good answer has taught about the model and the instance.
func (a *attempt) learn() {
	x := a.x
	r := &x.rec
	if x.text && r.UsageKnown {
		x.desk.lessons.learnRatio(x.promptBytes, r.PromptTokens)
	}
	if !x.order.indexed {
		return
	}
	x.desk.lessons.learnOutput(r.OutputTokens)
	if r.CachedKnown && x.single {
		x.g.deps.Index.Learn(&x.order.seat.placement, index.TokenReport(r.CachedTokens, r.PromptTokens, x.promptBytes, x.g.deps.BlockBytes))
	}
}

// remember tells the index what the instance holds now: the prompt, and behind
// it the answer, so that the next turn of a conversation matches it too.
func (a *attempt) remember(e ending) {
	x := a.x
	if a.settled || !x.order.indexed {
		return
	}
	a.settled = true
	if e.joins {
		prompt.WriteAnswer(x.hasher, e.answer)
	}
	x.g.deps.Index.Finish(&x.order.seat.placement, x.hasher.Chain())
}

// ended writes into the record how the request ended.
func (x *exchange) ended(f *upstream.Fault) {
	r := &x.rec
	r.Status = x.out.seen()
	if f == nil {
		return
	}
	r.Class, r.Cause, r.Detail = f.Class, f.Reason, f.Detail
	if f.Class == upstream.ClientGone {
		r.Status = StatusClientGone
	}
}

// goneFault says how the client was lost. A write that timed out is asked first,
// because it calls the request off like a client that has left.
func (x *exchange) goneFault() *upstream.Fault {
	if errors.Is(x.out.failure(), os.ErrDeadlineExceeded) {
		return upstream.NewFault(upstream.ClientGone, "unread", "the client did not read within write_timeout")
	}
	if x.ctx.Err() != nil {
		return contextFault(x.ctx)
	}
	return upstream.NewFault(upstream.ClientGone, "canceled", "the client's connection broke")
}

// truncated is a fault after a part of the answer has reached the client.
func truncated(f *upstream.Fault) *upstream.Fault {
	t := *f
	t.Class = upstream.Truncated
	return &t
}
