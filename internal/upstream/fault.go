package upstream

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// Class is a fault class: it decides about retries, breakers and what the
// client sees.
type Class uint8

// The fault classes.
const (
	// Client faults are the request's own: the upstream's answer goes to the
	// client unchanged, nothing is retried, no breaker moves.
	Client Class = iota + 1
	// Credential faults mean that the instance refuses the gateway's key.
	Credential
	// Capacity faults mean that the instance is well but full.
	Capacity
	// Transient faults are connection errors, server errors and timeouts.
	Transient
	// Truncated answers ended without their marker after output had reached the
	// client.
	Truncated
	// ClientGone means that the client left; nobody is at fault.
	ClientGone
)

// String returns the class as it stands in metrics and logs.
func (c Class) String() string {
	switch c {
	case Client:
		return "client"
	case Credential:
		return "credential"
	case Capacity:
		return "capacity"
	case Transient:
		return "transient"
	case Truncated:
		return "truncated"
	case ClientGone:
		return "client_gone"
	}
	return "none"
}

// Retryable reports whether another instance may be tried while nothing of the
// answer has reached the client.
func (c Class) Retryable() bool {
	return c == Credential || c == Capacity || c == Transient
}

// Fault is a failed exchange with an instance. Its text is free of secrets. It
// does not unwrap, because the cause's text may not be; [errors.Is] still
// matches the cause.
type Fault struct {
	Class Class
	// Status is the HTTP status that the instance answered with; 0 when there
	// was no answer.
	Status int
	// Reason is a short word from a fixed list, fit for a metric label:
	// refused, reset, timeout, idle, eof, dns, tls, canceled, deadline, status,
	// overload, redirect, protocol or other.
	Reason string
	// RetryAfter is how long the instance asked to be left alone; 0 when it did
	// not say.
	RetryAfter time.Duration
	// Instance names the instance.
	Instance string
	// Detail is for the operator, without secrets.
	Detail string
	cause  error
}

// NewFault returns a fault for causes that only the caller can see: a first
// token that is too late, an error inside a 200 answer, a missing end marker.
// Given as the cause of a request's context, it becomes the error of that
// request.
func NewFault(class Class, reason, detail string) *Fault {
	return &Fault{Class: class, Reason: reason, Detail: detail}
}

// Error returns a line for the operator.
func (f *Fault) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s fault", f.Class)
	if f.Instance != "" {
		fmt.Fprintf(&b, " of instance %s", f.Instance)
	}
	if f.Status != 0 {
		fmt.Fprintf(&b, ": status %d", f.Status)
	}
	if f.Reason != "" && f.Reason != "status" {
		fmt.Fprintf(&b, ": %s", f.Reason)
	}
	if f.Detail != "" {
		fmt.Fprintf(&b, ": %s", f.Detail)
	}
	return b.String()
}

// Is reports whether the fault's cause matches target.
func (f *Fault) Is(target error) bool { return f.cause != nil && errors.Is(f.cause, target) }

// FaultOf returns the fault in err's chain, or nil.
func FaultOf(err error) *Fault {
	f, _ := errors.AsType[*Fault](err)
	return f
}

// maxPeek bounds how much of an error answer is read to classify it.
const maxPeek = 8 << 10

// maxDetail bounds what of an error answer is quoted to the operator.
const maxDetail = 300

// Classify returns the fault that an answer's status declares, or nil when the
// exchange went well so far. It may read the beginning of the body, and leaves
// resp.Body such that it still yields every byte.
func Classify(resp *http.Response, now time.Time) *Fault {
	if resp.StatusCode >= 200 && resp.StatusCode <= 299 {
		return nil
	}
	f := &Fault{
		Class:      classOf(resp.StatusCode),
		Status:     resp.StatusCode,
		Reason:     "status",
		RetryAfter: RetryAfter(resp.Header, now),
	}
	redact := (*Redactor)(nil)
	if b, ok := resp.Body.(*body); ok {
		f.Instance, redact = b.call.in.target.Name, &b.call.in.up.redactor
	}
	if resp.StatusCode >= 300 && resp.StatusCode <= 399 {
		f.Reason = "redirect"
		return f
	}
	if f.Class == Capacity {
		f.Reason = "overload"
		return f
	}
	peek := peekBody(resp)
	if isOverload(resp, f.RetryAfter, peek) {
		f.Class, f.Reason = Capacity, "overload"
	}
	detail := string(bytes.ToValidUTF8(peek[:min(len(peek), maxDetail)], nil))
	if redact != nil {
		// Redacted before it is cut, or half a key would survive at the cut.
		whole := redact.Redact(string(bytes.ToValidUTF8(peek, nil)))
		detail = whole[:min(len(whole), maxDetail)]
	}
	f.Detail = strings.ToValidUTF8(strings.Join(strings.Fields(detail), " "), "")
	return f
}

// classOf maps statuses to classes. A plain 503 is an engine that is dead or
// still loading; with Retry-After it is one that is full.
func classOf(status int) Class {
	switch status {
	case http.StatusUnauthorized, http.StatusPaymentRequired, http.StatusForbidden:
		return Credential
	case http.StatusTooManyRequests, 529:
		return Capacity
	case http.StatusRequestTimeout, http.StatusTooEarly:
		return Transient
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return Client
	}
	if status >= 400 && status <= 499 {
		return Client
	}
	return Transient
}

// overloadWords mark the answers of engines that are full and say so with a
// plain 503: TGI, DJL (WlmError), Ollama, llama.cpp's slots, LMDeploy.
var overloadWords = []string{
	"overloaded", "overload", "queue full", "queue is full", "server busy", "no slot available",
	"too many requests", "wlmerror", "workload queue", "capacity exceeded", "throttl",
}

// isOverload reports whether an answer that is no 429 still means that the
// instance is full.
func isOverload(resp *http.Response, retryAfter time.Duration, peek []byte) bool {
	kind := strings.ToLower(resp.Header.Get("X-Amzn-Errortype"))
	if strings.Contains(kind, "throttl") || strings.Contains(kind, "toomanyrequests") {
		return true
	}
	if resp.StatusCode != http.StatusServiceUnavailable {
		return false
	}
	if retryAfter > 0 || resp.Header.Get("Retry-After") != "" {
		return true
	}
	low := strings.ToLower(string(peek))
	for _, w := range overloadWords {
		if strings.Contains(low, w) {
			return true
		}
	}
	return false
}

// peekBody reads up to maxPeek bytes and puts them back.
func peekBody(resp *http.Response) []byte {
	if resp.Body == nil {
		return nil
	}
	peek, err := io.ReadAll(io.LimitReader(resp.Body, maxPeek))
	rest := io.Reader(resp.Body)
	if err != nil {
		rest = failedReader{err}
	}
	resp.Body = &replayed{Reader: io.MultiReader(bytes.NewReader(peek), rest), Closer: resp.Body}
	return peek
}

type failedReader struct{ err error }

func (r failedReader) Read([]byte) (int, error) { return 0, r.err }

// replayed is a body whose beginning was read before.
type replayed struct {
	io.Reader
	io.Closer
}

// faultOf turns an error of the transport or of a body into a fault. The
// request's own context is asked first, because an aborted exchange fails with
// whatever error the abort happened to cause.
func (c *call) faultOf(err error) *Fault {
	f := &Fault{Class: Transient, Instance: c.in.target.Name, cause: err}
	if ctx := c.parent; ctx.Err() != nil {
		if given := FaultOf(context.Cause(ctx)); given != nil {
			f.Class, f.Reason, f.Status, f.Detail = given.Class, given.Reason, given.Status, given.Detail
			return f
		}
		f.Class, f.Reason = ClientGone, "canceled"
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			f.Class, f.Reason = Transient, "deadline"
		}
		return f
	}
	f.Reason = reasonOf(err)
	if errors.Is(context.Cause(c.ctx), errBodyIdle) {
		f.Reason, err = "idle", errBodyIdle
	}
	f.Detail = c.in.up.redactor.Redact(err.Error())
	return f
}

// reasonOf names a network error with one of a few words.
func reasonOf(err error) string {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return "refused"
	}
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNABORTED) {
		return "reset"
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return "dns"
	}
	if isTLS(err) {
		return "tls"
	}
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		return "timeout"
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || strings.Contains(err.Error(), "server closed idle connection") {
		return "eof"
	}
	if strings.Contains(err.Error(), "malformed") || strings.Contains(err.Error(), "http2:") {
		return "protocol"
	}
	return "other"
}

func isTLS(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.AlertError](err); ok {
		return true
	}
	_, ok := errors.AsType[x509.UnknownAuthorityError](err)
	return ok
}
