package proxy

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/warmroute/warmroute/internal/dialect"
	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/internal/upstream"
)

// serverError is the error type for faults that are not the request's own.
const serverError = "server_error"

// refusal is the end of a request that no instance has answered: what the client
// is told, and what the record says about it.
type refusal struct {
	public *dialect.Error
	class  upstream.Class
	cause  string
	detail string // for the operator; never sent
}

// refuse is a refusal of the request itself.
func refuse(e *dialect.Error) *refusal {
	return &refusal{public: e, class: upstream.Client, cause: e.Code}
}

// gone is the refusal of a client that has left. Nobody reads it.
func gone() *refusal {
	return &refusal{
		public: &dialect.Error{Status: StatusClientGone, Type: serverError, Code: "client_gone", Message: "The client left."},
		class:  upstream.ClientGone, cause: "canceled",
	}
}

// resultOf is what an instance's breaker and limit are told of a fault.
func resultOf(f *upstream.Fault) fleet.Outcome {
	o := fleet.Outcome{RetryAfter: f.RetryAfter}
	switch f.Class {
	case upstream.Client:
		o.Result = fleet.ClientFault
	case upstream.Credential:
		o.Result = fleet.CredentialFault
	case upstream.Capacity:
		o.Result = fleet.CapacityFault
	case upstream.Truncated:
		o.Result = fleet.Truncated
	case upstream.ClientGone:
		o.Result = fleet.ClientGone
	default:
		o.Result = fleet.TransientFault
	}
	return o
}

// minRetryAfter is the least that a client is asked to wait: a 429 without a
// pause is an invitation to a storm.
const minRetryAfter = time.Second

// refuseFault is what the client is told of the last fault when nobody is left
// to try.
func refuseFault(f *upstream.Fault, pool *fleet.Pool, now time.Time) *refusal {
	r := &refusal{class: f.Class, cause: f.Reason, detail: f.Error()}
	switch f.Class {
	case upstream.ClientGone:
		return gone()
	case upstream.Capacity:
		r.public = busy(f.Status, max(f.RetryAfter, minRetryAfter), "Every instance of the model is at capacity.")
	case upstream.Credential:
		r.public = badGateway("upstream_error", "The instance that serves the model refused the request.")
		if pool.Outage(now).Kind == fleet.Credentials {
			r.public = badGateway("upstream_credentials_exhausted", "No credential of the gateway is accepted by the instances of the model.")
		}
	default:
		r.public = badGateway("upstream_error", "The instance that serves the model failed.")
		if isTimeout(f) {
			r.public = &dialect.Error{Status: http.StatusGatewayTimeout, Type: serverError, Code: "upstream_timeout", Message: "The instance that serves the model did not answer in time."}
		}
	}
	return r
}

// isTimeout reports whether the fault is about time.
func isTimeout(f *upstream.Fault) bool {
	switch f.Reason {
	case causeTTFT, causeDeadline, "timeout", "idle":
		return true
	}
	return f.Status == http.StatusGatewayTimeout || f.Status == http.StatusRequestTimeout
}

func badGateway(code, message string) *dialect.Error {
	return &dialect.Error{Status: http.StatusBadGateway, Type: serverError, Code: code, Message: message}
}

// busy is the answer of a fleet that is well but full. It keeps an instance's
// 503 and makes everything else a 429.
func busy(status int, after time.Duration, message string) *dialect.Error {
	if status != http.StatusServiceUnavailable {
		status = http.StatusTooManyRequests
	}
	return &dialect.Error{Status: status, Type: "rate_limit_error", Code: "overloaded", Message: message, RetryAfter: after}
}

// refuseSeat is what the client is told when the policy found no instance.
func refuseSeat(d route.Decision, pool *fleet.Pool, now time.Time) *refusal {
	if d.Reason == route.Overload {
		return &refusal{
			public: busy(0, max(d.RetryAfter, minRetryAfter), "The model is overloaded: no instance would answer in time."),
			class:  upstream.Capacity, cause: "overload",
		}
	}
	out := pool.Outage(now)
	r := &refusal{class: upstream.Transient, cause: out.Kind.String()}
	switch out.Kind {
	case fleet.Available, fleet.Busy, fleet.Resting:
		r.class = upstream.Capacity
		r.public = busy(0, max(out.RetryAfter, minRetryAfter), "Every instance of the model is at capacity.")
	case fleet.Credentials:
		r.class = upstream.Credential
		r.public = badGateway("upstream_credentials_exhausted", "No credential of the gateway is accepted by the instances of the model.")
	default:
		r.public = &dialect.Error{
			Status: http.StatusServiceUnavailable, Type: serverError, Code: "no_instance_ready",
			Message: "No instance of the model is ready.", RetryAfter: max(out.RetryAfter, minRetryAfter),
		}
	}
	return r
}

// refuseModel is the refusal of a model that nobody serves, or that nobody has
// named yet.
func (g *Gateway) refuseModel(name string) *refusal {
	if g.deps.Fleet.Discovering() {
		return &refusal{
			public: &dialect.Error{
				Status: http.StatusServiceUnavailable, Type: serverError, Code: "no_instance_ready",
				Message: "The instances have not said yet which models they serve.", RetryAfter: minRetryAfter,
			},
			class: upstream.Transient, cause: "discovering",
		}
	}
	return refuse(unknownModel(name, g.deps.Fleet.Models()))
}

// maxListed bounds the names in an answer about an unknown model.
const maxListed = 20

// unknownModel is the answer to a model that nobody serves.
func unknownModel(name string, served []fleet.Model) *dialect.Error {
	var b strings.Builder
	for i, m := range served {
		if i == maxListed {
			fmt.Fprintf(&b, " and %d more", len(served)-maxListed)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(clip(m.Name))
	}
	list := b.String()
	if list == "" {
		list = "none"
	}
	return &dialect.Error{
		Status: http.StatusNotFound, Type: invalidRequest, Code: "model_not_found", Param: "model",
		Message: fmt.Sprintf("The model %q does not exist. Served models: %s.", clip(name), list),
	}
}

// Causes that only the gateway can see.
const (
	causeTTFT     = "ttft"
	causeDeadline = "deadline"
	causeUnmarked = "unmarked"
	causeError    = "error_body"
	causeAnswer   = "answer"
	causeEvent    = "event"
)

// faultOfError is the fault that an instance tells of inside an answer that looks
// like success.
func faultOfError(e *dialect.Error) *upstream.Fault {
	f := upstream.NewFault(upstream.Transient, causeError, "the answer holds an error in spite of its status")
	if e == nil {
		return f
	}
	f.Status = e.Status
	if e.Status >= 400 {
		// What the status would have meant as the answer's own.
		own := upstream.Classify(&http.Response{StatusCode: e.Status, Header: http.Header{}, Body: http.NoBody}, time.Now())
		f.Class = own.Class
	}
	return f
}

// deadlineFault ends a request that took too long altogether.
func deadlineFault(d time.Duration) *upstream.Fault {
	return upstream.NewFault(upstream.Transient, causeDeadline, "the request was not over after "+d.String())
}

// contextFault is why a request's own context is done.
func contextFault(ctx context.Context) *upstream.Fault {
	if f := upstream.FaultOf(context.Cause(ctx)); f != nil {
		return f
	}
	return upstream.NewFault(upstream.ClientGone, "canceled", "")
}
