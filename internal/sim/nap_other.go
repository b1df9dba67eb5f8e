//go:build !linux

package sim

import "time"

// nap sleeps for d, as precisely as the runtime's timers are.
func nap(d time.Duration) { time.Sleep(d) }
