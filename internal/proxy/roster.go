package proxy

import (
	"sync"

	"github.com/warmroute/warmroute/internal/upstream"
	"github.com/warmroute/warmroute/prefix"
)

// roster is the attempts that are under way, so that those on an instance that
// has left can be ended.
type roster struct {
	mu       sync.Mutex // guards below; taken last
	attempts map[*attempt]prefix.InstanceID
}

func (r *roster) add(a *attempt, id prefix.InstanceID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.attempts == nil {
		r.attempts = make(map[*attempt]prefix.InstanceID)
	}
	r.attempts[a] = id
}

func (r *roster) remove(a *attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.attempts, a)
}

// cancel ends the attempts on an instance.
func (r *roster) cancel(id prefix.InstanceID, why *upstream.Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for a, on := range r.attempts {
		if on == id {
			a.cancel(why)
		}
	}
}
