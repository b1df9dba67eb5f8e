package proxy

import (
	"sync"

	"github.com/warmroute/warmroute/internal/route"
)

// threads remembers which instance made which stored response: only that one can
// go on from it (previous_response_id). Two generations bound it: when the young
// one is full, it becomes the old one, and what nobody asked for is forgotten.
type threads struct {
	mu         sync.Mutex        // guards below; taken last
	young, old map[uint64]uint64 // hash of the response's id -> Candidate.NameHash
}

const maxThreads = 1 << 15

// put notes that the instance of that name made the response.
func (t *threads) put(response, instance string) {
	if response == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.putLocked(route.Hash(response), route.Hash(instance))
}

func (t *threads) putLocked(key, instance uint64) {
	if t.young == nil || len(t.young) >= maxThreads {
		t.old, t.young = t.young, make(map[uint64]uint64)
	}
	t.young[key] = instance
}

// get returns the name's hash of the instance that made the response, or 0.
func (t *threads) get(response string) uint64 {
	if response == "" {
		return 0
	}
	key := route.Hash(response)
	t.mu.Lock()
	defer t.mu.Unlock()
	if instance, ok := t.young[key]; ok {
		return instance
	}
	instance, ok := t.old[key]
	if ok {
		t.putLocked(key, instance)
	}
	return instance
}
