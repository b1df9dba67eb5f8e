package proxy

import (
	"fmt"
	"time"
)

// Config holds the settings of the data plane. The zero Config is not useful:
// start from [Default].
type Config struct {
	// BodyBytes is the longest request body, also after decompression. Longer
	// ones are answered 413. Default 32 MiB.
	BodyBytes int64 `yaml:"body_bytes"`
	// AnswerBytes is how much of an answer that does not stream is kept back to
	// be read for token counts and for errors that come with status 200. Longer
	// answers pass through unread. Default 8 MiB.
	AnswerBytes int `yaml:"answer_bytes"`
	// EventBytes is the longest event of a stream. A longer one ends the stream
	// as truncated. Default 32 MiB.
	EventBytes int `yaml:"event_bytes"`
	// HeldEvents and HeldBytes bound what a stream may send before its first
	// content and still be replaced by another instance's. Beyond, it is passed
	// on and the choice is final. Default 64 and 256 KiB.
	HeldEvents int `yaml:"held_events"`
	HeldBytes  int `yaml:"held_bytes"`
	// LearnBytes bounds the text of an answer that is kept until its end to join
	// the prompt's chain. Longer answers do not join. Default 1 MiB.
	LearnBytes int `yaml:"learn_bytes"`

	// Retries is the number of attempts after the first, all on other instances
	// and only while nothing of an answer has reached the client. Zero turns
	// retries off. Default 2.
	Retries int `yaml:"retries"`
	// RetryShare is the share of extra load that retries may add over the whole
	// fleet. Zero leaves only RetryFloor. Default 0.2.
	RetryShare float64 `yaml:"retry_share"`
	// RetryFloor is the number of retries per second that are always allowed, so
	// that a quiet gateway can retry at all. Default 1.
	RetryFloor float64 `yaml:"retry_floor"`

	// TTFTTimeout is the longest wait for the first content of a stream, counted
	// from its dispatch. Default 30s.
	TTFTTimeout time.Duration `yaml:"ttft_timeout"`
	// TTFTPer1K is added to TTFTTimeout for each 1,000 prompt tokens that the
	// instance has to prefill. Default 2s.
	TTFTPer1K time.Duration `yaml:"ttft_per_1k"`
	// Deadline bounds a request from its arrival to its last byte, retries and
	// waits included. Zero means no bound. Default 1h.
	Deadline time.Duration `yaml:"deadline"`
	// ReadTimeout bounds how long a client may take to send its body. Zero means
	// no bound. Default 1m.
	ReadTimeout time.Duration `yaml:"read_timeout"`
	// WriteTimeout is how long a client may leave one write unread before it
	// counts as gone: without it a client that stops reading pins a slot of an
	// instance for ever. Zero means no bound. Default 1m.
	WriteTimeout time.Duration `yaml:"write_timeout"`
	// Heartbeat is the pause after which a stream that has sent nothing yet gets
	// an SSE comment, for proxies that cut idle connections. The first one
	// commits status 200, so that a later fault can only be an error event. Zero
	// sends none. Default 0.
	Heartbeat time.Duration `yaml:"heartbeat"`

	// QueueLength bounds the requests that wait in one pool. Beyond, they are
	// answered 429. Zero keeps nobody waiting. Default 1024.
	QueueLength int `yaml:"queue_length"`
	// QueueTime bounds the wait while every instance of a pool is full. Default
	// 10s.
	QueueTime time.Duration `yaml:"queue_time"`

	// AskUsage asks instances for token counts in streams whose client did not
	// say, and takes the extra event out again. Default true.
	AskUsage bool `yaml:"ask_usage"`
	// Reveal sends the X-Warmroute headers, which name instances. Default true.
	Reveal bool `yaml:"reveal"`
	// Explain answers X-Warmroute-Explain: 1, which shows the load of every
	// instance to whoever asks. Default true.
	Explain bool `yaml:"explain"`
}

// Default returns the settings that hold when a file says nothing.
func Default() Config {
	return Config{
		BodyBytes:    32 << 20,
		AnswerBytes:  8 << 20,
		EventBytes:   32 << 20,
		HeldEvents:   64,
		HeldBytes:    256 << 10,
		LearnBytes:   1 << 20,
		Retries:      2,
		RetryShare:   0.2,
		RetryFloor:   1,
		TTFTTimeout:  30 * time.Second,
		TTFTPer1K:    2 * time.Second,
		Deadline:     time.Hour,
		ReadTimeout:  time.Minute,
		WriteTimeout: time.Minute,
		QueueLength:  1024,
		QueueTime:    10 * time.Second,
		AskUsage:     true,
		Reveal:       true,
		Explain:      true,
	}
}

// Validate returns every fault of c, each beginning with the yaml name of its
// field.
func (c Config) Validate() []error {
	var faults []error
	bad := func(field, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
	}
	sizes := []struct {
		field    string
		v, least int64
	}{
		{"body_bytes", c.BodyBytes, 1 << 10},
		{"answer_bytes", int64(c.AnswerBytes), 1 << 10},
		{"event_bytes", int64(c.EventBytes), 1 << 10},
		{"held_events", int64(c.HeldEvents), 1},
		{"held_bytes", int64(c.HeldBytes), 1},
		{"learn_bytes", int64(c.LearnBytes), 0},
		{"queue_length", int64(c.QueueLength), 0},
	}
	for _, s := range sizes {
		if s.v < s.least || s.v > 1<<30 {
			bad(s.field, "%d; want %d to %d", s.v, s.least, 1<<30)
		}
	}
	times := []struct {
		field string
		v     time.Duration
	}{
		{"ttft_per_1k", c.TTFTPer1K},
		{"deadline", c.Deadline},
		{"read_timeout", c.ReadTimeout},
		{"write_timeout", c.WriteTimeout},
		{"heartbeat", c.Heartbeat},
		{"queue_time", c.QueueTime},
	}
	for _, d := range times {
		if d.v < 0 {
			bad(d.field, "%s; want 0 or more", d.v)
		}
	}
	if c.TTFTTimeout <= 0 {
		bad("ttft_timeout", "%s; want more than 0", c.TTFTTimeout)
	}
	if c.Heartbeat > 0 && c.Heartbeat < time.Second {
		bad("heartbeat", "%s; want 0 or at least 1s", c.Heartbeat)
	}
	if c.Retries < 0 || c.Retries > 10 {
		bad("retries", "%d; want 0 to 10", c.Retries)
	}
	if !(c.RetryShare >= 0 && c.RetryShare <= 1) {
		bad("retry_share", "%g; want 0 to 1", c.RetryShare)
	}
	if !(c.RetryFloor >= 0 && c.RetryFloor <= 1000) {
		bad("retry_floor", "%g; want 0 to 1000", c.RetryFloor)
	}
	return faults
}
