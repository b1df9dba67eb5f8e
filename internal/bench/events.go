package bench

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

var errEventForm = errors.New("want AT:restart:INSTANCE[:DOWN], AT:kv:INSTANCE:TOKENS, AT:add or AT:remove:INSTANCE; INSTANCE may be all")

// ReadEvents reads events as written on a command line and adds them; see
// [errEventForm] for the form. An instance that is added is one more of the
// first one's kind.
func (s *Settings) ReadEvents(texts []string) error {
	for _, t := range texts {
		if err := s.readEvent(t); err != nil {
			return fmt.Errorf("%q: %w", t, err)
		}
	}
	return nil
}

func (s *Settings) readEvent(text string) error {
	words := strings.Split(text, ":")
	at, err := time.ParseDuration(words[0])
	if err != nil || at < 0 || len(words) < 2 {
		return errEventForm
	}
	if words[1] == "add" && len(words) == 2 {
		s.Events = append(s.Events, Event{At: at, Instance: len(s.Profiles), Add: true})
		s.Profiles = append(slices.Clone(s.Profiles), s.Profiles[0])
		return nil
	}
	if len(words) < 3 {
		return errEventForm
	}
	e := Event{At: at}
	switch {
	case words[1] == "restart" && len(words) == 3:
		e.Restart = true
	case words[1] == "restart" && len(words) == 4:
		e.Restart = true
		if e.Down, err = time.ParseDuration(words[3]); err != nil || e.Down < 0 {
			return errEventForm
		}
	case words[1] == "kv" && len(words) == 4:
		if e.KVTokens, err = strconv.Atoi(words[3]); err != nil || e.KVTokens < 1 {
			return errEventForm
		}
	case words[1] == "remove" && len(words) == 3:
		e.Remove = true
	default:
		return errEventForm
	}
	if words[2] == "all" {
		for i := range s.Profiles {
			e.Instance = i
			s.Events = append(s.Events, e)
		}
		return nil
	}
	if e.Instance, err = strconv.Atoi(words[2]); err != nil {
		return errEventForm
	}
	s.Events = append(s.Events, e)
	return nil
}
