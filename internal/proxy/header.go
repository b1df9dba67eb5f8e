package proxy

import (
	"net/http"
	"strconv"
)

// The headers that tell about the choice.
const (
	instanceHeader = "X-Warmroute-Instance"
	matchHeader    = "X-Warmroute-Match"
	reasonHeader   = "X-Warmroute-Reason"
)

// fillAnswer writes the headers of an answer: those of the instance, which
// upstream has let through, and ours.
func (x *exchange) fillAnswer(h, from http.Header) {
	for name, values := range from {
		switch name {
		case "Content-Length", "X-Request-Id":
			// The length is of what is sent, the id the one that the client knows.
		default:
			h[name] = values
		}
	}
	if x.g.cfg.Reveal {
		h[instanceHeader] = []string{x.rec.Instance}
		h[matchHeader] = []string{strconv.Itoa(x.rec.PredictedTokens)}
		h[reasonHeader] = []string{x.rec.Reason}
	}
}

// fillStream writes the headers of an answer that is sent as it comes: nothing
// on the way may keep, pack or gather it.
func (x *exchange) fillStream(h, from http.Header) {
	x.fillAnswer(h, from)
	unbuffered(h)
	if x.explain {
		h["Trailer"] = []string{explanationHeader}
	}
}

// fillHeartbeat writes the headers of a stream of which nobody knows yet where
// it will come from.
func (x *exchange) fillHeartbeat(h http.Header) {
	h["Content-Type"] = []string{"text/event-stream; charset=utf-8"}
	unbuffered(h)
	if x.explain {
		h["Trailer"] = []string{explanationHeader}
	}
}

func unbuffered(h http.Header) {
	h["Cache-Control"] = []string{"no-cache, no-transform"}
	h["X-Accel-Buffering"] = []string{"no"}
}

// sendTrailer explains behind the body.
func (x *exchange) sendTrailer() {
	if x.explain {
		x.out.trailer(explanationHeader, string(x.explanation().encode(maxExplanation)))
	}
}

// explanationComment explains within a stream. It is one comment line without a
// blank line: glued to the front of the marker it belongs to an event that every
// client reads, and adds none.
func (x *exchange) explanationComment() []byte {
	b := append([]byte(": warmroute "), x.explanation().encode(maxExplanation)...)
	return append(b, '\n')
}
