package fleet

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmroute/warmroute/internal/testkit"
	"github.com/warmroute/warmroute/prefix"
)

// A reload drops nothing of what stays: ledger, breaker, counters and ID.
func TestApplyKeepsWhatStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := still(t, nil, pool("m", "a:1", "b:1", "c:1"))
		r.end(t, "b:1", Served, Served, ClientFault)
		r.end(t, "c:1", repeat(TransientFault, 5)...)
		l := r.take(t, "m", "b:1")
		before := r.view(t, "b:1")
		poolBefore := r.pool(t, "m")

		p := pool("m", "c:1", "b:1", "d:1")
		p.Instances[1].MaxInflight = 1
		p.Aliases = []string{"alias"}
		r.apply(t, p)

		after := r.view(t, "b:1")
		if after.ID != before.ID || after.Load.Queued != before.Load.Queued || !cmp.Equal(after.Results, before.Results) || after.InFlight != 1 {
			t.Errorf("b changed:\n%+v\n%+v", before, after)
		}
		same(t, "states", r.states(t, "m"), "b:1 full", "c:1 open", "d:1")
		if r.pool(t, "m") != poolBefore || r.pool(t, "alias") != poolBefore {
			t.Error("the pool is another one")
		}
		l.Release(time.Now(), Outcome{Result: Served})
		same(t, "released", r.states(t, "m"), "b:1", "c:1 open", "d:1")
	})
}

func TestApplyIsAllOrNothing(t *testing.T) {
	r := still(t, nil, pool("m", "a:1"))
	bad := pool("n", "b:1", "c:1")
	bad.Instances[0].APIKey, bad.Instances[1].APIKey = "missing", "missing"
	err := r.fleet.Apply([]PoolConfig{bad})
	if !errors.Is(err, errNoKey) || strings.Count(err.Error(), errNoKey.Error()) != 2 {
		t.Errorf("err = %v; want both faults", err)
	}
	if err := r.fleet.Apply([]PoolConfig{{Model: "n"}}); err == nil {
		t.Error("a pool without instances was taken")
	}
	same(t, "unchanged", r.states(t, "m"), "a:1")
	same(t, "events", r.took(), "joined a:1")
}

// A removed instance takes no new leases, finishes what it has, and leaves then.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := still(t, nil, pool("m", "a:1", "b:1"))
		r.run(t)
		one, two := r.take(t, "m", "a:1"), r.take(t, "m", "a:1")
		old := r.pool(t, "m")
		id := one.Instance().ID()
		r.took()
		r.apply(t, pool("m", "b:1"))
		wait(time.Minute)
		same(t, "candidates", r.states(t, "m"), "b:1")
		if _, ok := old.Acquire(id, Charge{}, time.Now()); ok {
			t.Error("a lease on a draining instance")
		}
		if got := r.view(t, "a:1").State; got != "draining" {
			t.Errorf("state = %s", got)
		}
		two.Token(time.Now(), 1)
		one.Release(time.Now(), Outcome{Result: Served})
		wait(time.Second)
		same(t, "a lease is out", r.took())
		two.Release(time.Now(), Outcome{Result: Served})
		wait(0)
		same(t, "events", r.took(), "left a:1")
		select {
		case <-two.Instance().Gone():
		default:
			t.Error("Gone is not closed")
		}
		if n := len(r.fleet.leaving); n != 0 {
			t.Errorf("%d instances are kept", n)
		}
	})
}

// The grace ends the wait, but an ID is taken until the last lease is back:
// its owner still uses it.
func TestDrainGraceAndIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := still(t, nil, pool("m", "a:1", "b:1"))
		r.run(t)
		l := r.take(t, "m", "a:1")
		r.apply(t, pool("m", "b:1"))
		wait(Default().DrainGrace - time.Second)
		r.took()
		select {
		case <-l.Instance().Gone():
			t.Error("gone before the grace is over")
		default:
		}
		wait(time.Second)
		same(t, "grace over", r.took(), "left a:1")
		<-l.Instance().Gone()
		r.apply(t, pool("m", "b:1", "c:1"))
		if id := r.id(t, "c:1"); id != 2 {
			t.Errorf("c:1 has ID %d while a lease of 0 is out; want 2", id)
		}
		l.Release(time.Now(), Outcome{Result: Served})
		wait(0)
		r.apply(t, pool("m", "b:1", "c:1", "d:1"))
		if id := r.id(t, "d:1"); id != 0 {
			t.Errorf("d:1 has ID %d; want the free 0", id)
		}
	})
}

// An instance that comes back while its old self drains is another one.
func TestReturnWhileDraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := still(t, nil, pool("m", "a:1", "b:1"))
		r.run(t)
		l := r.take(t, "m", "a:1")
		r.apply(t, pool("m", "b:1"))
		r.apply(t, pool("m", "a:1", "b:1"))
		wait(0)
		if got := r.pool(t, "m").Candidates(nil, time.Now()); got[1].Name != "a:1" || got[1].ID != prefix.InstanceID(2) || got[1].Load.InFlight != 0 {
			t.Errorf("candidate = %+v", got[1])
		}
		l.Release(time.Now(), Outcome{Result: Served})
		wait(0)
		same(t, "events", r.took(), "joined a:1", "joined b:1", "joined a:1", "left a:1")
	})
}

// One instance in two pools has one ledger and one ID.
func TestSharedInstance(t *testing.T) {
	a, b := pool("m", "x:1", "y:1"), pool("n", "x:1")
	b.UpstreamModel = "org/n"
	b.Instances[0].MaxInflight, a.Instances[0].MaxInflight = 2, 2
	r := still(t, nil, a, b)
	one, two := r.take(t, "m", "x:1"), r.take(t, "n", "x:1")
	if one.Model() != "m" || two.Model() != "org/n" || one.Instance() != two.Instance() {
		t.Errorf("models %s, %s", one.Model(), two.Model())
	}
	same(t, "m", r.states(t, "m"), "x:1 full", "y:1")
	if got := r.pool(t, "n").Candidates(nil, time.Now())[0].Load.InFlight; got != 2 {
		t.Errorf("in flight = %d", got)
	}
	r.apply(t, a)
	if _, ok := r.fleet.Pool("n"); ok {
		t.Error("pool n is still there")
	}
	if got := r.view(t, "x:1"); got.State != "full" {
		t.Errorf("x:1 is %s; a pool less must not drain it", got.State)
	}
	one.Release(time.Now(), Outcome{Result: Served})
	two.Release(time.Now(), Outcome{Result: Served})
}

func TestNamesOfModels(t *testing.T) {
	p := pool("m", "x:1", "y:1")
	p.UpstreamModel, p.Instances[1].Model, p.Policy = "org/m", "m-q4", "round_robin"
	r := still(t, nil, p)
	if got := r.take(t, "m", "x:1").Model(); got != "org/m" {
		t.Error(got)
	}
	if got := r.take(t, "m", "y:1").Model(); got != "m-q4" {
		t.Error(got)
	}
	if got := r.pool(t, "m").Policy(); got != "round_robin" {
		t.Error(got)
	}
}

const adapters = `{"data":[
	{"id":"llama","owned_by":"vllm","max_model_len":8192,"parent":null},
	{"id":"sql","owned_by":"vllm","parent":"llama","root":"/lora/sql"},
	{"id":"llama","owned_by":"vllm"},{"id":""}]}`

// Without a model in the configuration, the instances say what they serve.
func TestModelDiscovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, noScrapes)
		a, b := testkit.NewEngine(), testkit.NewEngine()
		a.SetModels(adapters)
		b.SetModels(`{"data":[{"id":"llama"},{"id":"named"}]}`)
		r.net.Serve(t, "a:1", a)
		r.net.Serve(t, "b:1", b)
		r.apply(t, pool("", "a:1", "b:1"), pool("named", "a:1"))
		r.run(t)
		if r.fleet.Ready() || !r.fleet.Discovering() {
			t.Error("ready without anybody asked")
		}
		wait(time.Second)
		if r.fleet.Discovering() {
			t.Error("still discovering after somebody answered")
		}
		want := []Model{
			{Name: "llama", MaxTokens: 8192, Instances: 2, Ready: 2},
			{Name: "named", Instances: 1, Ready: 1},
			{Name: "sql", Base: "llama", Instances: 1, Ready: 1},
		}
		if diff := cmp.Diff(want, r.fleet.Models()); diff != "" {
			t.Errorf("models (-want +got):\n%s", diff)
		}
		if got := r.view(t, "a:1").Engine; got != VLLM {
			t.Errorf("engine = %s; /v1/models gives it away", got)
		}
		// An adapter comes and another goes; a failed look changes nothing.
		a.SetModels(`{"data":[{"id":"llama"},{"id":"poems","parent":"llama"}]}`)
		b.SetModels(`{`)
		wait(time.Minute)
		var names []string
		for p := range r.fleet.Pools() {
			names = append(names, p.Name())
		}
		same(t, "models", names, "llama", "named", "poems")
		if n := r.pool(t, "llama").Size(); n != 2 {
			t.Errorf("llama has %d instances", n)
		}
	})
}

func TestAdaptersOfANamedPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, noScrapes)
		a := testkit.NewEngine()
		a.SetModels(adapters)
		r.net.Serve(t, "a:1", a)
		p := pool("chat", "a:1")
		p.UpstreamModel, p.Adapters, p.Policy = "llama", true, "random"
		q := pool("plain", "a:1")
		q.UpstreamModel = "llama"
		r.apply(t, p, q)
		r.run(t)
		wait(time.Second)
		sql := r.pool(t, "sql")
		if sql.Base() != "chat" || sql.Policy() != "random" {
			t.Errorf("base %s, policy %s", sql.Base(), sql.Policy())
		}
		if l := r.take(t, "sql", "a:1"); l.Model() != "sql" {
			t.Errorf("model = %s", l.Model())
		}
		if n := len(r.fleet.Models()); n != 3 {
			t.Errorf("%d models", n)
		}
	})
}

func TestModelsByConfiguration(t *testing.T) {
	p := pool("", "a:1", "b:1")
	p.Defaults.Models = []string{"x"}
	p.Instances[1].Models = []string{"x", "y"}
	r := still(t, nil, p)
	if r.fleet.Discovering() {
		t.Error("discovering what the configuration tells")
	}
	if x, y := r.pool(t, "x").Size(), r.pool(t, "y").Size(); x != 2 || y != 1 {
		t.Errorf("sizes %d, %d", x, y)
	}
}

// A request may hold a pool whose model is gone: nobody is there to give.
func TestPoolOfAGoneModel(t *testing.T) {
	r := still(t, nil, pool("m", "a:1"), pool("n", "a:1"))
	gone := r.pool(t, "m")
	r.apply(t, pool("n", "a:1"))
	if cs := gone.Candidates(nil, time.Now()); len(cs) != 0 {
		t.Errorf("candidates = %+v", cs)
	}
	if got := gone.Outage(time.Now()); got.Kind != Starting || got.RetryAfter <= 0 {
		t.Errorf("outage = %+v", got)
	}
}

// Settings that a reload changes reach an instance that stays.
func TestAdjust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := still(t, nil, pool("m", "a:1"))
		p := pool("m", "a:1")
		p.Instances[0].KVTokens, p.Instances[0].Weight, p.Instances[0].Engine, p.Instances[0].APIKey = 777, 2, SGLang, "new"
		r.took()
		r.apply(t, p)
		same(t, "events", r.took(), "capacity a:1")
		c := r.pool(t, "m").Candidates(nil, time.Now())[0]
		if c.Weight != 2 || c.Speed.KVTokens != 777 {
			t.Errorf("candidate = %+v", c)
		}
		in := r.take(t, "m", "a:1").Instance()
		if in.Engine() != SGLang || in.Config().APIKey.Reveal() != "new" {
			t.Errorf("config = %+v", in.Config())
		}
		// Another profile is another machine.
		p.Instances[0].Profile = "llama-3.1-8b-1xh100"
		r.apply(t, p)
		same(t, "events", r.took(), "joined a:1")
	})
}

// Thousand reloads with changing instances leave IDs dense.
func TestIDsStayDense(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := still(t, nil, pool("m", "a:1", "b:1", "c:1"))
		r.run(t)
		for i := range 200 {
			r.apply(t, pool("m", "a:1", "b:1", "c:1", "d:1")) // d joins
			l := r.take(t, "m", "d:1")
			if l.Instance().ID() != 3 {
				t.Fatalf("round %d: ID %d", i, l.Instance().ID())
			}
			r.apply(t, pool("m", "a:1", "b:1", "c:1"))
			l.Release(time.Now(), Outcome{Result: Served})
			wait(0)
		}
		if n := len(r.fleet.slots); n != 4 {
			t.Errorf("%d slots", n)
		}
	})
}

// An instance that is written down twice is one candidate.
func TestCandidatesAreUnique(t *testing.T) {
	p := pool("m", "a:1", "A:1/v1", "b:1", "b:1/")
	r := still(t, nil, p)
	same(t, "states", r.states(t, "m"), "a:1", "b:1")
	if n := r.count(Joined); n != 2 {
		t.Errorf("%d joined", n)
	}
}

// What happens to one instance changes nothing about the others.
func TestSickInstanceChangesNothingForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := still(t, nil, pool("m", "a:1", "b:1", "c:1"))
		r.take(t, "m", "b:1")
		now := time.Now()
		before := r.pool(t, "m").Candidates(nil, now)
		r.end(t, "a:1", repeat(TransientFault, 5)...)
		after := r.pool(t, "m").Candidates(nil, now)
		if diff := cmp.Diff(before[1:], after[1:]); diff != "" {
			t.Errorf("others (-before +after):\n%s", diff)
		}
	})
}

// Nobody asks a removed instance anything any more.
func TestRemovedInstanceIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		s := &pathServer{know: map[string]int{"/health": 200}}
		r.net.Serve(t, "a:1", s)
		r.apply(t, pool("m", "a:1", "b:1"))
		r.run(t)
		wait(time.Minute)
		l := r.take(t, "m", "a:1")
		r.apply(t, pool("m", "b:1"))
		wait(time.Second)
		s.mu.Lock()
		asked := len(s.seen)
		s.mu.Unlock()
		wait(time.Minute)
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := len(s.seen) - asked; asked == 0 || n != 0 {
			t.Errorf("%d questions before the removal, %d after it: %q", asked, n, s.seen[asked:])
		}
		l.Release(time.Now(), Outcome{Result: Served})
	})
}
