package upstream

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// MaxRetryAfter bounds what an instance may ask for: a clock that is wrong by a
// year must not take it out of service for one.
const MaxRetryAfter = time.Hour

// RetryAfter returns how long an answer asks to be left alone; 0 when it does
// not say, or names a moment that has passed. It reads, in this order,
// Retry-After-Ms (milliseconds; OpenAI, Azure), X-Ms-Retry-After-Ms (Azure) and
// Retry-After as seconds, whole or not, or as an HTTP-date (RFC 9110 section
// 10.2.3). A date counts from the answer's own Date when it has one, so that
// clocks need not agree.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	for _, name := range []string{"Retry-After-Ms", "X-Ms-Retry-After-Ms"} {
		if d, ok := scaled(h.Get(name), time.Millisecond); ok {
			return d
		}
	}
	v := strings.TrimSpace(h.Get("Retry-After"))
	if d, ok := scaled(v, time.Second); ok {
		return d
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return min(max(at.Sub(now), 0), MaxRetryAfter)
}

// scaled parses a decimal number of units, clipped to [0, MaxRetryAfter].
func scaled(v string, unit time.Duration) (time.Duration, bool) {
	n, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
	if err != nil || math.IsNaN(n) {
		return 0, false
	}
	units := min(max(n, 0), float64(MaxRetryAfter/unit))
	return time.Duration(units * float64(unit)), true
}
