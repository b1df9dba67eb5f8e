package proxy

import (
	"sync"
	"time"
)

// budget bounds the extra load of retries over the whole fleet. Each first
// attempt earns share of a retry, and each second earns floor of one, up to
// burst: when everything fails, retries must not multiply the load that made it
// fail.
type budget struct {
	share float64 // set once by newBudget
	floor float64 // per second; set once by newBudget

	mu     sync.Mutex // guards below; taken last
	tokens float64
	last   time.Time
}

// retryBurst is how many retries may come at once after a quiet time.
const retryBurst = 10

func newBudget(share, floor float64) *budget {
	return &budget{share: share, floor: floor, tokens: retryBurst}
}

// earn counts a first attempt.
func (b *budget) earn() {
	b.mu.Lock()
	b.tokens = min(b.tokens+b.share, retryBurst)
	b.mu.Unlock()
}

// spend takes one retry and reports whether there was one.
func (b *budget) spend(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.last.IsZero() {
		b.tokens = min(b.tokens+b.floor*now.Sub(b.last).Seconds(), retryBurst)
	}
	b.last = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
