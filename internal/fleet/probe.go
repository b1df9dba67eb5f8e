package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"syscall"
	"time"
)

const (
	// unreadyInterval is the longest pause between probes of an instance that is
	// not ready: a new one should wait for its first request, not for us.
	unreadyInterval = time.Second
	// vendorFactor stretches the interval for hosted vendors, who count requests.
	vendorFactor = 6
	// maxAnswer bounds what is read of an answer to a probe.
	maxAnswer = 1 << 20
)

// fetch gets a path of the instance, within the timeout, and hands at most limit
// bytes of the body to read. read may be nil.
func (in *Instance) fetch(ctx context.Context, path string, timeout time.Duration, limit int64, read func(status int, body io.Reader) error) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	set := in.settings.Load()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, set.origin+path, http.NoBody)
	if err != nil {
		return 0, fmt.Errorf("get %s: %w", path, err)
	}
	resp, err := set.sender.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	body := http.MaxBytesReader(nil, resp.Body, limit)
	if read != nil {
		err = read(resp.StatusCode, body)
	}
	if err == nil {
		// The connection is used again only after the body was read to its end.
		_, err = io.Copy(io.Discard, body)
	}
	return resp.StatusCode, err
}

// finding is what one probe found.
type finding uint8

const (
	good    finding = iota
	slow            // no answer in time
	refused         // nobody listens
	bad             // anything else
)

// prober probes one instance. It belongs to the instance's probe loop.
type prober struct {
	f     *Fleet
	in    *Instance
	paths []string // to try; the first that exists stays alone
}

// probeLoop keeps the instance's health, credential and models up to date until
// ctx is done.
func (f *Fleet) probeLoop(ctx context.Context, in *Instance) {
	p := prober{f: f, in: in}
	var modelsDue time.Time
	epoch := 0
	for {
		if f.cfg.Health.Interval > 0 {
			p.check(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		now := time.Now()
		if in.keyIsDue(now) {
			p.checkKey(ctx)
		}
		ready, current := in.standing()
		if ready && (!now.Before(modelsDue) || current != epoch) {
			epoch = current
			modelsDue = now.Add(f.readModels(ctx, in))
		}
		if !sleep(ctx, jitter(p.pause(ready))) {
			return
		}
	}
}

// standing returns whether the instance is ready, and how many restarts were
// seen.
func (in *Instance) standing() (ready bool, epoch int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.health.ready, in.epoch
}

func (p *prober) pause(ready bool) time.Duration {
	d := p.f.cfg.Health.Interval
	if d == 0 {
		return p.f.cfg.Health.ModelsInterval
	}
	if !ready {
		return min(d, unreadyInterval)
	}
	if p.in.Engine() == OpenAI {
		return vendorFactor * d
	}
	return d
}

// healthPaths lists what may answer probes, best first.
func healthPaths(c InstanceConfig) []string {
	switch {
	case c.HealthPath != "":
		return []string{c.HealthPath}
	case c.Engine == OpenAI:
		return []string{modelsPath, "/health"}
	}
	return []string{"/health", "/ping", modelsPath}
}

// check probes once and draws the consequences.
func (p *prober) check(ctx context.Context) {
	if p.paths == nil {
		p.paths = healthPaths(p.in.Config())
	}
	began := time.Now()
	what, reason := bad, ""
	for i, path := range p.paths {
		status, err := p.in.fetch(ctx, path, p.f.cfg.Health.Timeout, maxAnswer, nil)
		if missing(status) && i < len(p.paths)-1 {
			continue
		}
		if what, reason = p.judge(ctx, path, status, err); what == good {
			p.paths = p.paths[i : i+1]
		}
		break
	}
	if ctx.Err() == nil {
		p.f.probed(p.in, began, time.Now(), what, reason)
	}
}

// missing reports whether a status says that there is no such path.
func missing(status int) bool {
	return status == http.StatusNotFound || status == http.StatusMethodNotAllowed || status == http.StatusNotImplemented
}

// judge turns the answer to a probe into a finding. A server that wants another
// key is alive, and so is one that has none of the paths that were guessed:
// traffic will tell more.
func (p *prober) judge(ctx context.Context, path string, status int, err error) (finding, string) {
	switch {
	case err != nil && status == 0 && errors.Is(err, syscall.ECONNREFUSED):
		return refused, "connection refused"
	case err != nil && (errors.Is(err, context.DeadlineExceeded) || isTimeout(err)):
		return slow, "no answer within " + p.f.cfg.Health.Timeout.String()
	case err != nil:
		return bad, err.Error()
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		if path == modelsPath {
			p.in.mu.Lock()
			p.in.refuseKeyLocked(time.Now())
			p.in.mu.Unlock()
		}
		return good, ""
	case status >= 200 && status <= 299:
		return good, ""
	case missing(status) && p.in.Config().HealthPath == "" && ctx.Err() == nil:
		return good, ""
	}
	return bad, path + " answers " + strconv.Itoa(status)
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return ok && t.Timeout()
}

// probed moves the instance's health by one finding.
func (f *Fleet) probed(in *Instance, began, now time.Time, what finding, reason string) {
	in.mu.Lock()
	h := &in.health
	h.last, h.took = now, now.Sub(began)
	// An engine that is busy answers probes late. If it streamed meanwhile, the
	// late answer says nothing.
	if what == slow && in.progress.After(began.Add(-f.cfg.Health.Interval)) {
		h.reason = reason
		in.mu.Unlock()
		return
	}
	before, born := h.ready, false
	if what == good {
		born = h.refused && h.everReady && in.scrape.started == 0
		h.rise(f.cfg.Health.Rise)
	} else {
		h.refused = h.refused || what == refused
		h.fall(f.cfg.Health.Fall, reason)
	}
	after := h.ready
	in.mu.Unlock()
	if born {
		// Nobody listened, and somebody does now: without a start time to compare,
		// that is another process.
		f.restart(in, now, "refused")
	}
	switch {
	case after && !before:
		f.notify(in, Event{Kind: Up})
	case before && !after:
		f.notify(in, Event{Kind: Down, Reason: reason})
	}
}

func (h *health) rise(enough int) {
	h.good++
	h.bad, h.refused, h.reason = 0, false, ""
	if !h.everReady || h.good >= enough {
		h.ready, h.everReady = true, true
	}
}

func (h *health) fall(enough int, reason string) {
	h.bad++
	h.good, h.reason = 0, reason
	if h.bad >= enough {
		h.ready = false
	}
}

// restart draws the consequences of a new process behind the same address.
func (f *Fleet) restart(in *Instance, now time.Time, reason string) {
	in.restarted(now)
	f.notify(in, Event{Kind: Restarted, Reason: reason})
}

// checkKey asks for the models, which needs the key and costs nothing.
func (p *prober) checkKey(ctx context.Context) {
	status, err := p.in.fetch(ctx, modelsPath, p.f.cfg.Health.Timeout, maxAnswer, nil)
	if err == nil && status >= 200 && status <= 299 {
		p.in.reviveKey(time.Now())
	}
}
