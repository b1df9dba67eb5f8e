package cli

import (
	"io"
	"log/slog"
	"strings"
	"sync"

	"github.com/warmroute/warmroute/internal/config"
)

// sieve is the last thing between the log and the terminal: it masks the
// secrets of all configurations that were ever in force. Whoever logs should not
// have had a secret at hand; this is for the day on which somebody had.
type sieve struct {
	w io.Writer

	mu      sync.Mutex // guards below, and keeps lines whole
	secrets map[string]bool
	mask    *strings.Replacer // nil while there are none
}

func newSieve(w io.Writer) *sieve { return &sieve{w: w, secrets: make(map[string]bool)} }

// learn adds secrets to those that are masked.
func (s *sieve) learn(secrets ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range secrets {
		s.secrets[v] = true
	}
	if len(s.secrets) == 0 {
		return
	}
	all := make([]string, 0, len(s.secrets))
	for v := range s.secrets {
		all = append(all, v)
	}
	s.mask = config.Mask(all)
}

// Write passes one record on. Handlers of slog write each in one piece.
func (s *sieve) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mask == nil {
		return s.w.Write(b)
	}
	if _, err := s.mask.WriteString(s.w, string(b)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// stray takes what libraries write to the standard logger. net/http quotes there
// what an instance sends unasked, which may be an answer, so nothing from a
// quotation mark on is passed on.
type stray struct{ log *slog.Logger }

// Write passes one message on. The standard logger writes each in one piece.
func (s stray) Write(b []byte) (int, error) {
	text, _, _ := strings.Cut(strings.TrimSpace(string(b)), `"`)
	s.log.Warn("a library complains", slog.String("text", text))
	return len(b), nil
}

// newLogger returns a logger in the format, text or json, at a level that can be
// changed.
func newLogger(w io.Writer, format string, level *slog.LevelVar) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// setLevel sets the level by its name in the configuration, which has been
// validated.
func setLevel(level *slog.LevelVar, name string) {
	_ = level.UnmarshalText([]byte(name))
}
