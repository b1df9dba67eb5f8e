package fleet

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/internal/testkit"
	"github.com/warmroute/warmroute/prefix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a fleet on a network of pipes.
type rig struct {
	net   *testkit.Network
	fleet *Fleet

	mu     sync.Mutex // guards below
	events []Event
}

var errNoKey = errors.New("no such secret")

// newRig returns a rig with the default settings as changed.
func newRig(t *testing.T, change func(*Config, *Deps)) *rig {
	t.Helper()
	r := &rig{net: testkit.NewNetwork()}
	tr := &http.Transport{DialContext: r.net.DialContext}
	t.Cleanup(tr.CloseIdleConnections)
	cfg, deps := Default(), Deps{}
	deps.Transport = func(c InstanceConfig) (http.RoundTripper, error) {
		if c.APIKey == "missing" {
			return nil, errNoKey
		}
		base, err := url.Parse(c.URL)
		return below{tr, base, c.APIKey}, err
	}
	deps.Watch = func(e Event) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.events = append(r.events, e)
	}
	if change != nil {
		change(&cfg, &deps)
	}
	f, err := New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	f.pollOnly = true
	r.fleet = f
	return r
}

// below sends to an instance, as upstream does.
type below struct {
	tr   http.RoundTripper
	base *url.URL
	key  Key
}

func (b below) RoundTrip(req *http.Request) (*http.Response, error) {
	out := req.Clone(req.Context())
	out.URL.Scheme, out.URL.Host = b.base.Scheme, b.base.Host
	out.URL.Path = b.base.Path + req.URL.Path
	if b.key != "" {
		out.Header.Set("Authorization", "Bearer "+b.key.Reveal())
	}
	return b.tr.RoundTrip(out)
}

// run runs the fleet until the test ends.
func (r *rig) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.fleet.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v", err)
		}
	})
}

func (r *rig) apply(t *testing.T, pools ...PoolConfig) {
	t.Helper()
	if err := r.fleet.Apply(pools); err != nil {
		t.Fatal(err)
	}
}

// took returns the events since the last call, in short.
func (r *rig) took() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, e := range r.events {
		s := e.Kind.String() + " " + e.Name
		if e.Reason != "" {
			s += " " + e.Reason
		}
		out = append(out, s)
	}
	r.events = nil
	return out
}

// count returns how many of the events that were not taken yet are of a kind.
func (r *rig) count(k EventKind) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, e := range r.events {
		if e.Kind == k {
			n++
		}
	}
	return n
}

func (r *rig) pool(t *testing.T, model string) *Pool {
	t.Helper()
	p, ok := r.fleet.Pool(model)
	if !ok {
		t.Fatalf("no pool for %s", model)
	}
	return p
}

// view returns the state of the named instance; the one in service before one
// that drains.
func (r *rig) view(t *testing.T, name string) View {
	t.Helper()
	var found *View
	for v := range r.fleet.All() {
		if v.Name == name && (found == nil || found.State == "draining") {
			found = &v
		}
	}
	if found == nil {
		t.Fatalf("no instance %s", name)
	}
	return *found
}

// states lists "name state" of all candidates of a pool.
func (r *rig) states(t *testing.T, model string) []string {
	t.Helper()
	var out []string
	for _, c := range r.pool(t, model).Candidates(nil, time.Now()) {
		s := c.Name
		if c.Excluded != route.Eligible {
			s += " " + c.Excluded.String()
		}
		out = append(out, s)
	}
	return out
}

// take acquires a lease on the named instance or fails.
func (r *rig) take(t *testing.T, model, name string) *Lease {
	t.Helper()
	l, ok := r.try(t, model, name)
	if !ok {
		t.Fatalf("no lease on %s: %s", name, r.view(t, name).State)
	}
	return l
}

func (r *rig) try(t *testing.T, model, name string) (*Lease, bool) {
	t.Helper()
	return r.pool(t, model).Acquire(r.id(t, name), Charge{Uncached: 100, Prompt: 400, Output: 50}, time.Now())
}

func (r *rig) id(t *testing.T, name string) prefix.InstanceID {
	t.Helper()
	return r.view(t, name).ID
}

// wait lets fake time pass until everything that was due has happened.
func wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func pool(model string, hosts ...string) PoolConfig {
	p := PoolConfig{Model: model}
	for _, h := range hosts {
		p.Instances = append(p.Instances, InstanceConfig{URL: "http://" + h})
	}
	return p
}

func same(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q; want %q", what, got, want)
	}
}

func sorted(list []string) []string {
	slices.Sort(list)
	return list
}
