package sim

import (
	"cmp"
	"net/http"
	"time"
)

// Faults is what a test breaks in a [Server]. The zero value breaks nothing.
type Faults struct {
	// ErrorRate is the share of requests, 0 to 1, that get ErrorStatus (default 500) at once.
	ErrorRate   float64 `json:"error_rate,omitzero"`
	ErrorStatus int     `json:"error_status,omitzero"`
	// RetryAfter is the header of these answers.
	RetryAfter string `json:"retry_after,omitzero"`
	// Hang stops the engine's time: requests are taken in and get no token until it is lifted.
	Hang bool `json:"hang,omitzero"`
	// Freeze takes every request in, probes too, and answers nothing until it is lifted. The engine's time goes on.
	Freeze bool `json:"freeze,omitzero"`
	// Unhealthy makes /health and /ping answer 503.
	Unhealthy bool `json:"unhealthy,omitzero"`
	// CutAfter closes the connection of a stream after so many tokens, without its end. Zero means never.
	CutAfter int `json:"cut_after,omitzero"`
	// EndAfter ends a stream properly after so many tokens, but without finish reason and [DONE]. Zero means never.
	EndAfter int `json:"end_after,omitzero"`
	// ErrorEvent answers 200 with an error object as the body or as the first event.
	ErrorEvent bool `json:"error_event,omitzero"`
	// ProbeDelay holds back the answers of /health, /ping and /metrics. In JSON it is in nanoseconds.
	ProbeDelay time.Duration `json:"probe_delay,omitzero"`
	// Slow divides the speed: 10 makes every step take ten times as long. Zero means 1.
	Slow float64 `json:"slow,omitzero"`
}

// SetFaults replaces what is broken.
func (s *Server) SetFaults(f Faults) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.advanceLocked(now)
	s.faults = f
	rate := s.o.Speed / cmp.Or(f.Slow, 1)
	if f.Hang {
		rate = 0
	}
	s.clock.setRate(now, rate)
	close(s.thawed)
	s.thawed = make(chan struct{})
	s.wakeLoop()
}

// thaw waits while the server is frozen, or until the client leaves.
func (s *Server) thaw(c *call) error {
	for {
		s.mu.Lock()
		frozen, changed := s.faults.Freeze && !s.stopped, s.thawed
		s.mu.Unlock()
		if !frozen {
			return nil
		}
		select {
		case <-changed:
		case <-c.r.Context().Done():
			return errGone
		}
	}
}

// Faults returns what is broken.
func (s *Server) Faults() Faults {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faults
}

// freezing makes h wait while the server is frozen.
func (s *Server) freezing(h handler) handler {
	return func(c *call) error {
		if err := s.thaw(c); err != nil {
			return err
		}
		return h(c)
	}
}

// faulty makes h fail as the faults say.
func (s *Server) faulty(h handler) handler {
	return func(c *call) error {
		f, struck := s.drawFault()
		switch {
		case struck:
			if f.RetryAfter != "" {
				c.w.Header().Set("Retry-After", f.RetryAfter)
			}
			status := cmp.Or(f.ErrorStatus, http.StatusInternalServerError)
			return &apiError{status: status, kind: http.StatusText(status), message: "simulated fault"}
		case f.ErrorEvent:
			return c.errorWith200()
		}
		return h(c)
	}
}

func (s *Server) drawFault() (f Faults, struck bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faults, s.faults.ErrorRate > 0 && s.rng.Float64() < s.faults.ErrorRate
}
