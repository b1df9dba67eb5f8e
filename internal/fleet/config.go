package fleet

import (
	"fmt"
	"io"
	"log/slog"
	"time"
)

// Config says how all instances are watched.
type Config struct {
	Health  HealthConfig  `yaml:"health"`
	Scrape  ScrapeConfig  `yaml:"scrape"`
	Breaker BreakerConfig `yaml:"breaker"`
	// CoolDown is how long an instance that is full is left alone when it does
	// not say how long (429 without Retry-After). Zero means not at all. Default
	// 250ms.
	CoolDown time.Duration `yaml:"cool_down"`
	// MaxCoolDown bounds the Retry-After of instances. Default 10m.
	MaxCoolDown time.Duration `yaml:"max_cool_down"`
	// AdaptiveLimit lowers the number of requests in flight at an instance that
	// says it is full, and raises it again while all goes well. Default true.
	AdaptiveLimit bool `yaml:"adaptive_limit"`
	// DrainGrace is how long the requests of a removed instance may run on.
	// Default 5m.
	DrainGrace time.Duration `yaml:"drain_grace"`
}

// HealthConfig sets the active probes. They are free of charge: /health, /ping
// or /v1/models, never a generated token.
type HealthConfig struct {
	// Interval between two probes of a ready instance; one that is not ready is
	// probed at least once a second. Hosted vendors (engine openai) are probed
	// at a sixth of the rate. Zero turns probes off: every instance is taken for
	// ready. Default 5s.
	Interval time.Duration `yaml:"interval"`
	// Timeout of one probe. Default 2s.
	Timeout time.Duration `yaml:"timeout"`
	// Fall is how many failed probes in a row make an instance unready. A probe
	// that times out while the instance streams does not count. Default 3.
	Fall int `yaml:"fall"`
	// Rise is how many good probes in a row make it ready again; the first time
	// one is enough. Default 2.
	Rise int `yaml:"rise"`
	// ModelsInterval between two looks at /v1/models, where pools depend on it.
	// Default 30s.
	ModelsInterval time.Duration `yaml:"models_interval"`
}

// ScrapeConfig sets the reading of the engines' metrics, which correct the
// ledgers and never replace them.
type ScrapeConfig struct {
	// Interval between two scrapes of an instance. Zero turns scraping off.
	// Default 2s.
	Interval time.Duration `yaml:"interval"`
	// Timeout of one scrape. Default 1s.
	Timeout time.Duration `yaml:"timeout"`
	// MaxBytes bounds what is read of a page; a longer page counts as a failed
	// scrape. Default 8 MiB.
	MaxBytes int64 `yaml:"max_bytes"`
}

// BreakerConfig sets the circuit breaker of each instance. It opens when one of
// its two conditions holds. Only transient faults and truncated answers count.
type BreakerConfig struct {
	// Window of the failure ratio. Default 10s.
	Window time.Duration `yaml:"window"`
	// MinRequests in the window before the ratio means anything. Default 5.
	MinRequests int `yaml:"min_requests"`
	// FailureRatio that opens, 0 to 1. Zero turns this condition off. Default
	// 0.5.
	FailureRatio float64 `yaml:"failure_ratio"`
	// Consecutive failures that open, whatever the window says. Zero turns this
	// condition off. Default 5.
	Consecutive int `yaml:"consecutive"`
	// OpenMin is how long the breaker stays open the first time; each failed
	// trial doubles it. Default 5s.
	OpenMin time.Duration `yaml:"open_min"`
	// OpenMax ends the doubling. Default 60s.
	OpenMax time.Duration `yaml:"open_max"`
}

// Default returns the settings that hold when a file says nothing.
func Default() Config {
	return Config{
		Health: HealthConfig{
			Interval: 5 * time.Second, Timeout: 2 * time.Second, Fall: 3, Rise: 2,
			ModelsInterval: 30 * time.Second,
		},
		Scrape: ScrapeConfig{Interval: 2 * time.Second, Timeout: time.Second, MaxBytes: 8 << 20},
		Breaker: BreakerConfig{
			Window: 10 * time.Second, MinRequests: 5, FailureRatio: 0.5, Consecutive: 5,
			OpenMin: 5 * time.Second, OpenMax: time.Minute,
		},
		CoolDown:      250 * time.Millisecond,
		MaxCoolDown:   10 * time.Minute,
		AdaptiveLimit: true,
		DrainGrace:    5 * time.Minute,
	}
}

// PoolConfig is the instances that serve one model, or, without a model, a
// group of instances that are asked what they serve.
type PoolConfig struct {
	// Model is the name that clients use. Empty makes a pool for each model that
	// the instances list at /v1/models, LoRA adapters included.
	Model string `yaml:"model"`
	// Aliases are more names for Model.
	Aliases []string `yaml:"aliases"`
	// UpstreamModel is the name that the instances know. Empty means Model.
	UpstreamModel string `yaml:"upstream_model"`
	// Adapters also serves the LoRA adapters that instances list with this model
	// as parent. Default false; without Model they are served anyway.
	Adapters bool `yaml:"adapters"`
	// Policy names the routing policy. Empty means the gateway's default.
	Policy string `yaml:"policy"`
	// Instances are the ones known by configuration. The same URL in several
	// pools is one instance, with one ledger.
	Instances []InstanceConfig `yaml:"instances"`
	// DNS names are resolved to instances.
	DNS []DNSConfig `yaml:"dns"`
	// File holds a JSON list of instances, [{"url": "http://10.0.0.1:8000"}, ...],
	// with the keys of an instance here. It is read again when it changes.
	File string `yaml:"file"`
	// Defaults fills what an instance leaves out, wherever it comes from; its
	// name, url and rank are not used.
	Defaults InstanceConfig `yaml:"defaults"`
}

// InstanceConfig is one instance: an engine process, one data-parallel rank of
// it, or a hosted vendor under one credential. Name, URL, Rank and Profile are
// its identity: changing one of them drains the old instance and adds a new one.
type InstanceConfig struct {
	// Name is unique in the fleet. Empty means host:port of the URL, its path,
	// and the rank.
	Name string `yaml:"name" json:"name,omitzero"`
	// URL is the base of the API, http://host:port. A trailing /v1 is ignored.
	URL string `yaml:"url" json:"url"`
	// Model is the name that this instance knows the pool's model by. Empty
	// means the pool's UpstreamModel.
	Model string `yaml:"model" json:"model,omitzero"`
	// Models are the models it serves, in a pool that names none. Empty means to
	// ask it.
	Models []string `yaml:"models" json:"models,omitzero"`
	// Engine is auto, vllm, sglang, llamacpp or openai (any other server with
	// that API, hosted vendors among them). Empty means auto.
	Engine Engine `yaml:"engine" json:"engine,omitzero" enum:"auto,vllm,sglang,llamacpp,openai"`
	// Profile names what is known of its speed before it is measured (see
	// route.Engines). Empty means the median of the pool.
	Profile string `yaml:"profile" json:"profile,omitzero"`
	// KVTokens is the capacity of its KV cache in tokens. Zero means unknown: it
	// is read from the engine's metrics, or learned.
	KVTokens int `yaml:"kv_tokens" json:"kv_tokens,omitzero"`
	// Weight is its share under the policies that count or hash. Zero means 1.
	Weight float64 `yaml:"weight" json:"weight,omitzero"`
	// MaxInflight bounds its requests in flight. Zero means no bound of ours.
	MaxInflight int `yaml:"max_inflight" json:"max_inflight,omitzero"`
	// APIKey is its credential; write a reference, such as ${env:NAME}. Files of
	// instances cannot hold it: the pool's defaults can.
	APIKey Key `yaml:"api_key" json:"-" secret:"true"`
	// KeyHeader is the header for the credential. Empty means Authorization,
	// as a bearer token.
	KeyHeader string `yaml:"key_header" json:"key_header,omitzero"`
	// HealthPath is what probes ask for. Empty means what the engine has.
	HealthPath string `yaml:"health_path" json:"health_path,omitzero"`
	// Rank makes the instance one data-parallel rank of the engine at URL; each
	// rank has a cache of its own. Nil means the whole engine.
	Rank *int `yaml:"rank" json:"rank,omitzero"`
}

// DNSConfig is a name that stands for instances.
type DNSConfig struct {
	// Name is a host name, or a service name (_http._tcp.example.org).
	Name string `yaml:"name"`
	// Type is a (addresses, A or, when there are none, AAAA) or srv (targets and
	// ports of the best priority). Empty means srv for names that begin with an
	// underscore, else a.
	Type string `yaml:"type" enum:"a,srv"`
	// Port of instances found by address.
	Port int `yaml:"port"`
	// Scheme is http or https. Empty means http.
	Scheme string `yaml:"scheme" enum:"http,https"`
	// Refresh is the time between two look-ups. Zero means 10s.
	Refresh time.Duration `yaml:"refresh"`
}

// Key is a credential. It does not print: fmt, slog, JSON and YAML show a
// placeholder.
type Key string

// redacted stands wherever a key would.
const redacted = "[redacted]"

// Reveal returns the credential itself.
func (k Key) Reveal() string { return string(k) }

// String returns the placeholder, or "" when there is no key.
func (k Key) String() string {
	if k == "" {
		return ""
	}
	return redacted
}

// Format prints the placeholder for every verb and flag.
func (k Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, k.String()) }

// MarshalText encodes the placeholder.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// LogValue returns the placeholder.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

// Engine is a kind of inference server.
type Engine string

// The engines.
const (
	Auto     Engine = "auto"
	VLLM     Engine = "vllm"
	SGLang   Engine = "sglang"
	LlamaCPP Engine = "llamacpp"
	OpenAI   Engine = "openai"
)

// Engines lists the engines in the order of the documentation.
func Engines() []Engine { return []Engine{Auto, VLLM, SGLang, LlamaCPP, OpenAI} }
