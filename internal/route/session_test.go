package route

import (
	"testing"
	"time"
)

func sessionPolicy(change func(*Config)) *session {
	cfg := Default()
	if change != nil {
		change(&cfg)
	}
	return newSession(cfg)
}

// choose places a request of a session at a time after the start.
func (p *session) choose(cs []Candidate, id uint64, after time.Duration) Decision {
	return p.Choose(&Request{Now: at(after), Tokens: 500, Session: id, MaxHold: -1}, cs)
}

// The fleet gives the number of an instance that has left to another, which is a stranger to the sessions of the first.
func TestSession_NumberOfAnotherInstance(t *testing.T) {
	p := mustNew(t, Session, Default())
	r := Request{Now: epoch, Tokens: 100, Session: 7}
	cs := []Candidate{{ID: 0, NameHash: Hash("a"), Speed: simple}}
	p.Choose(&r, cs)
	if d := p.Choose(&r, cs); d.Reason != Pinned {
		t.Fatalf("second request: %+v; want it pinned", d)
	}
	cs[0].NameHash = Hash("b")
	if d := p.Choose(&r, cs); d.Reason == Pinned {
		t.Errorf("pinned to an instance that only has the number of the first: %+v", d)
	}
}

func TestSession_Pins(t *testing.T) {
	p := sessionPolicy(nil)
	cs := candidates(Load{Queued: 400}, Load{}, Load{Queued: 400})
	if d := p.choose(cs, 5, 0); d.Index != 1 || d.Reason != Cold {
		t.Fatalf("first request: %+v; want the cheapest, 1", d)
	}
	cs[1].Load.Queued = 5000
	cs[0].Match = 500
	if d := p.choose(cs, 5, time.Minute); d.Index != 1 || d.Reason != Pinned || d.Cost <= 5 {
		t.Errorf("second request: %+v; want its instance and its price, though others cost less", d)
	}
	if d := p.choose(cs, 6, time.Minute); d.Index != 0 {
		t.Errorf("another session: %+v; want the cheapest, 0", d)
	}
	if d := p.choose(cs, 0, time.Minute); d.Index != 0 || d.Reason != Matched {
		t.Errorf("no session: %+v; want what the cost policy says", d)
	}
}

func TestSession_Expires(t *testing.T) {
	f := func(pause time.Duration, want Reason) {
		t.Helper()
		p := sessionPolicy(nil)
		cs := candidates(Load{}, Load{})
		p.choose(cs, 5, 0)
		p.choose(cs, 5, 20*time.Minute) // counts from the last request
		if d := p.choose(cs, 5, 20*time.Minute+pause); d.Reason != want {
			t.Errorf("after a pause of %s: %+v; want %s", pause, d, want)
		}
	}
	f(30*time.Minute, Pinned)
	f(30*time.Minute+1, Cold)
}

func TestSession_Yields(t *testing.T) {
	f := func(what string, change func([]Candidate), stays bool) {
		t.Helper()
		p := sessionPolicy(nil)
		cs := candidates(Load{}, Load{Queued: 100}, Load{Queued: 100}, Load{Queued: 100})
		if d := p.choose(cs, 5, 0); d.Index != 0 {
			t.Fatalf("first request: %+v; want 0", d)
		}
		cs[0].Load.Queued = 800 // dear, but that alone moves no pin
		change(cs)
		d := p.choose(cs, 5, time.Second)
		if (d.Index == 0) != stays || (d.Reason == Pinned) != stays {
			t.Fatalf("%s: %+v; want to stay: %t", what, d, stays)
		}
		// The pin has moved with the request.
		cs[0].Excluded, cs[0].Load = Eligible, Load{}
		if e := p.choose(cs, 5, 2*time.Second); e.Index != d.Index || e.Reason != Pinned {
			t.Errorf("%s: afterwards %+v; want %d again", what, e, d.Index)
		}
	}
	f("nothing", func([]Candidate) {}, true)
	f("full", func(cs []Candidate) { cs[0].Excluded = Full }, false)
	f("open", func(cs []Candidate) { cs[0].Excluded = Open }, false)
	f("few in flight", func(cs []Candidate) { cs[0].Load.InFlight = 7 }, true)
	f("many in flight", func(cs []Candidate) { cs[0].Load.InFlight = 8 }, false)
	f("many in flight everywhere", func(cs []Candidate) {
		for i := range cs {
			cs[i].Load.InFlight = 50
		}
	}, true)
	f("twice the mean", func(cs []Candidate) {
		for i := range cs {
			cs[i].Load.InFlight = 20
		}
		cs[0].Load.InFlight = 61
	}, false)
	f("KV cache held by others", func(cs []Candidate) {
		cs[0].Speed.KVTokens = 10_000
		cs[0].Load.Used = 9900
	}, false)
}

func TestSession_HeldIsNotPinned(t *testing.T) {
	p := sessionPolicy(nil)
	cs := candidates(Load{Queued: 900}, Load{Queued: 950})
	if d := p.Choose(&Request{Now: epoch, Tokens: 500, Session: 5}, cs); !d.Hold {
		t.Fatalf("%+v; want a hold", d)
	}
	cs[1].Load = Load{}
	if d := p.Choose(&Request{Now: epoch, Tokens: 500, Session: 5}, cs); d.Index != 1 || d.Reason == Pinned {
		t.Errorf("%+v; want 1, which has room now", d)
	}
}

func TestSession_MemoryIsBounded(t *testing.T) {
	p := sessionPolicy(func(c *Config) { c.Sessions = 64 })
	cs := candidates(Load{}, Load{}, Load{})
	for i := range 10_000 {
		p.choose(cs, uint64(i+1), time.Duration(i)*time.Second)
	}
	if len(p.pins) != 64 {
		t.Errorf("%d pins; want 64", len(p.pins))
	}
	if d := p.choose(cs, 10_000, 10_000*time.Second); d.Reason != Pinned {
		t.Errorf("the last session: %+v; want its pin", d)
	}
	if d := p.choose(cs, 1, 10_000*time.Second); d.Reason == Pinned {
		t.Errorf("the first session: %+v; want its pin to have made room", d)
	}
}
