package fleet

import (
	"testing"
	"time"
)

var epoch0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// play feeds a breaker with one letter per step of 100 ms: g good, b bad, n
// neutral (each a request that starts and ends at once, if the breaker lets it),
// x bad and y good though dispatched before the breaker opened, "." nothing, s a
// pause of a second. It returns the letters with refused requests in upper case.
func play(b *breaker, now *time.Time, script string) string {
	out := []byte(script)
	for i, c := range []byte(script) {
		*now = now.Add(100 * time.Millisecond)
		switch c {
		case 's':
			*now = now.Add(900 * time.Millisecond)
			continue
		case 'x':
			b.failure(*now, ordinary)
			continue
		case 'y':
			b.success(*now, ordinary)
			continue
		case '.':
			continue
		}
		if !b.allows(*now) {
			out[i] -= 'a' - 'A'
			continue
		}
		how := b.start(*now)
		switch c {
		case 'g':
			b.success(*now, how)
		case 'b':
			b.failure(*now, how)
		case 'n':
			b.neutral(how)
		}
	}
	return string(out)
}

func TestBreakerScripts(t *testing.T) {
	f := func(script, want string) {
		t.Helper()
		now := epoch0
		b := &breaker{cfg: Default().Breaker}
		if got := play(b, &now, script); got != want {
			t.Errorf("%s: %s; want %s", script, got, want)
		}
	}
	f("bbbbg", "bbbbg")                                   // four in a row are not five
	f("bbbbbgg", "bbbbbGG")                               // five are
	f("gbgbg", "gbgbg")                                   // 2 of 5
	f("gbgbbg", "gbgbbG")                                 // 3 of 5
	f("gggggbbbbg", "gggggbbbbg")                         // 4 of 9
	f("gggggbbbbbg", "gggggbbbbbG")                       // 5 of 10, and 5 in a row
	f("bbbbsssssssssssbg", "bbbbsssssssssssBg"[:15]+"bG") // the row counts however old
	f("bgbgsssssssssssbg", "bgbgsssssssssssbg")           // the window does not
	f("nnnnnnnnnng", "nnnnnnnnnng")                       // 400s and clients that leave
	f("bnbnbnbnng", "bnbnbnbnng")                         // neither trip nor heal
	f("bnbnbnbnbng", "bnbnbnbnbNG")                       // nor hide a row
	f("bbbbbssssg", "bbbbbssssG")                         // still open after 4.1 s
	f("bbbbbsssssgg", "bbbbbsssssgg")                     // the trial after 5 s closes it
	f("bbbbbsssssbssssssssg", "bbbbbsssssbssssssssG")     // a failed one doubles the pause
	f("bbbbbsssssbssssssssssg", "bbbbbsssssbssssssssssg") // to 10 s
	f("bbbbbsssssnng", "bbbbbsssssnng")                   // a neutral trial makes place for another
	f("bbbbbxxxxxsssssg", "bbbbbxxxxxsssssg")             // what failed late does not prolong it
	f("bbbbbyyyyyg", "bbbbbyyyyyG")                       // what went well late does not close it
}

func TestBreakerDoublesUpToTheMaximum(t *testing.T) {
	now := epoch0
	b := &breaker{cfg: Default().Breaker}
	play(b, &now, "bbbbb")
	var waits []time.Duration
	for range 6 {
		waits = append(waits, b.until.Sub(now))
		now = b.until
		b.failure(now, b.start(now))
	}
	for i, want := range []time.Duration{5, 10, 20, 40, 60, 60} {
		if waits[i] != want*time.Second {
			t.Errorf("pause %d is %v; want %vs", i, waits[i], want)
		}
	}
	now = b.until
	b.success(now, b.start(now))
	play(b, &now, "bbbbb")
	if d := b.until.Sub(now); d != time.Minute {
		t.Errorf("opens again at once for %v; want 1m: it has not proved itself", d)
	}
	now = b.until
	b.success(now, b.start(now))
	now = now.Add(2 * time.Minute)
	play(b, &now, "bbbbb")
	if d := b.until.Sub(now); d != 5*time.Second {
		t.Errorf("opens after two good minutes for %v; want 5s", d)
	}
}

func TestBreakerTrialIsSingle(t *testing.T) {
	now := epoch0
	b := &breaker{cfg: Default().Breaker}
	play(b, &now, "bbbbb")
	now = b.until
	if b.state(now) != halfOpen || !b.allows(now) {
		t.Fatal("not half open after the pause")
	}
	how := b.start(now)
	if how != trial || b.allows(now) {
		t.Error("a second request passes while the trial runs")
	}
	// A request that was forced through must not end the trial.
	if extra := b.start(now); extra != forced {
		t.Errorf("passage = %v; want forced", extra)
	} else if b.neutral(extra); b.allows(now) {
		t.Error("a forced request's end makes place for a second trial")
	}
	b.failure(now, forced)
	if b.state(now) != halfOpen {
		t.Error("a forced request's failure counts as the trial's")
	}
	b.success(now, how)
	if b.state(now) != closed {
		t.Error("a good trial does not close")
	}
	if ok, bad := b.counts(now); ok != 0 || bad != 0 {
		t.Errorf("old failures count on: %d, %d", ok, bad)
	}
}

func TestBreakerConditionsCanBeOff(t *testing.T) {
	now := epoch0
	cfg := Default().Breaker
	cfg.Consecutive, cfg.FailureRatio = 0, 0
	b := &breaker{cfg: cfg}
	if got := play(b, &now, "bbbbbbbbbbbbbbbbbbbbg"); got != "bbbbbbbbbbbbbbbbbbbbg" {
		t.Error(got)
	}
	cfg.Consecutive = 2
	b = &breaker{cfg: cfg}
	if got := play(b, &now, "bgbgbgbbg"); got != "bgbgbgbbG" {
		t.Error(got)
	}
}

func TestLimit(t *testing.T) {
	now := epoch0
	var l limit
	if l.reached(1 << 20) {
		t.Error("the zero limit limits")
	}
	l.served(now, 50)
	l.full(now, 50)
	if !l.reached(40) || l.reached(39) {
		t.Errorf("limit %v after being full at 50; want 40", l.max)
	}
	l.full(now.Add(100*time.Millisecond), 45)
	if !l.reached(40) || l.reached(39) {
		t.Errorf("limit %v: the same burst counts twice", l.max)
	}
	now = now.Add(2 * time.Second)
	l.full(now, 200)
	if !l.reached(32) || l.reached(31) {
		t.Errorf("limit %v; want 32: leases beyond the limit must not raise it", l.max)
	}
	for range 33 { // 1/32 + 1/32.03 + ...: a little less than one a round
		l.served(now, 32)
	}
	if !l.reached(33) || l.reached(32) {
		t.Errorf("limit %v after a good round; want 33", l.max)
	}
	for range 1000 {
		l.served(now, 3)
	}
	if !l.reached(33) {
		t.Errorf("limit %v grows though it does not bind", l.max)
	}
	for range 20 {
		now = now.Add(2 * time.Second)
		l.full(now, 1)
	}
	if l.reached(limitFloor - 1) {
		t.Errorf("limit %v is below the floor", l.max)
	}
	l.served(now.Add(limitForget+time.Second), 1)
	if l.reached(1 << 20) {
		t.Errorf("limit %v is never forgotten", l.max)
	}
}
