package route

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func at(d time.Duration) time.Time { return epoch.Add(d) }

func near(got, want, tolerance float64) bool { return math.Abs(got-want) <= tolerance*math.Abs(want) }

// However tickets interleave, and however often each is ended, nothing is left when all have ended.
func TestLedger_Conservation(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		l := NewLedger(simple)
		now := epoch
		var open []*Ticket
		begun := 0
		for range 300 {
			now = now.Add(time.Duration(dice.IntN(50)) * time.Millisecond)
			if len(open) == 0 || dice.IntN(4) == 0 {
				prompt := dice.IntN(5000)
				k := l.Dispatch(now, dice.IntN(prompt+100)-50, prompt, 100)
				open = append(open, &k)
				begun++
				continue
			}
			k := open[dice.IntN(len(open))]
			switch dice.IntN(6) {
			case 0, 1:
				l.FirstToken(now, k)
			case 2, 3:
				l.Token(now, k, dice.IntN(5))
			case 4:
				l.End(now, k)
			case 5:
				l.Correct(now, Facts{Running: dice.IntN(50), Waiting: dice.IntN(20), KVUsed: dice.Float64(), KVTokens: 100_000})
			}
			if l.InFlight() < 0 || l.queued < 0 || l.context < 0 || l.used < 0 {
				t.Fatalf("negative ledger: %+v", l)
			}
		}
		dice.Shuffle(len(open), func(i, j int) { open[i], open[j] = open[j], open[i] })
		for _, k := range open {
			l.End(now, k)
			l.End(now, k)
			l.Token(now, k, 9)
			l.FirstToken(now, k)
		}
		v := l.Load(now.Add(factsLive))
		if v.Queued != 0 || v.Decoding != 0 || v.Context != 0 || v.Used != 0 || v.InFlight != 0 || l.cached != 0 || l.cachedDecoding != 0 {
			t.Fatalf("after all %d tickets have ended: %+v", begun, v)
		}
	}
}

func TestLedger_Phases(t *testing.T) {
	l := NewLedger(simple)
	want := func(what string, queued, decoding, context float64, inFlight int) {
		t.Helper()
		v := l.Load(epoch)
		if v.Queued != queued || v.Decoding != decoding || v.Context != context || v.InFlight != inFlight {
			t.Errorf("%s: %+v; want Q %v, D %v, context %v, %d in flight", what, v, queued, decoding, context, inFlight)
		}
	}
	want("new", 0, 0, 0, 0)
	a := l.Dispatch(epoch, 300, 1000, 50)
	b := l.Dispatch(epoch, 0, 200, 50)
	want("dispatched", 301, 0, 1200, 2)
	l.FirstToken(epoch, &a)
	l.FirstToken(epoch, &a)
	want("first token", 1, 1, 1200, 2)
	l.Token(epoch, &a, 5)
	l.Token(epoch, &b, 2)
	want("tokens", 0, 2, 1207, 2)
	l.End(epoch, &a)
	want("one ended", 0, 1, 202, 1)
	c := l.Dispatch(epoch, 5000, 70, 1) // more uncached than there is
	want("clamped", 70, 1, 272, 2)
	l.End(epoch, &c)
	l.End(epoch, &b)
	want("all ended", 0, 0, 0, 0)
	var none Ticket
	l.End(epoch, &none)
	l.Token(epoch, &none, 3)
	want("zero ticket", 0, 0, 0, 0)
}

func TestLedger_Fresh(t *testing.T) {
	l := NewLedger(simple)
	k := l.Dispatch(epoch, 10, 10, 1)
	if !l.Load(epoch).Fresh {
		t.Error("before the first token: not fresh")
	}
	l.FirstToken(epoch, &k)
	if l.Load(epoch).Fresh || l.Served() != 1 {
		t.Error("after the first token: fresh")
	}
	l.Restart()
	if v := l.Load(epoch); !v.Fresh || v.InFlight != 1 {
		t.Errorf("after a restart: %+v; want fresh, and the request still in flight", v)
	}
}

// A whole answer shows no first token: it is assumed, which frees the queue and neither teaches nor proves anything.
func TestLedger_Assume(t *testing.T) {
	prior, _ := Prior("llama-3.1-8b-1xh100")
	l := NewLedger(prior)
	now := time.Unix(1000, 0)
	ticket := l.Dispatch(now, 4000, 5000, 100)
	l.Assume(now.Add(time.Second), &ticket)
	if v := l.Load(now.Add(time.Second)); v.Queued != 0 || v.Decoding != 1 || !v.Fresh {
		t.Errorf("after the assumption: %+v; want nothing queued, one decoding, still fresh", v)
	}
	l.FirstToken(now.Add(time.Minute), &ticket)
	if l.Speed() != prior {
		t.Errorf("learned %+v from an assumption", l.Speed())
	}
	if l.Served() != 1 {
		t.Errorf("served %d; want 1", l.Served())
	}
	l.FirstToken(now.Add(2*time.Minute), &ticket)
	l.End(now.Add(3*time.Minute), &ticket)
	l.Assume(now.Add(3*time.Minute), &ticket)
	if v := l.Load(now.Add(3 * time.Minute)); l.Served() != 1 || v.InFlight != 0 || v.Queued != 0 {
		t.Errorf("after the end: served %d, %+v", l.Served(), v)
	}
}

func TestLedger_Rates(t *testing.T) {
	speed := simple
	speed.KVTokens = 40_000
	l := NewLedger(speed)
	for i := range 600 {
		now := at(time.Duration(i) * 100 * time.Millisecond)
		k := l.Dispatch(now, 100, 400, 1)
		l.FirstToken(now.Add(50*time.Millisecond), &k)
		l.End(now.Add(250*time.Millisecond), &k)
	}
	v := l.Load(at(time.Minute))
	if !near(v.Arrivals, 10, .05) || !near(v.HitRate, .75, 1e-9) || !near(v.Turnover, 60_000./40_000, 1e-9) || !near(v.Stay, .2, 1e-6) {
		t.Errorf("ten per second, three quarters cached: %+v", v)
	}
	if v := l.Load(at(time.Minute + arrivalHalfLife)); !near(v.Arrivals, 5, .05) {
		t.Errorf("a half-life later: %v arrivals per second; want 5", v.Arrivals)
	}
	if w := l.Load(at(time.Minute + workHalfLife)).Work; !near(w, v.Work/2, .02) {
		t.Errorf("ten minutes later: work %v; want half of %v", w, v.Work)
	}
	if l.Restart(); l.Load(at(time.Minute)).Turnover != 0 {
		t.Error("a restarted engine evicts at once")
	}
}

// serve runs prompts through an engine of one speed and lets the ledger watch.
func serve(l *Ledger, real Speed, dice *rand.Rand, prompts int) {
	now := epoch
	for i := range prompts {
		now = now.Add(time.Minute)
		u := 1500 + dice.IntN(6000)
		k := l.Dispatch(now, u, u, 20)
		late := 0.0
		if i%2 == 0 {
			late = dice.ExpFloat64() // something else was in the way
		}
		now = now.Add(seconds(prefillTime(&real, float64(u), float64(u)) + wait(&real, &Load{}, float64(u)) + late))
		l.FirstToken(now, &k)
		for range 20 {
			now = now.Add(seconds(real.DecodeBase + real.DecodeCtx*float64(l.context)))
			l.Token(now, &k, 1)
		}
		l.End(now, &k)
	}
}

func TestLedger_LearnsSpeed(t *testing.T) {
	f := func(what string, prior, engine, want Speed) {
		t.Helper()
		l := NewLedger(prior)
		serve(l, engine, rand.New(rand.NewPCG(2, 2)), 300)
		got := l.Speed()
		if !near(got.PrefillToken, want.PrefillToken, .15) || !near(got.DecodeBase, want.DecodeBase, .15) {
			t.Errorf("%s: learned %+v; want about %+v", what, got, want)
		}
	}
	times := func(s Speed, k float64) Speed {
		s.PrefillToken *= k
		s.DecodeBase *= k
		s.DecodeCtx *= k
		return s
	}
	s := engine(t)
	f("right from the start", s, s, s)
	f("twice as slow", s, times(s, 2), times(s, 2))
	f("three times as fast", s, times(s, 1./3), times(s, 1./3))
	f("ten times as slow", s, times(s, 10), times(s, 4)) // no farther than the clip
	f("unknown and slow", Speed{}, times(s, 10), times(s, 10))
	f("unknown and fast", Speed{}, times(s, .25), times(s, .25))
}

func TestLedger_LearnsOnlyFromWhatTells(t *testing.T) {
	f := func(what string, uncached int, change func(*Ledger)) {
		t.Helper()
		s := engine(t)
		s.KVTokens = 50_000
		l := NewLedger(s)
		change(l)
		now := epoch
		for range 50 {
			now = now.Add(time.Minute)
			k := l.Dispatch(now, uncached, uncached, 1)
			now = now.Add(10 * time.Second)
			l.FirstToken(now, &k)
			l.End(now, &k)
		}
		if got := l.Speed().PrefillToken; got != s.PrefillToken {
			t.Errorf("%s: rate moved from %v to %v", what, s.PrefillToken, got)
		}
	}
	f("few tokens", 1000, func(*Ledger) {})
	f("a full KV cache", 5000, func(l *Ledger) { l.Dispatch(epoch, 48_000, 48_000, 1) })
}

func TestLedger_GapsDuringPrefillTeachNothing(t *testing.T) {
	s := engine(t)
	l := NewLedger(s)
	a := l.Dispatch(epoch, 100, 100, 1)
	now := epoch
	l.FirstToken(now, &a)
	for range 50 {
		b := l.Dispatch(now, 8000, 8000, 1)
		now = now.Add(350 * time.Millisecond)
		l.FirstToken(now, &b)
		l.Token(now, &a, 1) // one step with a whole prefill in it
		l.End(now, &b)
	}
	if got := l.Speed(); got.DecodeBase != s.DecodeBase || got.DecodeCtx != s.DecodeCtx {
		t.Errorf("decode step went from %v to %v by steps with prefill", s.DecodeBase, got.DecodeBase)
	}
}

func TestLedger_LearnsContextPart(t *testing.T) {
	s := engine(t)
	engine := s
	engine.DecodeBase *= 1.5
	engine.DecodeCtx *= 2
	l := NewLedger(s)
	now := epoch
	dice := rand.New(rand.NewPCG(4, 4))
	for range 200 {
		k := l.Dispatch(now, 1, 1+dice.IntN(1_000_000), 1)
		l.FirstToken(now, &k)
		for range 10 {
			now = now.Add(seconds((engine.DecodeBase + engine.DecodeCtx*float64(l.context)) * (1 + .1*dice.NormFloat64())))
			l.Token(now, &k, 1)
		}
		now = now.Add(5 * time.Second)
		l.Token(now, &k, 1) // the network paused
		l.End(now, &k)
	}
	if got := l.Speed(); !near(got.DecodeBase, engine.DecodeBase, .3) || !near(got.DecodeCtx, engine.DecodeCtx, .3) {
		t.Errorf("learned %v + %v*ctx; want about %v + %v*ctx", got.DecodeBase, got.DecodeCtx, engine.DecodeBase, engine.DecodeCtx)
	}
}

func BenchmarkLedger_Load(b *testing.B) {
	l := NewLedger(simple)
	for range 50 {
		l.Dispatch(epoch, 100, 1000, 10)
	}
	now := epoch
	for b.Loop() {
		now = now.Add(time.Millisecond)
		l.Load(now)
	}
}

func BenchmarkLedger_Token(b *testing.B) {
	l := NewLedger(simple)
	k := l.Dispatch(epoch, 100, 1000, 10)
	l.FirstToken(epoch, &k)
	now := epoch
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Millisecond)
		l.Token(now, &k, 1)
	}
}
