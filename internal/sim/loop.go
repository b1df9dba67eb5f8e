package sim

import (
	"context"
	"math"
	"time"
)

// clock maps wall time to simulated time. A rate of 0 stands still.
type clock struct {
	wall    time.Time
	virtual time.Duration
	rate    float64
}

// at returns the simulated time at wall time now.
func (c *clock) at(now time.Time) time.Duration {
	return c.virtual + time.Duration(float64(now.Sub(c.wall))*c.rate)
}

// setRate changes the speed from now on.
func (c *clock) setRate(now time.Time, rate float64) {
	c.wall, c.virtual, c.rate = now, c.at(now), rate
}

// until returns the wall time from now to simulated time v, rounded up.
func (c *clock) until(now time.Time, v time.Duration) time.Duration {
	return max(0, time.Duration(math.Ceil(float64(v-c.at(now))/c.rate)))
}

// lastBit is the end of a wait that a precise server naps through. A nap cannot be interrupted, and need not be: whatever arrives
// meanwhile changes nothing before the end of the step.
const lastBit = 2 * time.Millisecond

// Run drives the engine until ctx ends, then cuts off whatever is still being served, and returns nil. Simulated time follows the
// wall clock and not the wake-ups, so a late timer delays the report of a step but never a later step.
func (s *Server) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer s.stop()
	for {
		wait, ok := s.turn()
		switch {
		case !ok:
			timer.Stop()
		case !s.o.Precise:
			timer.Reset(wait)
		case wait >= lastBit:
			timer.Reset(wait - lastBit/2)
		default:
			nap(wait)
			timer.Reset(0)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.kick:
		case <-timer.C:
		}
	}
}

// turn brings the engine up to date and returns how long nothing will happen, or false when nothing will without a kick.
func (s *Server) turn() (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.advanceLocked(now)
	next, ok := s.engine.NextEvent()
	if !ok || s.clock.rate == 0 {
		return 0, false
	}
	return s.clock.until(now, next), true
}

// advanceLocked runs the engine up to now and hands out what happened. It returns the simulated time.
func (s *Server) advanceLocked(now time.Time) time.Duration {
	v := s.clock.at(now)
	for _, ev := range s.engine.Advance(v) {
		q := s.sequences[ev.Req.ID]
		q.tokens = ev.Tokens
		switch ev.Kind {
		case First:
			s.metrics.first(q)
		case Done, Aborted:
			q.done = true
			delete(s.sequences, ev.Req.ID)
			s.metrics.ended(q)
		case Preempted:
			continue
		case Token:
		}
		q.call.wake()
	}
	return v
}

// step is the engine's OnStep.
func (s *Server) step(st Step) {
	s.metrics.step(st)
	if s.o.Engine.OnStep != nil {
		s.o.Engine.OnStep(st)
	}
}

func (s *Server) wakeLoop() {
	select {
	case s.kick <- struct{}{}:
	default: // it is awake already
	}
}

// stop ends every sequence as a dying process would.
func (s *Server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	close(s.thawed)
	s.thawed = make(chan struct{})
	s.restartLocked(time.Now())
}

// restartLocked empties the engine and starts its counters anew. Handlers see their sequences end with ErrRestarted.
func (s *Server) restartLocked(now time.Time) {
	s.engine.Restart(s.clock.at(now))
	s.advanceLocked(now)
	s.metrics = newMetrics(s)
}

// Restart kills the simulated process: all connections of requests under way are cut, the cache is lost, counters begin at zero. For
// the time of down every new connection is cut too; then process_start_time_seconds is new.
func (s *Server) Restart(down time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.restartLocked(now)
	s.upAt = now.Add(down)
	s.started = s.upAt
}

// SetKVTokens changes the size of the KV cache at the next step, see [Engine.SetKVTokens].
func (s *Server) SetKVTokens(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine.SetKVTokens(s.advanceLocked(time.Now()), n)
	s.wakeLoop()
}

// Stats returns the engine's state now.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advanceLocked(time.Now())
	return s.engine.Stats()
}

// Model returns the served model's name.
func (s *Server) Model() string { return s.o.Model }

// Replica returns the name in [HeaderReplica].
func (s *Server) Replica() string { return s.o.Replica }
