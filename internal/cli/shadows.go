package cli

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/warmroute/warmroute/internal/config"
	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/index"
	"github.com/warmroute/warmroute/internal/proxy"
	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/internal/telemetry"
)

// shadows is what the rules need to run policies beside the live ones.
type shadows struct {
	index   *index.Index
	metrics *telemetry.Metrics
}

// arm is a policy that may be live in a pool, or is compared with it.
type arm struct {
	name   string // the policy's, or that and what is different about it
	policy string
	config route.Config
}

// hashes reports whether the policy needs the key of the prompt's beginning.
func (a arm) hashes() bool {
	return a.policy == route.PrefixHash || a.policy == route.PrefixHashBounded
}

// adaptFactor is how far the congestion price may be moved from what is
// configured, both ways. Beyond, simulations show the cost policy as greedy, or
// as pinning hot prefixes.
const adaptFactor = 4

// armsOf lists the policies that run for a pool, the configured one first.
func armsOf(name string, r *config.Routing) []arm {
	arms := []arm{{name: name, policy: name, config: r.Config}}
	for _, s := range r.Shadow {
		if !slices.ContainsFunc(arms, func(a arm) bool { return a.name == s }) {
			arms = append(arms, arm{name: s, policy: s, config: r.Config})
		}
	}
	if r.Adaptive == "on" && name == route.Cost && r.Congestion > 0 {
		for _, c := range []float64{r.Congestion / adaptFactor, r.Congestion * adaptFactor} {
			a := arm{name: fmt.Sprintf("%s_congestion_%g", name, c), policy: name, config: r.Config}
			a.config.Congestion = c
			arms = append(arms, a)
		}
	}
	return arms
}

// contest is the arms of one pool, and which of them is live.
type contest struct {
	arms    []arm
	live    string
	shadow  *proxy.Shadow
	adapter *route.Adapter // nil: the configured policy stays
}

// moved reports whether another policy is live than the configured one.
func (c *contest) moved() bool { return c != nil && c.live != c.arms[0].name }

// contestLocked lets the arms run for the pool.
func (rs *rules) contestLocked(p *fleet.Pool, arms []arm) *contest {
	c := &contest{arms: arms, live: arms[0].name}
	cfg := proxy.ShadowConfig{
		Index: rs.shadows.index, Memory: rs.routing.ShadowMemory, Sample: rs.routing.ShadowSample, Log: rs.log,
		Predicted: func(arm string, ttft time.Duration, prompt, cached int) {
			rs.shadows.metrics.Predicted(p.Name(), arm, ttft, prompt, cached)
		},
		Skipped: func() { rs.shadows.metrics.Unpredicted(p.Name()) },
	}
	for _, a := range arms {
		cfg.Arms = append(cfg.Arms, proxy.ShadowArm{Name: a.name, Policy: rs.policy(p, a)})
	}
	if rs.routing.Adaptive == "on" {
		c.adapter = route.NewAdapter(c.live)
		cfg.Window = func(w route.Window) { rs.adapt(p, c, w) }
	}
	c.shadow = proxy.NewShadow(cfg)
	return c
}

// adapt shows the adapter of a pool what the last minute has shown, and puts into
// force what it says.
func (rs *rules) adapt(p *fleet.Pool, c *contest, w route.Window) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r, ok := rs.byPool[p]
	if !ok || r.stale || r.contest != c {
		return // The settings have changed since.
	}
	change, ok := c.adapter.Observe(w)
	if !ok {
		return
	}
	i := slices.IndexFunc(c.arms, func(a arm) bool { return a.name == change.To })
	r.Policy, c.live = rs.policy(p, c.arms[i]), change.To
	rs.byPool[p] = r
	rs.shadows.metrics.PolicyChanged(p.Name(), change.To, string(change.Kind))
	rs.log.Warn("routing adapted", slog.String("pool", p.Name()), slog.String("kind", string(change.Kind)),
		slog.String("from", change.From), slog.String("to", change.To), slog.String("reason", change.Reason))
}

// live yields the name of the live policy of each pool that has been used.
func (rs *rules) live(yield func(model, policy string) bool) {
	for model, policy := range rs.liveByPool() {
		if !yield(model, policy) {
			return
		}
	}
}

func (rs *rules) liveByPool() map[string]string {
	rs.mu.RLock()
	defer rs.mu.RUnlock()
	live := make(map[string]string, len(rs.byPool))
	for p, r := range rs.byPool {
		name := r.name
		if r.contest != nil {
			name = r.live
		}
		live[p.Name()] = name
	}
	return live
}
