package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/index"
	"github.com/warmroute/warmroute/internal/proxy"
	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/internal/upstream"
)

// Config is the whole configuration file. Each section is the Config of the
// package that it steers; what is here besides belongs to the process itself.
type Config struct {
	// Server is the listener that clients talk to.
	Server Server `yaml:"server"`
	// Admin is the listener for metrics, health and reloads.
	Admin Admin `yaml:"admin"`
	// Log is what the process writes about itself.
	Log Log `yaml:"log"`
	// Proxy bounds and tunes the handling of a request.
	Proxy proxy.Config `yaml:"proxy"`
	// Routing chooses the instance.
	Routing Routing `yaml:"routing"`
	// Cache is the gateway's model of what each instance's KV cache holds.
	Cache index.Config `yaml:"cache"`
	// Fleet watches the instances.
	Fleet fleet.Config `yaml:"fleet"`
	// Upstream tunes the connections to instances.
	Upstream upstream.Config `yaml:"upstream"`
	// Pools are the models and the instances that serve them.
	Pools []fleet.PoolConfig `yaml:"pools"`

	file    string            // where it was read from
	sources Sources           // what it was made of
	origins map[string]string // path -> the text with references
	secrets []string          // what references and secrets stand for
}

// Server is the listener that clients talk to.
type Server struct {
	// Listen is the address, host:port. An empty host means all interfaces.
	// Changing it needs a restart. Default ":8080".
	Listen string `yaml:"listen"`
	// HeaderTimeout bounds the time in which a client must have sent its request
	// headers. Default 10s.
	HeaderTimeout time.Duration `yaml:"header_timeout"`
	// IdleTimeout closes kept-alive connections that were not used for so long.
	// It should exceed that of the load balancer in front. Default 2m.
	IdleTimeout time.Duration `yaml:"idle_timeout"`
	// MaxHeaderBytes bounds the request headers. Default 64 KiB.
	MaxHeaderBytes int64 `yaml:"max_header_bytes"`
	// DrainDelay is the time between failing readiness and refusing new
	// requests at shutdown, for load balancers to notice. Default 2s.
	DrainDelay time.Duration `yaml:"drain_delay"`
	// Grace bounds how long running requests may go on at shutdown. Whoever
	// kills the process must wait longer (terminationGracePeriodSeconds in
	// Kubernetes). Default 10m.
	Grace time.Duration `yaml:"grace"`
}

// Admin is the listener for metrics, health and reloads.
type Admin struct {
	// Listen is the address, host:port. Empty turns the listener off. On an
	// address that others can reach, reloads need the token. Changing it needs a
	// restart. Default "127.0.0.1:9091".
	Listen string `yaml:"listen"`
	// Token is what POST /-/reload asks for as a bearer token; write a
	// reference, such as ${env:NAME}. Empty admits callers from this machine
	// only; on an address that others can reach, a token is then made up at each
	// start and printed once.
	Token fleet.Key `yaml:"token" secret:"true"`
}

// Log is what the process writes about itself, to standard error.
type Log struct {
	// Level is the least level that is written: debug, info, warn or error.
	// Default "info".
	Level string `yaml:"level" enum:"debug,info,warn,error"`
	// Format is text or json. Default "text".
	Format string `yaml:"format" enum:"text,json"`
	// Access writes a line for each request, at level info. It never holds
	// prompts, answers or keys. Default true.
	Access bool `yaml:"access"`
	// Trace is a log of which blocks requests had, without their text.
	Trace Trace `yaml:"trace"`
}

// Trace is a log of requests for `warmroute replay`: times, lengths, and hashes
// of the prompts' blocks under a key that is never written. It holds no text,
// and no text can be looked up in it.
type Trace struct {
	// File is where it is written. Empty writes none. Changing it needs a
	// restart. Default "".
	File string `yaml:"file"`
	// MaxBytes is the size at which a new file is begun, under a new key; the
	// hashes of two files cannot be compared. Changing it needs a restart.
	// Default 256 MiB.
	MaxBytes int64 `yaml:"max_bytes"`
	// Keep is how many full files are kept beside the one that is written; they
	// end in .1, .2 and so on. Changing it needs a restart. Default 4.
	Keep int `yaml:"keep"`
}

// Routing chooses the instance.
type Routing struct {
	// Policy is the policy of the pools that name none. Default "cost".
	Policy string `yaml:"policy"`
	// HashChars is how many Unicode characters of the prompt make the key of
	// prefix_hash and prefix_hash_bounded. Longer keys tell more prompts apart
	// and bring fewer of them together. Default 100.
	HashChars int `yaml:"hash_chars"`

	// Shadow lists policies that run beside the live one on the same requests and
	// only predict what they would have come to; docs/policies.md says how. Each
	// takes some time of the processor and at most ShadowMemory. Default none.
	Shadow []string `yaml:"shadow"`
	// ShadowSample is the share of the requests that shadow policies look at, above
	// 0 to 1; sessions that have a name are in or out as a whole. Less costs less,
	// and shows unnamed conversations as colder than they are. Default 1.
	ShadowSample float64 `yaml:"shadow_sample"`
	// ShadowMemory is the most that each shadow policy takes for each pool, to
	// know what it would have placed where. Default 16 MiB.
	ShadowMemory int64 `yaml:"shadow_memory" unit:"bytes"`
	// Adaptive is on or off. On, a shadow policy may take the place of a pool's
	// policy, and the congestion price of the cost policy may become a quarter of
	// what is configured or four times as much, when the evidence is clear; each
	// change is logged with its reason. Off, and at each start, pools have the
	// policy that is configured. Default "off".
	Adaptive string `yaml:"adaptive" enum:"off,on"`

	route.Config `yaml:",inline"`
}

// maxHashChars is the longest prefix that SageMaker's PREFIX_AWARE routing takes.
const maxHashChars = 65536

// Bounds of the index of one shadow policy: what the smallest index needs, and
// four times what the gateway's own has by default.
const (
	minShadowMemory = 4 << 20
	maxShadowMemory = 1 << 30
)

// notes says of keys what neither their type nor their name does, by type and
// key.
var notes = map[string]note{
	"config.Routing.policy":        {allowed: route.Policies()},
	"config.Routing.shadow":        {allowed: route.Policies()},
	"index.Config.memory":          {bytes: true},
	"config.Trace.max_bytes":       {bytes: true},
	"fleet.PoolConfig.policy":      {allowed: route.Policies()},
	"fleet.InstanceConfig.profile": {allowed: route.Engines()},
}

// Default is the configuration of an empty file. It has no pools, so it does
// not validate.
func Default() Config {
	return Config{
		Server: Server{
			Listen:         ":8080",
			HeaderTimeout:  10 * time.Second,
			IdleTimeout:    2 * time.Minute,
			MaxHeaderBytes: 64 << 10,
			DrainDelay:     2 * time.Second,
			Grace:          10 * time.Minute,
		},
		Admin:    Admin{Listen: "127.0.0.1:9091"},
		Log:      Log{Level: "info", Format: "text", Access: true, Trace: Trace{MaxBytes: 256 << 20, Keep: 4}},
		Proxy:    proxy.Default(),
		Routing:  Routing{Policy: route.Cost, HashChars: 100, ShadowSample: 1, ShadowMemory: 16 << 20, Adaptive: "off", Config: route.Default()},
		Cache:    index.Default(),
		Fleet:    fleet.Default(),
		Upstream: upstream.Default(),
	}
}

// Validate reports all faults of c, each beginning with the path of its key.
func (c *Config) Validate() []error {
	faults := append(c.Server.validate(), c.Admin.validate()...)
	faults = append(faults, c.Log.Trace.validate()...)
	if c.Admin.Listen != "" && sameAddress(c.Server.Listen, c.Admin.Listen) {
		faults = append(faults, fmt.Errorf("server.listen: %s is taken by admin.listen, %s; they need two ports", c.Server.Listen, c.Admin.Listen))
	}
	faults = append(faults, c.Routing.validate()...)
	for _, s := range []struct {
		name   string
		faults []error
	}{
		{"proxy", c.Proxy.Validate()},
		{"routing", c.Routing.Validate()},
		{"cache", c.Cache.Validate()},
		{"fleet", c.Fleet.Validate()},
		{"upstream", c.Upstream.Validate()},
	} {
		for _, err := range s.faults {
			faults = append(faults, fmt.Errorf("%s.%w", s.name, err))
		}
	}
	if len(c.Pools) == 0 {
		faults = append(faults, errors.New("pools: none; give at least one pool with its instances"))
	}
	return append(faults, fleet.ValidatePools(c.Pools)...)
}

// validate reports the faults of what is not the policies' own.
func (r *Routing) validate() (errs []error) {
	if n := r.HashChars; n < 1 || n > maxHashChars {
		errs = append(errs, fmt.Errorf("routing.hash_chars: %d; want 1 to %d", n, maxHashChars))
	}
	if s := r.ShadowSample; !(s > 0 && s <= 1) {
		errs = append(errs, fmt.Errorf("routing.shadow_sample: %g; want more than 0, and 1 at most", s))
	}
	if m := r.ShadowMemory; m < minShadowMemory || m > maxShadowMemory {
		errs = append(errs, fmt.Errorf("routing.shadow_memory: %s; want %s to %s", formatSize(m), formatSize(minShadowMemory), formatSize(maxShadowMemory)))
	}
	return errs
}

func (s Server) validate() (errs []error) {
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("server."+format, args...)) }
	if err := checkAddress(s.Listen); err != nil {
		bad("listen: %w", err)
	}
	if s.HeaderTimeout <= 0 {
		bad("header_timeout: %v; want more than 0, or idle connections could pile up", s.HeaderTimeout)
	}
	if s.IdleTimeout <= 0 {
		bad("idle_timeout: %v; want more than 0", s.IdleTimeout)
	}
	if s.MaxHeaderBytes < 4<<10 || s.MaxHeaderBytes > 16<<20 {
		bad("max_header_bytes: %s; want 4KiB to 16MiB", formatSize(s.MaxHeaderBytes))
	}
	if s.DrainDelay < 0 {
		bad("drain_delay: %v is negative", s.DrainDelay)
	}
	if s.Grace <= 0 {
		bad("grace: %v; want more than 0", s.Grace)
	}
	return errs
}

func (t Trace) validate() (errs []error) {
	if t.MaxBytes < 64<<10 {
		errs = append(errs, fmt.Errorf("log.trace.max_bytes: %s; want at least 64KiB", formatSize(t.MaxBytes)))
	}
	if t.Keep < 0 || t.Keep > 1000 {
		errs = append(errs, fmt.Errorf("log.trace.keep: %d; want 0 to 1000", t.Keep))
	}
	return errs
}

func (a Admin) validate() (errs []error) {
	if a.Listen == "" {
		return nil
	}
	if err := checkAddress(a.Listen); err != nil {
		errs = append(errs, fmt.Errorf("admin.listen: %w", err))
	}
	return errs
}

// checkAddress checks host:port, with a number for the port.
func checkAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is no address; want host:port, such as 127.0.0.1:8080 or :8080", address)
	}
	if n, err := net.LookupPort("tcp", port); err != nil || n < 0 || strings.TrimLeft(port, "0123456789") != "" {
		return fmt.Errorf("%q has no port; want 0 to 65535", address)
	}
	if strings.ContainsAny(host, "/ ") {
		return fmt.Errorf("%q is no address; want host:port without a scheme", address)
	}
	return nil
}

// sameAddress reports whether both cannot be listened on at once. Port 0 is a
// new port each time.
func sameAddress(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB || portA == "0" {
		return false
	}
	wild := func(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }
	return hostA == hostB || wild(hostA) || wild(hostB)
}

// Loopback reports whether only this machine can reach the address.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// Warnings lists settings that are allowed and probably not meant.
func (c *Config) Warnings() []string {
	var ws []string
	warn := func(format string, args ...any) { ws = append(ws, fmt.Sprintf(format, args...)) }
	if b := c.Cache.BlockBytes; b > 1024 {
		warn("cache.block_bytes: %d bytes are about %d tokens of English; prompts that share less than one block never match", b, b/4)
	}
	if r := c.Routing; r.Adaptive == "on" && len(r.Shadow) == 0 && r.Policy != route.Cost {
		warn("routing.adaptive: on, but routing.shadow names no policy that could take the place of %s", r.Policy)
	}
	if c.Upstream.InsecureTLS {
		warn("upstream.insecure_tls: any certificate is accepted, so keys go to whoever answers")
	}
	return ws
}

// Path is the file that the configuration was read from; empty when there was
// none.
func (c *Config) Path() string { return c.file }

// Sources returns what the configuration was made of: its file and those that
// references named. It is empty when there was no file.
func (c *Config) Sources() Sources { return maps.Clone(c.sources) }

// Secrets lists the values that must not be shown, for the last sieve before a
// log. Never write them anywhere.
func (c *Config) Secrets() []string {
	secrets := slices.Clone(c.secrets)
	for _, p := range c.Pools {
		for _, in := range append(slices.Clone(p.Instances), p.Defaults) {
			secrets = append(secrets, in.APIKey.Reveal())
		}
	}
	secrets = append(secrets, c.Admin.Token.Reveal())
	slices.Sort(secrets)
	return slices.DeleteFunc(slices.Compact(secrets), func(s string) bool { return s == "" })
}
