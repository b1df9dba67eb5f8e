package route

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Config holds the settings of the policies. The zero Config is not useful: start from Default.
type Config struct {
	// Thrift is the price of a second of prefill wherever it is done. It keeps the siblings of a new prefix together. Default 0.25.
	Thrift float64 `yaml:"thrift"`
	// Copy is the price of a second of prefill that makes a second copy of what another instance holds. Default 0.25.
	Copy float64 `yaml:"copy"`
	// Congestion is c in the congestion price min(CongestionCap, c*arrivals*wait): how much more a second of prefill costs on an
	// instance where others will wait behind it. Zero makes the cost policy greedy for its own time to first token. Default 10.
	Congestion float64 `yaml:"congestion"`
	// CongestionCap bounds the congestion price. Default 4.
	CongestionCap float64 `yaml:"congestion_cap"`
	// Memory is the price of the cache memory that a second of prefill overwrites, on an instance that evicts and whose hit rate
	// is 1. Zero lets caches be overwritten for free. Default 0.5, the most.
	Memory float64 `yaml:"memory"`
	// Interference is the price of prefill for each stream that it slows. Default 0.05.
	Interference float64 `yaml:"interference"`
	// DecodeShare is how much of a second of the answer's own decoding counts against a second to first token. Default 0.1.
	DecodeShare float64 `yaml:"decode_share"`
	// Ghost is the chance that tokens believed to be evicted are still there. Default 0.05.
	Ghost float64 `yaml:"ghost"`
	// Noise is the relative difference in cost that learned speeds cannot tell: between candidates that hold the same of the
	// prompt, it counts as a tie. Default 0.05.
	Noise float64 `yaml:"noise"`
	// MaxHold bounds how long late binding holds a request back. Zero never holds. Default 2s.
	MaxHold time.Duration `yaml:"max_hold"`
	// TTFTObjective is the time to first token that the pool aims at. A quarter of it bounds MaxHold too. Zero means none.
	TTFTObjective time.Duration `yaml:"ttft_objective"`
	// TTFTBudget is the expected time to first token beyond which the cost policy refuses. Zero means never to refuse.
	TTFTBudget time.Duration `yaml:"ttft_budget"`

	// HashGuard is the number of requests in flight above which prefix_hash looks for another instance. Zero means never. Default
	// 256.
	HashGuard int `yaml:"hash_guard"`
	// HashLoad is the factor of the mean load that prefix_hash_bounded allows to an instance. Default 1.25.
	HashLoad float64 `yaml:"hash_load"`
	// HashThreshold, when set, replaces HashLoad by a number of requests in flight (1 to 1024). With hash_chars of 1024 to 65536,
	// prefix_hash_bounded is then SageMaker's PREFIX_AWARE routing. Default 0.
	HashThreshold int `yaml:"hash_threshold"`

	// SessionTTL is how long a pin outlives the session's last request. Default 30m.
	SessionTTL time.Duration `yaml:"session_ttl"`
	// Sessions is the number of pins kept, a power of two; the oldest make room. Default 65536, 24 bytes each.
	Sessions int `yaml:"sessions"`
	// SessionLoad is the factor of the mean load above which an instance is too full for its sessions. Default 2.
	SessionLoad float64 `yaml:"session_load"`
	// SessionFloor is the number of requests in flight that an instance never is too full for. Default 8.
	SessionFloor int `yaml:"session_floor"`

	// GateMatch is the share of the prompt above which gated_match follows a match. Default 0.3.
	GateMatch float64 `yaml:"gate_match"`
	// GateAbs is by how many requests in flight the most loaded instance may exceed the least loaded one before gated_match goes
	// by load alone, if GateRel is exceeded too. Default 64.
	GateAbs int `yaml:"gate_abs"`
	// GateRel is how many times the requests of the least loaded instance the most loaded one may have, see GateAbs. Default 1.5.
	GateRel float64 `yaml:"gate_rel"`
	// QueueWeight is the weight of a short queue in weighted_scores. Default 2.
	QueueWeight float64 `yaml:"queue_weight"`
	// KVWeight is the weight of a free KV cache in weighted_scores. Default 2.
	KVWeight float64 `yaml:"kv_weight"`
	// PrefixWeight is the weight of the cached share of the prompt in weighted_scores. Default 3.
	PrefixWeight float64 `yaml:"prefix_weight"`
	// OverlapWeight is the weight of a block to prefill against a block held by running requests in the policy blocks. Default 1.
	OverlapWeight float64 `yaml:"overlap_weight"`
	// StickyMatch is the share of the prompt that an instance must hold for sticky to stay with it. Default 0.8.
	StickyMatch float64 `yaml:"sticky_match"`
	// StickyBacklog is how much prefill may wait on an instance before sticky lets go of it. Default 14s.
	StickyBacklog time.Duration `yaml:"sticky_backlog"`
}

// Default is the configuration that is used where a file says nothing. Each value names its source.
func Default() Config {
	return Config{
		Thrift:        0.25, // no change of mean TTFT in 18 simulated cells; from 0.5 on, long contexts pile up
		Copy:          0.25, // keeps siblings of short prefixes together; standard suite, length 0.3, one run: geometric mean TTFT -1 %
		Congestion:    10,   // W + pt*(1 + 10*lambda*W) was the most robust rule of our second study
		CongestionCap: 4,    // the cap of the fleet-wide price in the first study
		Memory:        0.5,  // larger prices pin hot prefixes; both studies agree on at most 0.5
		Interference:  0.05, // the first study's share of a stream's harm
		DecodeShare:   0.1,  // both studies
		Ghost:         0.05,
		Noise:         0.05, // learned speeds of equal engines differ by this much
		MaxHold:       2 * time.Second,
		HashGuard:     256,  // vLLM's smaller default of max_num_seqs: beyond it the engine only queues
		HashLoad:      1.25, // Mirrokni et al., consistent hashing with bounded loads; HAProxy's and Envoy's advice
		SessionTTL:    30 * time.Minute,
		Sessions:      1 << 16,
		SessionLoad:   2,
		SessionFloor:  8,
		GateMatch:     0.3, // this and the next two: SMG, cache_threshold, balance_abs_threshold, balance_rel_threshold
		GateAbs:       64,
		GateRel:       1.5,
		QueueWeight:   2, // this and the next two: llm-d's default profile
		KVWeight:      2,
		PrefixWeight:  3,
		OverlapWeight: 1,   // Dynamo, overlap score weight
		StickyMatch:   0.8, // this and the next: llm-d, "Sticky until saturated"
		StickyBacklog: 14 * time.Second,
	}
}

// Hold is the longest time that late binding may hold a request.
func (c Config) Hold() time.Duration {
	if c.TTFTObjective > 0 {
		return min(c.MaxHold, c.TTFTObjective/4)
	}
	return c.MaxHold
}

// maxThreshold is the upper bound of SageMaker's ConcurrencyThreshold.
const maxThreshold = 1024

// Validate returns every fault.
func (c Config) Validate() []error {
	var faults []error
	within := func(name string, v, low, high float64) {
		if !(v >= low && v <= high) {
			faults = append(faults, fmt.Errorf("%s %g: want %g to %g", name, v, low, high))
		}
	}
	notNegative := func(name string, d time.Duration) {
		if d < 0 {
			faults = append(faults, fmt.Errorf("%s %s: want 0 or more", name, d))
		}
	}
	within("thrift", c.Thrift, 0, 10)
	within("copy", c.Copy, 0, 10)
	within("congestion", c.Congestion, 0, 1000)
	within("congestion_cap", c.CongestionCap, 0, 1000)
	within("memory", c.Memory, 0, 0.5)
	within("interference", c.Interference, 0, 1)
	within("decode_share", c.DecodeShare, 0, 1)
	within("ghost", c.Ghost, 0, 1)
	within("noise", c.Noise, 0, 0.5)
	notNegative("max_hold", c.MaxHold)
	notNegative("ttft_objective", c.TTFTObjective)
	notNegative("ttft_budget", c.TTFTBudget)
	within("hash_guard", float64(c.HashGuard), 0, 1<<20)
	within("hash_load", c.HashLoad, 1, 100)
	within("hash_threshold", float64(c.HashThreshold), 0, maxThreshold)
	notNegative("session_ttl", c.SessionTTL)
	within("sessions", float64(c.Sessions), pinWays, 1<<24)
	if c.Sessions > 0 && c.Sessions&(c.Sessions-1) != 0 {
		faults = append(faults, fmt.Errorf("sessions %d: want a power of two", c.Sessions))
	}
	within("session_load", c.SessionLoad, 1, 100)
	within("session_floor", float64(c.SessionFloor), 0, 1<<20)
	within("gate_match", c.GateMatch, 0, 1)
	within("gate_abs", float64(c.GateAbs), 0, 1<<20)
	within("gate_rel", c.GateRel, 1, 1000)
	within("queue_weight", c.QueueWeight, 0, 1000)
	within("kv_weight", c.KVWeight, 0, 1000)
	within("prefix_weight", c.PrefixWeight, 0, 1000)
	within("overlap_weight", c.OverlapWeight, 0, 1000)
	within("sticky_match", c.StickyMatch, 0, 1)
	notNegative("sticky_backlog", c.StickyBacklog)
	return faults
}

// The names of the policies.
const (
	Cost              = "cost"
	RoundRobin        = "round_robin"
	Random            = "random"
	FewestRequests    = "least_requests"
	PowerOfTwo        = "power_of_two"
	PrefixHash        = "prefix_hash"
	PrefixHashBounded = "prefix_hash_bounded"
	Session           = "session"
	GatedMatch        = "gated_match"
	WeightedScores    = "weighted_scores"
	Blocks            = "blocks"
	Sticky            = "sticky"
	LMetric           = "lmetric"
	Mooncake          = "mooncake"
)

// Policies lists the names that New takes, the default first.
func Policies() []string {
	return []string{
		Cost, RoundRobin, Random, FewestRequests, PowerOfTwo, PrefixHash, PrefixHashBounded, Session,
		GatedMatch, WeightedScores, Blocks, Sticky, LMetric, Mooncake,
	}
}

// New makes a policy. It fails on an unknown name, naming the known ones. The Config must have passed Validate.
func New(name string, cfg Config) (Policy, error) {
	switch name {
	case Cost:
		return newCost(cfg), nil
	case RoundRobin:
		return &roundRobin{}, nil
	case Random:
		return random{}, nil
	case FewestRequests:
		return leastRequests{}, nil
	case PowerOfTwo:
		return powerOfTwo{}, nil
	case PrefixHash:
		return prefixHash{guard: cfg.HashGuard}, nil
	case PrefixHashBounded:
		return boundedHash{factor: cfg.HashLoad, threshold: cfg.HashThreshold}, nil
	case Session:
		return newSession(cfg), nil
	case GatedMatch:
		return gatedMatch{match: cfg.GateMatch, abs: float64(cfg.GateAbs), rel: cfg.GateRel}, nil
	case WeightedScores:
		return weightedScores{queue: cfg.QueueWeight, kv: cfg.KVWeight, prefix: cfg.PrefixWeight}, nil
	case Blocks:
		return blocks{overlap: cfg.OverlapWeight}, nil
	case Sticky:
		return &sticky{match: cfg.StickyMatch, backlog: cfg.StickyBacklog.Seconds(), unknown: Unknown()}, nil
	case LMetric:
		return lMetric{}, nil
	case Mooncake:
		return &mooncake{unknown: Unknown()}, nil
	}
	names := Policies()
	slices.Sort(names)
	return nil, fmt.Errorf("find policy %q: want one of %s", name, strings.Join(names, ", "))
}
