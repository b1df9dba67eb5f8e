package dialect

import (
	"errors"

	"github.com/warmroute/warmroute/internal/prompt"
)

// Answer is a whole answer that did not stream.
type Answer struct {
	Usage    Usage
	Message  prompt.Message
	Joinable bool   // Message is the one answer to the one prompt and may join the chain
	Finish   string // why it ended
	Fault    *Error // the error that the body holds instead of an answer
}

// ParseAnswer reads the body of an answer of kind k.
func ParseAnswer(k Kind, body []byte) (Answer, error) { return Answer{}, errors.New("not yet") }
