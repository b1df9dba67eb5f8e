package cli

import (
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/config"
	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/route"
)

func newFleet(t *testing.T, pools ...fleet.PoolConfig) *fleet.Fleet {
	t.Helper()
	f, err := fleet.New(fleet.Default(), fleet.Deps{
		Transport: func(fleet.InstanceConfig) (http.RoundTripper, error) { return http.DefaultTransport, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range pools {
		pools[i].Instances = []fleet.InstanceConfig{{URL: "http://a:80"}}
	}
	if err := f.Apply(pools); err != nil {
		t.Fatal(err)
	}
	return f
}

// A policy with state, such as pinned sessions, survives reloads that do not
// concern it.
func TestRulesKeepPolicies(t *testing.T) {
	f := newFleet(t, fleet.PoolConfig{Model: "pinned", Policy: route.Session}, fleet.PoolConfig{Model: "plain"})
	pinned, _ := f.Pool("pinned")
	plain, _ := f.Pool("plain")
	settings := config.Default().Routing
	rs := newRules(slog.New(slog.DiscardHandler), settings, shadows{})
	first, plainFirst := rs.of(pinned).Policy, rs.of(plain).Policy
	if got := first.Name(); got != route.Session {
		t.Errorf("policy = %s; want %s", got, route.Session)
	}
	if got := plainFirst.Name(); got != route.Cost {
		t.Errorf("policy = %s; want the default, %s", got, route.Cost)
	}

	settings.Policy = route.RoundRobin
	rs.set(settings)
	rs.keep(f)
	if rs.of(pinned).Policy != first {
		t.Error("another default replaced the policy of a pool that names its own")
	}
	if got := rs.of(plain).Policy.Name(); got != route.RoundRobin {
		t.Errorf("policy = %s after the default became %s", got, route.RoundRobin)
	}

	settings.SessionTTL = time.Minute
	rs.set(settings)
	if rs.of(pinned).Policy == first {
		t.Error("new settings did not reach the policy")
	}
}

func TestRulesOfHashPolicies(t *testing.T) {
	f := newFleet(t, fleet.PoolConfig{Model: "hashed", Policy: route.PrefixHash}, fleet.PoolConfig{Model: "plain"})
	settings := config.Default().Routing
	settings.HashChars, settings.MaxHold, settings.TTFTObjective = 1024, time.Second, 2*time.Second
	rs := newRules(slog.New(slog.DiscardHandler), settings, shadows{})
	hashed, _ := f.Pool("hashed")
	plain, _ := f.Pool("plain")
	if got := rs.of(hashed).HeadChars; got != 1024 {
		t.Errorf("HeadChars = %d; want 1024", got)
	}
	if got := rs.of(plain).HeadChars; got != 0 {
		t.Errorf("HeadChars of a policy that has no key = %d; want 0", got)
	}
	if got, want := rs.of(plain).MaxHold, 500*time.Millisecond; got != want {
		t.Errorf("MaxHold = %v; want a quarter of the objective, %v", got, want)
	}
}

func TestRulesForgetPools(t *testing.T) {
	f := newFleet(t, fleet.PoolConfig{Model: "old"})
	rs := newRules(slog.New(slog.DiscardHandler), config.Default().Routing, shadows{})
	old, _ := f.Pool("old")
	rs.of(old)
	if err := f.Apply([]fleet.PoolConfig{{Model: "new", Instances: []fleet.InstanceConfig{{URL: "http://a:80"}}}}); err != nil {
		t.Fatal(err)
	}
	rs.keep(f)
	if n := len(rs.byPool); n != 0 {
		t.Errorf("%d rules of pools that are gone are kept", n)
	}
}

func BenchmarkRules(b *testing.B) {
	f, err := fleet.New(fleet.Default(), fleet.Deps{
		Transport: func(fleet.InstanceConfig) (http.RoundTripper, error) { return http.DefaultTransport, nil },
	})
	if err != nil {
		b.Fatal(err)
	}
	if err := f.Apply([]fleet.PoolConfig{{Model: "m", Instances: []fleet.InstanceConfig{{URL: "http://a:80"}}}}); err != nil {
		b.Fatal(err)
	}
	p, _ := f.Pool("m")
	rs := newRules(slog.New(slog.DiscardHandler), config.Default().Routing, shadows{})
	b.ReportAllocs()
	for b.Loop() {
		rs.of(p)
	}
}
