package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseFile(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		list, err := ParseFile([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		var got []string
		for _, c := range list {
			got = append(got, strings.TrimSpace(c.Name+" "+c.URL))
		}
		same(t, text, got, want...)
	}
	f(`[]`)
	f(`[{"url":"http://a:1"},{"url":"http://b:1","name":"b","weight":2,"rank":1,"engine":"vllm","kv_tokens":5,"models":["x"]}]`, "http://a:1", "b http://b:1")

	g := func(text, wantPart string) {
		t.Helper()
		_, err := ParseFile([]byte(text))
		if err == nil || !strings.Contains(err.Error(), wantPart) {
			t.Errorf("%s: %v; want %q", text, err, wantPart)
		}
	}
	g(``, "EOF")
	g(`{"url":"http://a"}`, "cannot unmarshal object")
	g(`[{"uri":"http://a"}]`, `unknown field "uri"`)
	g(`[{"url":"http://a","api_key":"k"}]`, `unknown field "api_key"`)
	g(`[{"url":"http://a"}] x`, "text after the list")
	g(`[{"url":"http://a"}][]`, "text after the list")
	g(`[{"url":"http://a"},{"name":"b"}]`, "[1].url: ")
	g(`[{"url":"http://a","engine":"e","weight":-1}]`, "[0].weight: ")
}

func FuzzParseFile(f *testing.F) {
	f.Add(`[{"url":"http://a:1","name":"b","weight":2,"rank":1}]`)
	f.Add(`[{"url":"http://[::1]:1/v1"}]`)
	f.Fuzz(func(t *testing.T, text string) {
		list, err := ParseFile([]byte(text))
		if err != nil {
			return
		}
		for _, c := range list {
			n, err := c.normal()
			if err != nil {
				t.Fatalf("accepted %+v, but %v", c, err)
			}
			if again, err := n.normal(); err != nil || again.key() != n.key() {
				t.Errorf("%+v is not in its one form: %+v, %v", n, again, err)
			}
		}
	})
}

func write(t *testing.T, path, text string) {
	t.Helper()
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, path); err != nil {
		t.Fatal(err)
	}
}

// members lists the instances of a pool.
func (r *rig) members(model string) []string {
	p, ok := r.fleet.Pool(model)
	if !ok {
		return nil
	}
	var names []string
	for _, m := range *p.members.Load() {
		names = append(names, m.in.name)
	}
	slices.Sort(names)
	return names
}

func (r *rig) sourceError() string {
	for s := range r.fleet.Sources() {
		return s.Error
	}
	return "no source"
}

func TestFileByPolling(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fleet.json")
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, noProbes)
		p := pool("m", "s:1")
		p.File, p.Defaults.MaxInflight = path, 7
		r.apply(t, p)
		r.run(t)
		wait(time.Second)
		same(t, "no file yet", r.members("m"), "s:1")
		if got := r.sourceError(); !strings.Contains(got, "no such file") {
			t.Errorf("error = %q", got)
		}
		write(t, path, `[{"url":"http://a:1"},{"url":"http://b:1"}]`)
		wait(12 * time.Second)
		same(t, "read", r.members("m"), "a:1", "b:1", "s:1")
		if got := r.view(t, "a:1").Limit; got != 7 {
			t.Errorf("limit = %d; want the pool's default", got)
		}
		l := r.take(t, "m", "a:1")
		for _, broken := range []string{`[{"url":"http://c:1"`, `[{"uri":"http://c:1"}]`, `[]`} {
			write(t, path, broken)
			wait(12 * time.Second)
			same(t, "the last good view stands", r.members("m"), "a:1", "b:1", "s:1")
			if r.sourceError() == "" {
				t.Errorf("no error for %s", broken)
			}
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		wait(12 * time.Second)
		same(t, "and without a file", r.members("m"), "a:1", "b:1", "s:1")
		r.took()
		write(t, path, `[{"url":"http://b:1"},{"url":"http://c:1","name":"s:1"},{"url":"http://d:1"}]`)
		wait(12 * time.Second)
		same(t, "a goes, d comes, the thief of a name is refused", r.members("m"), "b:1", "d:1", "s:1")
		same(t, "events", r.took(), "joined d:1")
		l.Release(time.Now(), Outcome{Result: Served})
		wait(0)
		same(t, "events", r.took(), "left a:1")
		// A reload that keeps the file keeps what it has brought.
		p.Policy = "random"
		r.apply(t, p)
		same(t, "reload", r.members("m"), "b:1", "d:1", "s:1")
		same(t, "events", r.took())
		r.apply(t, pool("m", "s:1"))
		same(t, "without the file", r.members("m"), "s:1")
	})
}

// With the system's notices a change arrives long before the next poll. Real
// files and real time, so this one is outside a bubble.
func TestFileByNotice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fleet.json")
	write(t, path, `[{"url":"http://a:1"}]`)
	changes := make(chan struct{}, 16)
	r := newRig(t, func(c *Config, d *Deps) {
		noProbes(c, d)
		record := d.Watch
		d.Watch = func(e Event) { record(e); changes <- struct{}{} }
	})
	r.fleet.pollOnly = false
	r.apply(t, PoolConfig{Model: "m", File: path})
	r.run(t)
	next := func() {
		t.Helper()
		select {
		case <-changes:
		case <-time.After(filePoll / 2):
			t.Fatal("no notice")
		}
	}
	next() // a joins
	write(t, path, `[{"url":"http://a:1"},{"url":"http://b:1"}]`)
	next() // b joins
	same(t, "members", r.took(), "joined a:1", "joined b:1")
}

// Kubernetes swaps a link beside the file and never touches the file itself.
func TestFileBehindLinks(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"v1": `[{"url":"http://a:1"}]`, "v2": `[{"url":"http://b:1"}]`} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name, "fleet.json"), text)
	}
	link := func(old, name string) {
		t.Helper()
		tmp := filepath.Join(dir, "tmp")
		if err := errors.Join(os.Symlink(old, tmp), os.Rename(tmp, filepath.Join(dir, name))); err != nil {
			t.Fatal(err)
		}
	}
	link("v1", "..data")
	link(filepath.Join("..data", "fleet.json"), "fleet.json")
	changes := make(chan Event, 16)
	r := newRig(t, func(c *Config, d *Deps) {
		noProbes(c, d)
		d.Watch = func(e Event) { changes <- e }
	})
	r.fleet.pollOnly = false
	r.apply(t, PoolConfig{Model: "m", File: filepath.Join(dir, "fleet.json")})
	r.run(t)
	for _, want := range []string{"a:1", "b:1"} {
		select {
		case e := <-changes:
			if e.Kind != Joined || e.Name != want {
				t.Errorf("event = %+v; want %s", e, want)
			}
		case <-time.After(filePoll / 2):
			t.Fatal("no notice of the swap")
		}
		link("v2", "..data")
	}
}

// names is a Resolver by table.
type names struct {
	mu    sync.Mutex
	addrs map[string][]string // "ip4 host" -> addresses
	srv   map[string][]*net.SRV
	fail  error
	asked int
	lag   time.Duration
}

func (n *names) set(change func(*names)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(n)
}

func (n *names) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked++
	if n.lag > 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if n.fail != nil {
		return nil, n.fail
	}
	var out []netip.Addr
	for _, a := range n.addrs[network+" "+host] {
		out = append(out, netip.MustParseAddr(a))
	}
	if len(out) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return out, nil
}

func (n *names) LookupSRV(_ context.Context, service, proto, name string) (string, []*net.SRV, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked++
	if service != "" || proto != "" {
		return "", nil, errors.New("want the whole name")
	}
	return name, n.srv[name], n.fail
}

func TestLookup(t *testing.T) {
	n := &names{
		addrs: map[string][]string{
			"ip4 four": {"10.0.0.2", "10.0.0.1", "10.0.0.2"},
			"ip4 both": {"10.0.0.9"}, "ip6 both": {"2001:db8::9"},
			"ip6 six": {"2001:db8::1"},
		},
		srv: map[string][]*net.SRV{"_http._tcp.x": {
			{Target: "b.x.", Port: 8001, Priority: 1}, {Target: "a.x.", Port: 8000, Priority: 1},
			{Target: "backup.x.", Port: 8000, Priority: 2}, {Target: "none.x.", Port: 0, Priority: 1},
		}},
	}
	r := newRig(t, func(_ *Config, d *Deps) { d.Resolver = n })
	f := func(d DNSConfig, want ...string) {
		t.Helper()
		list, err := r.fleet.lookup(t.Context(), d)
		if (err != nil) != (want == nil) {
			t.Errorf("%+v: %v", d, err)
		}
		var got []string
		for _, c := range list {
			got = append(got, c.URL)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", d, diff)
		}
	}
	f(DNSConfig{Name: "four", Port: 8000}, "http://10.0.0.1:8000", "http://10.0.0.2:8000")
	f(DNSConfig{Name: "both", Port: 1}, "http://10.0.0.9:1") // two addresses, one cache
	f(DNSConfig{Name: "six", Port: 1, Scheme: "https"}, "https://[2001:db8::1]:1")
	f(DNSConfig{Name: "_http._tcp.x"}, "http://a.x:8000", "http://b.x:8001")
	f(DNSConfig{Name: "nobody", Port: 1})
	f(DNSConfig{Name: "_http._tcp.nobody"})
	n.fail = errors.New("server misbehaving")
	f(DNSConfig{Name: "four", Port: 8000})
	f(DNSConfig{Name: "_http._tcp.x"})
}

func TestDNSRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &names{addrs: map[string][]string{"ip4 pods": {"10.0.0.1", "10.0.0.2"}}}
		r := newRig(t, func(c *Config, d *Deps) { noProbes(c, d); d.Resolver = n })
		r.apply(t, PoolConfig{Model: "m", DNS: []DNSConfig{{Name: "pods", Port: 80, Refresh: 20 * time.Second}}})
		r.run(t)
		wait(0)
		same(t, "at once", r.members("m"), "10.0.0.1:80", "10.0.0.2:80")
		n.set(func(n *names) { n.addrs["ip4 pods"] = []string{"10.0.0.2", "10.0.0.3"} })
		wait(17 * time.Second)
		same(t, "not yet", r.members("m"), "10.0.0.1:80", "10.0.0.2:80")
		wait(6 * time.Second)
		same(t, "refreshed", r.members("m"), "10.0.0.2:80", "10.0.0.3:80")

		for _, fail := range []error{errors.New("server misbehaving"), &net.DNSError{IsNotFound: true}, &net.DNSError{IsTimeout: true}} {
			n.set(func(n *names) { n.fail = fail })
			wait(5 * time.Minute)
			same(t, "the last good view stands", r.members("m"), "10.0.0.2:80", "10.0.0.3:80")
		}
		if !strings.Contains(r.sourceError(), "look up pods") {
			t.Errorf("error = %q", r.sourceError())
		}
		n.set(func(n *names) { n.fail = nil; n.addrs["ip4 pods"] = []string{"10.0.0.4"} })
		wait(23 * time.Second)
		same(t, "recovered", r.members("m"), "10.0.0.4:80")
		n.set(func(n *names) { n.lag = time.Hour })
		wait(10 * time.Minute)
		same(t, "a resolver that hangs", r.members("m"), "10.0.0.4:80")
		if !strings.Contains(r.sourceError(), "deadline") {
			t.Errorf("error = %q", r.sourceError())
		}
	})
}

// Replicas that start together do not ask together for ever.
func TestDNSJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &names{addrs: map[string][]string{"ip4 pods": {"10.0.0.1"}}}
		r := newRig(t, func(c *Config, d *Deps) { noProbes(c, d); d.Resolver = n })
		r.apply(t, PoolConfig{Model: "m", DNS: []DNSConfig{{Name: "pods", Port: 80}}})
		r.run(t)
		gaps := make(map[string]bool)
		last, asked := time.Now(), 1
		wait(0)
		for range 4000 {
			wait(50 * time.Millisecond)
			n.mu.Lock()
			if n.asked != asked {
				gap := time.Since(last)
				if gap < 8900*time.Millisecond || gap > 11100*time.Millisecond {
					t.Errorf("gap of %v", gap)
				}
				gaps[fmt.Sprint(gap)], last, asked = true, time.Now(), n.asked
			}
			n.mu.Unlock()
		}
		if len(gaps) < 5 {
			t.Errorf("gaps = %v; want them spread", gaps)
		}
	})
}

// A failed look is repeated sooner: a gateway that starts before its DNS server
// should not wait for a whole refresh.
func TestDNSRetriesSooner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &names{fail: errors.New("server misbehaving")}
		r := newRig(t, func(c *Config, d *Deps) { noProbes(c, d); d.Resolver = n })
		r.apply(t, PoolConfig{Model: "m", DNS: []DNSConfig{{Name: "pods", Port: 80, Refresh: time.Minute}}})
		r.run(t)
		wait(500 * time.Millisecond)
		n.set(func(n *names) { n.fail = nil; n.addrs = map[string][]string{"ip4 pods": {"10.0.0.1"}} })
		wait(time.Second)
		same(t, "members", r.members("m"), "10.0.0.1:80")
	})
}

// A transport that cannot be made for what a source has found leaves that
// instance out, and is asked again.
func TestSourceWithBadCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &names{addrs: map[string][]string{"ip4 pods": {"10.0.0.1"}}}
		r := newRig(t, func(c *Config, d *Deps) { noProbes(c, d); d.Resolver = n })
		p := PoolConfig{Model: "m", DNS: []DNSConfig{{Name: "pods", Port: 80}}, Defaults: InstanceConfig{APIKey: "missing"}}
		r.apply(t, p)
		r.run(t)
		wait(30 * time.Second)
		same(t, "members", r.members("m"))
		if _, ok := r.fleet.Pool("m"); !ok {
			t.Error("a pool of the configuration is missing: its clients would see 404")
		}
		p.Defaults.APIKey = "there"
		r.apply(t, p)
		wait(30 * time.Second)
		same(t, "members", r.members("m"), "10.0.0.1:80")
	})
}
