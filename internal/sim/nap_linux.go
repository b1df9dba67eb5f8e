package sim

import (
	"syscall"
	"time"
)

// nap sleeps for d, late by some 60 us. The runtime's timers round the last part of a wait up to a millisecond on an idle machine.
func nap(d time.Duration) {
	ts := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&ts, nil) // a signal may end it early; the caller looks at the clock
}
