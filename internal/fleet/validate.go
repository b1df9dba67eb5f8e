package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/warmroute/warmroute/internal/route"
)

// faults collects what is wrong, each with the path of its field.
type faults struct{ errs []error }

func (fs *faults) add(path, format string, args ...any) {
	fs.errs = append(fs.errs, fmt.Errorf("%s: %s", path, fmt.Sprintf(format, args...)))
}

func (fs *faults) positive(path string, d time.Duration) {
	if d <= 0 {
		fs.add(path, "%v; want more than 0", d)
	}
}

func (fs *faults) notNegative(path string, d time.Duration) {
	if d < 0 {
		fs.add(path, "%v is negative", d)
	}
}

// Validate reports all faults of c, each beginning with the path of its
// field below this section.
func (c Config) Validate() []error {
	var fs faults
	fs.notNegative("health.interval", c.Health.Interval)
	if c.Health.Interval > 0 {
		fs.positive("health.timeout", c.Health.Timeout)
		fs.positive("health.models_interval", c.Health.ModelsInterval)
		if c.Health.Fall < 1 {
			fs.add("health.fall", "%d; want 1 or more", c.Health.Fall)
		}
		if c.Health.Rise < 1 {
			fs.add("health.rise", "%d; want 1 or more", c.Health.Rise)
		}
	}
	fs.notNegative("scrape.interval", c.Scrape.Interval)
	if c.Scrape.Interval > 0 {
		fs.positive("scrape.timeout", c.Scrape.Timeout)
		if c.Scrape.MaxBytes <= 0 {
			fs.add("scrape.max_bytes", "%d; want more than 0", c.Scrape.MaxBytes)
		}
	}
	b := c.Breaker
	fs.positive("breaker.window", b.Window)
	fs.positive("breaker.open_min", b.OpenMin)
	if b.MinRequests < 1 {
		fs.add("breaker.min_requests", "%d; want 1 or more", b.MinRequests)
	}
	if !(b.FailureRatio >= 0 && b.FailureRatio <= 1) {
		fs.add("breaker.failure_ratio", "%g; want 0 to 1", b.FailureRatio)
	}
	if b.Consecutive < 0 {
		fs.add("breaker.consecutive", "%d is negative", b.Consecutive)
	}
	if b.OpenMax < b.OpenMin {
		fs.add("breaker.open_max", "%v is less than open_min, %v", b.OpenMax, b.OpenMin)
	}
	fs.notNegative("cool_down", c.CoolDown)
	fs.positive("max_cool_down", c.MaxCoolDown)
	fs.notNegative("drain_grace", c.DrainGrace)
	return fs.errs
}

// ValidatePools reports all faults of pools, each beginning with a path
// such as pools[0].instances[2].url.
func ValidatePools(pools []PoolConfig) []error {
	var fs faults
	names := make(map[string]string)     // model or alias -> path
	instances := make(map[string]placed) // instance name -> where it was seen first
	for i, p := range pools {
		path := fmt.Sprintf("pools[%d]", i)
		p.validate(&fs, path)
		for at, name := range p.names(path) {
			if first, ok := names[name]; ok {
				fs.add(at, "%q is the name of %s already", name, first)
				continue
			}
			names[name] = at
		}
		for j, in := range p.Instances {
			fs.unique(instances, fmt.Sprintf("%s.instances[%d]", path, j), in.with(p.Defaults))
		}
	}
	return fs.errs
}

// placed is an instance and the path at which it stands.
type placed struct {
	path string
	in   InstanceConfig
}

// unique reports an instance whose name belongs to a different one, and one that
// another pool describes differently.
func (fs *faults) unique(seen map[string]placed, path string, in InstanceConfig) {
	in, err := in.normal()
	if err != nil {
		return // reported with the instance itself
	}
	first, ok := seen[in.Name]
	if !ok {
		seen[in.Name] = placed{path, in}
		return
	}
	if in.key() != first.in.key() {
		fs.add(path+".name", "%q is the name of %s already, which is another instance", in.Name, first.path)
		return
	}
	if !sameSettings(in, first.in) {
		fs.add(path, "is the same instance as %s, but its settings differ", first.path)
	}
}

// names yields the path and text of each name that clients can use.
func (p PoolConfig) names(path string) func(yield func(string, string) bool) {
	return func(yield func(string, string) bool) {
		if p.Model != "" && !yield(path+".model", p.Model) {
			return
		}
		for k, a := range p.Aliases {
			if a != "" && !yield(fmt.Sprintf("%s.aliases[%d]", path, k), a) {
				return
			}
		}
	}
}

func (p PoolConfig) validate(fs *faults, path string) {
	if p.Model == "" {
		for _, set := range []struct {
			field string
			isSet bool
		}{{"aliases", len(p.Aliases) > 0}, {"upstream_model", p.UpstreamModel != ""}} {
			if set.isSet {
				fs.add(path+"."+set.field, "needs a model")
			}
		}
	}
	for k, a := range p.Aliases {
		if a == "" {
			fs.add(fmt.Sprintf("%s.aliases[%d]", path, k), "is empty")
		}
	}
	if p.Policy != "" && !slices.Contains(route.Policies(), p.Policy) {
		fs.add(path+".policy", "%q; want one of %s", p.Policy, strings.Join(route.Policies(), ", "))
	}
	if len(p.Instances) == 0 && len(p.DNS) == 0 && p.File == "" {
		fs.add(path, "has no instances, dns or file")
	}
	p.Defaults.validate(fs, path+".defaults", p.Model != "")
	for j, in := range p.Instances {
		at := fmt.Sprintf("%s.instances[%d]", path, j)
		in.validate(fs, at, p.Model != "")
		if _, err := ParseURL(in.URL); err != nil {
			fs.add(at+".url", "%v", err)
		}
	}
	for j, d := range p.DNS {
		d.validate(fs, fmt.Sprintf("%s.dns[%d]", path, j))
	}
}

// validate checks all but the URL, which defaults do not have. named says that
// the pool has a model.
func (c InstanceConfig) validate(fs *faults, path string, named bool) {
	if c.Engine != "" && !slices.Contains(Engines(), c.Engine) {
		fs.add(path+".engine", "%q; want one of %s", c.Engine, joinEngines())
	}
	if _, ok := route.Prior(c.Profile); c.Profile != "" && !ok {
		fs.add(path+".profile", "%q; want one of %s", c.Profile, strings.Join(route.Engines(), ", "))
	}
	if named && len(c.Models) > 0 {
		fs.add(path+".models", "the pool names its model already; use model for another name of it")
	}
	if !named && c.Model != "" {
		fs.add(path+".model", "needs a pool with a model; use models")
	}
	if slices.Contains(c.Models, "") {
		fs.add(path+".models", "holds an empty name")
	}
	if c.KVTokens < 0 {
		fs.add(path+".kv_tokens", "%d is negative", c.KVTokens)
	}
	if !(c.Weight >= 0 && c.Weight <= 1e6) {
		fs.add(path+".weight", "%g; want 0 to 1000000", c.Weight)
	}
	if c.MaxInflight < 0 {
		fs.add(path+".max_inflight", "%d is negative", c.MaxInflight)
	}
	if strings.ContainsFunc(c.APIKey.Reveal(), unicode.IsControl) {
		fs.add(path+".api_key", "holds control characters")
	}
	if strings.ContainsAny(c.KeyHeader, " :\r\n\t") {
		fs.add(path+".key_header", "%q is not a header name", c.KeyHeader)
	}
	if c.HealthPath != "" && !strings.HasPrefix(c.HealthPath, "/") {
		fs.add(path+".health_path", "%q; want a path that begins with /", c.HealthPath)
	}
	if c.Rank != nil && *c.Rank < 0 {
		fs.add(path+".rank", "%d is negative", *c.Rank)
	}
}

func joinEngines() string {
	var names []string
	for _, e := range Engines() {
		names = append(names, string(e))
	}
	return strings.Join(names, ", ")
}

func (d DNSConfig) validate(fs *faults, path string) {
	if d.Name == "" {
		fs.add(path+".name", "is empty")
	}
	switch d.Type {
	case "", "a", "srv":
	default:
		fs.add(path+".type", "%q; want a or srv", d.Type)
	}
	if d.isSRV() && d.Port != 0 {
		fs.add(path+".port", "%d; srv records have ports of their own", d.Port)
	}
	if !d.isSRV() && (d.Port < 1 || d.Port > 65535) {
		fs.add(path+".port", "%d; want 1 to 65535", d.Port)
	}
	switch d.Scheme {
	case "", "http", "https":
	default:
		fs.add(path+".scheme", "%q; want http or https", d.Scheme)
	}
	if d.Refresh < 0 {
		fs.add(path+".refresh", "%v is negative", d.Refresh)
	}
}

func (d DNSConfig) isSRV() bool {
	return d.Type == "srv" || d.Type == "" && strings.HasPrefix(d.Name, "_")
}

var (
	errURLScheme = errors.New("want an http:// or https:// URL")
	errURLHost   = errors.New("host is missing")
	errURLUser   = errors.New("credentials do not belong into a URL; use api_key")
	errURLTail   = errors.New("want no fragment")
)

// ParseURL parses the base URL of an instance and brings it into its one form:
// no trailing slash, no trailing /v1, host in lower case, so that one instance
// written in two ways is still one.
func ParseURL(raw string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimSpace(raw))
	if err != nil {
		return nil, errURLScheme // the parser's error quotes the URL, which may hold a password
	}
	switch {
	case u.User != nil:
		return nil, errURLUser
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errURLScheme
	case u.Hostname() == "":
		return nil, errURLHost
	case u.Fragment != "":
		return nil, errURLTail
	}
	u.Host = strings.ToLower(u.Host)
	u.Path, u.RawPath = trimBase(u.Path), ""
	return u, nil
}

// trimBase drops what request paths bring themselves. It drops it as often as it
// is there, so that a trimmed path stays as it is.
func trimBase(path string) string {
	for {
		path = strings.TrimRight(path, "/")
		if !strings.HasSuffix(path, "/v1") {
			return path
		}
		path = strings.TrimSuffix(path, "/v1")
	}
}

// with fills what c leaves out from d.
func (c InstanceConfig) with(d InstanceConfig) InstanceConfig {
	c.Model = cmp.Or(c.Model, d.Model)
	if len(c.Models) == 0 {
		c.Models = d.Models
	}
	c.Engine = cmp.Or(c.Engine, d.Engine)
	c.Profile = cmp.Or(c.Profile, d.Profile)
	c.KVTokens = cmp.Or(c.KVTokens, d.KVTokens)
	c.Weight = cmp.Or(c.Weight, d.Weight)
	c.MaxInflight = cmp.Or(c.MaxInflight, d.MaxInflight)
	c.APIKey = cmp.Or(c.APIKey, d.APIKey)
	c.KeyHeader = cmp.Or(c.KeyHeader, d.KeyHeader)
	c.HealthPath = cmp.Or(c.HealthPath, d.HealthPath)
	return c
}

// normal brings the URL into its one form and gives the instance its name.
func (c InstanceConfig) normal() (InstanceConfig, error) {
	u, err := ParseURL(c.URL)
	if err != nil {
		return c, fmt.Errorf("url: %w", err)
	}
	c.URL = u.String()
	c.Engine = cmp.Or(c.Engine, Auto)
	if c.Name == "" {
		c.Name = u.Host + u.Path
		if c.Rank != nil {
			c.Name += "#" + strconv.Itoa(*c.Rank)
		}
	}
	return c, nil
}

// key is what makes an instance the same one: behind another address, rank or
// kind of machine is another cache.
func (c InstanceConfig) key() string {
	rank := ""
	if c.Rank != nil {
		rank = strconv.Itoa(*c.Rank)
	}
	return strings.Join([]string{c.Name, c.URL, rank, c.Profile}, "\x00")
}

// sameSettings reports whether two descriptions of one instance agree in all
// that belongs to the instance and not to the pool.
func sameSettings(a, b InstanceConfig) bool {
	return a.Engine == b.Engine && a.KVTokens == b.KVTokens && a.Weight == b.Weight &&
		a.MaxInflight == b.MaxInflight && a.APIKey == b.APIKey && a.KeyHeader == b.KeyHeader &&
		a.HealthPath == b.HealthPath
}
