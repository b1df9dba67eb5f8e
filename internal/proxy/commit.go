package proxy

// held keeps the events of a stream that come before its first content. While it
// does, another instance may still take over, and the client does not notice.
type held struct {
	maxEvents, maxBytes int

	events int
	bytes  []byte
	over   bool // the stream is committed
}

// add keeps an event and reports whether it could. The events of a stream that
// says so much before its content must pass, so then the stream is committed.
func (h *held) add(raw []byte) bool {
	if h.events >= h.maxEvents || len(h.bytes)+len(raw) > h.maxBytes {
		return false
	}
	h.events++
	h.bytes = append(h.bytes, raw...)
	return true
}

// take commits and returns what was kept.
func (h *held) take() []byte {
	h.over = true
	b := h.bytes
	h.bytes = nil
	return b
}
