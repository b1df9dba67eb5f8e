package telemetry

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// Other is the label value that stands for everything beyond a bound: a model
// that the configuration does not know, an unheard-of status code.
const Other = "other"

// Bounds on the number of values of a label. Each is far above what the code
// and a sane configuration produce; they exist so that a mistake elsewhere
// costs accuracy and not memory.
const (
	maxModels    = 1000
	maxInstances = 4096
	maxEnum      = 32
)

// bounded admits the first maxEnum values it is shown and calls the rest
// [Other]. It serves labels whose values come from constants in the code.
type bounded struct {
	mu   sync.RWMutex // guards below
	seen map[string]struct{}
}

func newBounded() *bounded {
	return &bounded{seen: make(map[string]struct{})}
}

// label returns the value to use for v. The empty value is "none", because
// Prometheus takes an empty label for an absent one.
func (b *bounded) label(v string) string {
	if v == "" {
		return "none"
	}
	v = strings.ToValidUTF8(v, "\uFFFD")
	b.mu.RLock()
	_, ok := b.seen[v]
	b.mu.RUnlock()
	if ok {
		return v
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.seen[v]; ok {
		return v
	}
	if len(b.seen) >= maxEnum {
		return Other
	}
	b.seen[v] = struct{}{}
	return v
}

// codeLabel is the status code as a label: the registered ones, plus those that
// engines and gateways use without registration. An upstream that answers with
// every number from 100 to 999 creates one series, not 900.
func codeLabel(code int) string {
	const clientClosed, overloaded = 499, 529
	if code == clientClosed || code == overloaded || http.StatusText(code) != "" {
		return strconv.Itoa(code)
	}
	if code == 0 {
		return "none"
	}
	return Other
}
