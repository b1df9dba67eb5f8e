package route

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// What went wrong in other routers, each as a test of the whole: policy and ledgers together.

func TestTrap_NoMatchSpreadsByLoad(t *testing.T) {
	f := newRig(t, eager(t), 8)
	for i := range 8 {
		f.warm(i)
	}
	f.nodes[3].ledger.work.sum = 0 // the smallest cache is no magnet
	for i := range 50 {
		f.send(Request{Output: 100}, part{fmt.Sprint("new", i), 2000})
	}
	if got := slices.Max(f.served()); got > 7 {
		t.Errorf("50 requests that nobody holds on 8 instances: %v; want at most 7 on one", f.served())
	}
}

func TestTrap_LoadCountsFromDispatch(t *testing.T) {
	f := newRig(t, eager(t), 8)
	for i := range 8 {
		f.warm(i)
	}
	for i := range 32 {
		f.send(Request{Output: 1}, part{fmt.Sprint("long", i), 32_000})
	}
	if got := slices.Max(f.served()); got != 4 {
		t.Errorf("32 prompts of 32k tokens at once on 8 instances: %v; want 4 on each", f.served())
	}
}

func TestTrap_SharedSystemPromptUsesAll(t *testing.T) {
	f := newRig(t, eager(t), 8)
	system := part{"system", 3000}
	for i := range 1000 {
		f.send(Request{Output: 200}, system, part{fmt.Sprint("tail", i), 800})
		f.pass(10 * time.Millisecond) // 100 per second; one instance can do 30
	}
	if got := slices.Min(f.served()); got < 60 {
		t.Errorf("1000 tails of one system prompt on 8 instances: %v; want at least 60 on each", f.served())
	}
}

func TestTrap_HotInstanceLeavesOthersAlone(t *testing.T) {
	f := newRig(t, eager(t), 8)
	for i := range 8 {
		f.warm(i, part{fmt.Sprint("home", i), 8000})
	}
	for i := range 30 {
		f.start(0, &Request{Tokens: 30_000}, []part{{fmt.Sprint("hot", i), 30_000}})
	}
	for i := 1; i < 8; i++ {
		if got := f.send(Request{Output: 100}, part{fmt.Sprint("home", i), 8000}, part{"question", 200}); got != i {
			t.Errorf("prompt at home on %d went to %d", i, got)
		}
	}
	if got := f.send(Request{Output: 100}, part{"home0", 8000}, part{"question", 200}); got == 0 {
		t.Error("a match of 8000 tokens outweighed 30 prompts of 30,000 tokens that wait")
	}
}

func TestTrap_UnhealthyInstanceChangesNothing(t *testing.T) {
	with, without := newRig(t, eager(t), 8), newRig(t, eager(t), 7)
	with.cs[7].Excluded = Unready
	for i := range 300 {
		parts := []part{{fmt.Sprint("group", i%20), 3000}, {fmt.Sprint("tail", i), 500}}
		a, b := with.send(Request{Output: 100}, parts...), without.send(Request{Output: 100}, parts...)
		if a != b {
			t.Fatalf("request %d went to %d beside an idle unhealthy instance, to %d without", i, a, b)
		}
		with.pass(20 * time.Millisecond)
		without.pass(20 * time.Millisecond)
	}
}

func TestTrap_SiblingsStayTogether(t *testing.T) {
	f := func(shared int, gap time.Duration) {
		t.Helper()
		g := newRig(t, eager(t), 8)
		for i := range 8 {
			g.warm(i)
		}
		for i := range 16 {
			g.send(Request{Output: 100}, part{"new agent", shared}, part{fmt.Sprint("branch", i), 100})
			g.pass(gap)
		}
		used := 0
		for _, n := range g.served() {
			used += min(n, 1)
		}
		if used > 2 {
			t.Errorf("16 siblings of %d tokens, one every %v: %v; want one or two instances", shared, gap, g.served())
		}
	}
	f(8000, 6*time.Millisecond)
	f(8000, 0)
	f(2000, 6*time.Millisecond)
	f(2000, 0)
	f(1000, 6*time.Millisecond)
}

func TestTrap_HotPrefixOverflowsToSeveral(t *testing.T) {
	hot := []part{{"hot", 8000}}
	f := func(p Policy, most int) {
		t.Helper()
		g := newRig(t, p, 300)
		g.warm(0, hot...)
		for i := range 800 {
			g.send(Request{Output: 100, Simple: 42}, hot[0], part{fmt.Sprint("tail", i), 300})
			g.pass(2 * time.Millisecond) // 500 per second; one instance can do 50
		}
		counts := g.served()
		used := 0
		for _, n := range counts {
			used += min(n, 1)
		}
		if used < 8 || slices.Max(counts) > most {
			t.Errorf("%s: a hot prefix used %d of 300 instances, at most %d on one; want 8 and more, and %d", p.Name(), used, slices.Max(counts), most)
		}
	}
	f(eager(t), 300)
	f(mustNew(t, PrefixHash, Config{HashGuard: 32}), 300)
	f(mustNew(t, PrefixHashBounded, Config{HashLoad: 1.25}), 80)
	f(mustNew(t, PrefixHashBounded, Config{HashThreshold: 16}), 300)
}

// A new instance has its first request at the latest when waiting for the others costs more than the prefill of a whole prompt.
// At three quarters of the fleet's load that is within ten seconds, even though each prompt has a home; in fact within two.
func TestTrap_NewInstanceGetsTraffic(t *testing.T) {
	f := newRig(t, eager(t), 4)
	for i := range 40 {
		f.warm(i%4, part{fmt.Sprint("group", i), 2000})
	}
	dice := rand.New(rand.NewPCG(1, 2))
	send := func(i int) {
		f.send(Request{Output: 200}, part{fmt.Sprint("group", dice.IntN(40)), 2000}, part{fmt.Sprint("tail", i), 600})
		f.pass(time.Duration(dice.ExpFloat64() * float64(11*time.Millisecond))) // 91 per second; an instance can do 30
	}
	for i := range 500 {
		send(i)
	}
	f.join()
	joined := f.now
	for i := 500; f.nodes[4].served == 0 && f.now.Before(joined.Add(10*time.Second)); i++ {
		send(i)
	}
	if took := f.now.Sub(joined); took > 2*time.Second {
		t.Errorf("a new instance had its first request after %s: %v; want 2s at most", took, f.served())
	}
}

// The first prompt that nobody holds goes to the newcomer, for it has done the least work.
func TestTrap_NewInstanceGetsTheFirstColdPrompt(t *testing.T) {
	f := newRig(t, eager(t), 4)
	for i := range 40 {
		f.send(Request{}, part{fmt.Sprint("old", i), 2000})
		f.pass(time.Second)
	}
	f.join()
	if got := f.send(Request{}, part{"cold", 2000}); got != 4 {
		t.Errorf("first cold prompt went to %d; want the new instance 4", got)
	}
}

func TestTrap_NewInstanceMustShowAFirstToken(t *testing.T) {
	f := newRig(t, eager(t), 2)
	f.warm(0)
	f.start(0, &Request{Tokens: 10_000}, []part{{"busy", 10_000}}) // 0.4 s
	first := f.send(Request{}, part{"a", 6000})
	second := f.send(Request{}, part{"b", 6000})
	if first != 1 || second != 0 {
		t.Errorf("two prompts beside a busy instance went to %d and %d; want the new one to get one step's worth, 1 then 0", first, second)
	}
	f.pass(500 * time.Millisecond) // its first token has come
	f.start(1, &Request{Tokens: 6000}, []part{{"c", 6000}})
	if got := f.send(Request{}, part{"d", 6000}); got != 1 {
		t.Errorf("after the first token: %d; want 1", got)
	}
}

func TestTrap_EqualTurnsStayPut(t *testing.T) {
	f := newRig(t, eager(t), 8) // nothing is ever matched: prompts shorter than a block
	homes := make(map[int]int)
	for i := range 40 {
		session := Hash(fmt.Sprint("session", i))
		first := f.send(Request{Session: session, Output: 5}, part{fmt.Sprint("a", i), 20})
		f.pass(time.Second)
		second := f.send(Request{Session: session, Output: 5}, part{fmt.Sprint("b", i), 20})
		f.pass(time.Second)
		if first != second {
			t.Errorf("session %d went to %d, then to %d", i, first, second)
		}
		homes[first]++
	}
	if len(homes) < 7 {
		t.Errorf("40 sessions went to %d of 8 instances", len(homes))
	}
}

func TestTrap_LoneInstanceNeverStalls(t *testing.T) {
	for _, name := range Policies() {
		x := []Candidate{{ID: 7, Name: "lone", NameHash: Hash("lone"), Load: Load{Fresh: true, InFlight: 5000, Queued: 8000}}}
		r := Request{Now: epoch, Tokens: 100, MaxHold: -1, Session: 1}
		if d := mustNew(t, name, Default()).Choose(&r, x); d.Index != 0 || d.Hold {
			t.Errorf("%s: %+v; want the only instance", name, d)
		}
	}
}

func TestTrap_ReplicasAgree(t *testing.T) {
	a, b := newRig(t, mustNew(t, Cost, Default()), 7), mustNew(t, Cost, Default())
	for i := range 400 {
		parts := []part{{fmt.Sprint("group", i%31), 2000}, {fmt.Sprint("tail", i), 300}}
		a.look(parts)
		r := Request{Now: a.now, Tokens: 2300, Output: 100, Home: Hash(parts[0].key), MaxHold: -1}
		mirrored := slices.Clone(a.cs)
		slices.Reverse(mirrored)
		d, e := a.policy.Choose(&r, a.cs), b.Choose(&r, mirrored)
		if got, want := mirrored[e.Index].ID, a.cs[d.Index].ID; got != want {
			t.Fatalf("request %d: one replica chose %d, the other %d", i, want, got)
		}
		a.start(d.Index, &r, parts)
		a.pass(15 * time.Millisecond)
	}
}

// keys maps many prompts that nobody holds to instances of an idle fleet.
func homes(p Policy, cs []Candidate) map[uint64]int {
	at := make(map[uint64]int)
	for i := range 4000 {
		key := Hash(fmt.Sprint("key", i))
		r := Request{Now: epoch, Tokens: 1000, Home: key, Simple: key}
		at[key] = int(cs[p.Choose(&r, cs).Index].ID)
	}
	return at
}

func TestTrap_RemovalMovesOnlyItsOwn(t *testing.T) {
	for _, name := range []string{Cost, PrefixHash, PrefixHashBounded} {
		p := mustNew(t, name, Default())
		f := newRig(t, p, 10)
		before, after := homes(p, f.cs), homes(p, f.cs[:9])
		moved := 0
		for key, id := range before {
			if id == after[key] {
				continue
			}
			moved++
			if id != 9 {
				t.Fatalf("%s: key moved from %d to %d though 9 was removed", name, id, after[key])
			}
		}
		if moved < 300 || moved > 500 {
			t.Errorf("%s: removal of one of ten moved %d of 4000 keys; want about 400", name, moved)
		}
	}
}
