package route

import (
	"testing"
	"time"
)

// busyLedger has two streams of 1000 tokens, 900 of them cached.
func busyLedger() *Ledger {
	s := simple
	s.KVTokens = 100_000
	l := NewLedger(s)
	for range 2 {
		k := l.Dispatch(epoch, 100, 1000, 10)
		l.FirstToken(epoch, &k)
	}
	return l
}

func TestCorrect_AddsWhatOthersSent(t *testing.T) {
	l := busyLedger()
	f := Facts{Running: 5, Waiting: 2, KVUsed: -1}
	l.Correct(at(time.Second), f)
	if v := l.Load(at(time.Second)); v.InFlight != 2 {
		t.Errorf("one scrape alone: %+v; want no change yet", v)
	}
	l.Correct(at(2*time.Second), f)
	v := l.Load(at(3 * time.Second))
	if v.InFlight != 7 || v.Decoding != 5 || v.Queued != 200 || v.Context != 2000+3*1000 {
		t.Errorf("two scrapes show 3 running and 2 waiting of others: %+v", v)
	}
	if v := l.Load(at(2*time.Second + factsLive)); v.InFlight != 2 || v.Queued != 0 {
		t.Errorf("scrapes have stopped: %+v; want only ours", v)
	}
}

func TestCorrect_NeverTakesAway(t *testing.T) {
	l := busyLedger()
	l.Dispatch(epoch, 500, 500, 1)
	for i := range 5 {
		l.Correct(at(time.Duration(i)*time.Second), Facts{KVUsed: -1}) // the engine says that it is idle
	}
	if v := l.Load(at(4 * time.Second)); v.InFlight != 3 || v.Queued != 500 || v.Decoding != 2 || v.Context != 2500 {
		t.Errorf("an engine that reports nothing: %+v; want what we have sent", v)
	}
}

func TestCorrect_Memory(t *testing.T) {
	f := func(what string, share, want float64) {
		t.Helper()
		l := busyLedger()
		for i := range 30 {
			l.Correct(at(time.Duration(i)*time.Second), Facts{Running: 2, KVUsed: share})
		}
		if got := l.Load(at(30 * time.Second)).Used; !near(got, want, .01) {
			t.Errorf("%s: %v KV tokens used; want %v", what, got, want)
		}
	}
	f("nothing is shared", .02, 2000)
	f("one prefix for both", .011, 1100)
	f("impossibly little", 0, 200)
	f("impossibly much", 1, 2000)
	f("not reported", -1, 200+privatePrior*1800)
}

func TestCorrect_Capacity(t *testing.T) {
	l := NewLedger(Speed{})
	l.Correct(epoch, Facts{KVUsed: -1, KVTokens: 12_345, StepTokens: 2048})
	if s := l.Speed(); s.KVTokens != 12_345 || s.StepTokens != 2048 {
		t.Errorf("speed %+v; want the reported sizes", s)
	}
	l.Correct(epoch, Facts{KVUsed: -1})
	if s := l.Speed(); s.KVTokens != 12_345 || s.StepTokens != 2048 {
		t.Errorf("speed %+v; want the sizes kept when a scrape has none", s)
	}
}
