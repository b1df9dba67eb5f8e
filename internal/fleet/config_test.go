package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmroute/warmroute/internal/route"
)

// inert is a transport for fleets that send nothing.
func inert(InstanceConfig) (http.RoundTripper, error) { return http.DefaultTransport, nil }

func manyInstances(n int) PoolConfig {
	p := PoolConfig{Model: "m"}
	for i := range n {
		p.Instances = append(p.Instances, InstanceConfig{URL: fmt.Sprintf("http://10.0.0.%d:8000", i)})
	}
	return p
}

// paths returns the field of each fault.
func paths(errs []error) []string {
	var out []string
	for _, err := range errs {
		path, _, _ := strings.Cut(err.Error(), ": ")
		out = append(out, path)
	}
	return out
}

func TestConfigValidate(t *testing.T) {
	f := func(change func(*Config), want ...string) {
		t.Helper()
		c := Default()
		change(&c)
		if diff := cmp.Diff(want, paths(c.Validate())); diff != "" {
			t.Errorf("faults (-want +got):\n%s", diff)
		}
	}
	f(func(*Config) {})
	f(func(c *Config) { c.Health = HealthConfig{}; c.Scrape = ScrapeConfig{} }) // off is no fault
	f(func(c *Config) { c.Health.Timeout, c.Health.Fall, c.Health.Rise = 0, 0, -1 }, "health.timeout", "health.fall", "health.rise")
	f(func(c *Config) { c.Health.Interval, c.Scrape.Interval = -1, -1 }, "health.interval", "scrape.interval")
	f(func(c *Config) { c.Scrape.Timeout, c.Scrape.MaxBytes = 0, 0 }, "scrape.timeout", "scrape.max_bytes")
	f(func(c *Config) { c.Breaker.FailureRatio = math.NaN() }, "breaker.failure_ratio")
	f(func(c *Config) { c.Breaker = BreakerConfig{Consecutive: -1, FailureRatio: 2} },
		"breaker.window", "breaker.open_min", "breaker.min_requests", "breaker.failure_ratio", "breaker.consecutive")
	f(func(c *Config) { c.Breaker.OpenMax = 1; c.CoolDown = -1; c.MaxCoolDown = 0; c.DrainGrace = -1 },
		"breaker.open_max", "cool_down", "max_cool_down", "drain_grace")
	if _, err := New(Config{}, Deps{Transport: inert}); err == nil {
		t.Error("New took the zero Config")
	}
	if _, err := New(Default(), Deps{}); err == nil {
		t.Error("New took no transport")
	}
}

func TestValidatePools(t *testing.T) {
	f := func(want []string, pools ...PoolConfig) {
		t.Helper()
		if diff := cmp.Diff(want, paths(ValidatePools(pools))); diff != "" {
			t.Errorf("faults (-want +got):\n%s", diff)
		}
	}
	one := []InstanceConfig{{URL: "http://a:1"}}
	f(nil)
	f(nil, pool("m", "a:1", "b:1"), pool("n", "a:1"))
	f(nil, PoolConfig{Instances: one})
	f(nil, PoolConfig{Model: "m", File: "x.json"}, PoolConfig{Model: "n", DNS: []DNSConfig{{Name: "_http._tcp.x"}, {Name: "x", Port: 80}}})
	f([]string{"pools[0]"}, PoolConfig{Model: "m"})
	f([]string{"pools[0].aliases", "pools[0].upstream_model"}, PoolConfig{Aliases: []string{"a"}, UpstreamModel: "u", Instances: one})
	f([]string{"pools[1].model", "pools[1].aliases[1]"},
		PoolConfig{Model: "m", Aliases: []string{"a"}, Instances: one}, PoolConfig{Model: "m", Aliases: []string{"b", "a"}, Instances: one})
	f([]string{"pools[0].aliases[0]"}, PoolConfig{Model: "m", Aliases: []string{""}, Instances: one})
	f([]string{"pools[0].policy"}, PoolConfig{Model: "m", Policy: "best", Instances: one})
	f([]string{"pools[0].instances[0].url", "pools[0].instances[1].url", "pools[0].instances[2].url", "pools[0].instances[3].url"},
		PoolConfig{Model: "m", Instances: []InstanceConfig{{}, {URL: "a:1"}, {URL: "http://u:p@a"}, {URL: "http://:1"}}})
	f([]string{
		"pools[0].instances[0].engine", "pools[0].instances[0].profile", "pools[0].instances[0].models", "pools[0].instances[0].kv_tokens",
		"pools[0].instances[0].weight", "pools[0].instances[0].max_inflight", "pools[0].instances[0].api_key",
		"pools[0].instances[0].key_header", "pools[0].instances[0].health_path", "pools[0].instances[0].rank",
	}, PoolConfig{Model: "m", Instances: []InstanceConfig{{
		URL: "http://a", Engine: "gpt", Profile: "fast", Models: []string{"x"}, KVTokens: -1, Weight: -1, MaxInflight: -1,
		APIKey: "a\nb", KeyHeader: "a b", HealthPath: "health", Rank: new(-1),
	}}})
	f([]string{"pools[0].instances[0].model"}, PoolConfig{Instances: []InstanceConfig{{URL: "http://a", Model: "x"}}})
	f([]string{"pools[0].defaults.engine"}, PoolConfig{Model: "m", Instances: one, Defaults: InstanceConfig{Engine: "gpt"}})
	f([]string{"pools[0].dns[0].name", "pools[0].dns[0].type", "pools[0].dns[0].port", "pools[0].dns[0].scheme", "pools[0].dns[0].refresh", "pools[0].dns[1].port"},
		PoolConfig{Model: "m", DNS: []DNSConfig{{Type: "mx", Scheme: "ftp", Refresh: -1}, {Name: "_a._tcp.b", Port: 5}}})
	// One name, two instances; and one instance described in two ways.
	f([]string{"pools[0].instances[1].name", "pools[1].instances[0]"},
		PoolConfig{Model: "m", Instances: []InstanceConfig{{Name: "x", URL: "http://a"}, {Name: "x", URL: "http://b"}, {URL: "http://c"}}},
		PoolConfig{Model: "n", Instances: []InstanceConfig{{URL: "http://C/v1/", MaxInflight: 3}}})
	// Ranks of one address are instances of their own.
	f(nil, PoolConfig{Model: "m", Instances: []InstanceConfig{{URL: "http://a", Rank: new(0)}, {URL: "http://a", Rank: new(1)}}})
}

// Faults of a URL or key do not repeat it: it may hold a password.
func TestFaultsDoNotTell(t *testing.T) {
	p := PoolConfig{Model: "m", Instances: []InstanceConfig{
		{URL: "http://user:sesame@a:1", APIKey: "sesame\n"}, {URL: "http://user:sesame@a:port"},
	}}
	if err := errors.Join(ValidatePools([]PoolConfig{p})...); err == nil || strings.Contains(err.Error(), "sesame") {
		t.Errorf("got %v", err)
	}
}

func TestNames(t *testing.T) {
	f := func(c InstanceConfig, want string) {
		t.Helper()
		got, err := c.normal()
		if err != nil || got.Name != want {
			t.Errorf("%+v: %q, %v; want %q", c, got.Name, err, want)
		}
	}
	f(InstanceConfig{URL: "http://A.example:8000/v1/"}, "a.example:8000")
	f(InstanceConfig{URL: "https://a/openai/v1"}, "a/openai")
	f(InstanceConfig{URL: " http://a:1 ", Rank: new(3)}, "a:1#3")
	f(InstanceConfig{URL: "http://a:1", Name: "gpu"}, "gpu")
	f(InstanceConfig{URL: "http://[2001:DB8::1]:8000"}, "[2001:db8::1]:8000")
}

func TestKeyDoesNotPrint(t *testing.T) {
	const key = Key("k-4f9a7c21d0e84b6f")
	c := InstanceConfig{URL: "http://a", APIKey: key}
	in := newInstance(0, c, nil, route.Speed{}, new(Default()))
	for _, v := range []any{key, c, &c, []InstanceConfig{c}, PoolConfig{Defaults: c}, in, struct{ i *Instance }{in}, in.View(epoch0)} {
		var out bytes.Buffer
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
			fmt.Fprintf(&out, verb, v)
		}
		b, _ := json.Marshal(v)
		out.Write(b)
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", slog.Any("v", v))
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", slog.Any("v", v))
		if strings.Contains(out.String(), key.Reveal()) || strings.Contains(out.String(), fmt.Sprintf("%x", key.Reveal())) {
			t.Errorf("%T tells the key: %s", v, out.String())
		}
	}
	if key.String() != redacted || Key("").String() != "" {
		t.Error("String is wrong")
	}
}
