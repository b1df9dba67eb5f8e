package cli

import (
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/index"
	"github.com/warmroute/warmroute/internal/telemetry"
)

// dataHandler serves the client side: the APIs, and the health of the gateway
// for load balancers.
func (g *gateway) dataHandler() http.Handler {
	health := http.NewServeMux()
	g.healthRoutes(health)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.draining.Load() {
			// Clients come back by a new connection, and thus to another gateway.
			// Closing idle connections instead would race with their next request.
			w.Header().Set("Connection", "close")
		}
		// The proxy is not behind the mux, which by itself answers paths that it
		// finds unclean, in a shape that no client of these APIs reads.
		if _, pattern := health.Handler(r); pattern != "" {
			health.ServeHTTP(w, r)
			return
		}
		g.proxy.ServeHTTP(w, r)
	})
}

// adminHandler serves the operator's side.
func (g *gateway) adminHandler() http.Handler {
	mux := http.NewServeMux()
	g.healthRoutes(mux)
	mux.Handle("GET /metrics", promhttp.HandlerFor(g.registry, promhttp.HandlerOpts{
		Registry:          g.registry,
		ErrorLog:          slog.NewLogLogger(g.log.Handler(), slog.LevelError),
		ErrorHandling:     promhttp.ContinueOnError, // one bad series must not hide the others
		EnableOpenMetrics: true,
	}))
	mux.Handle("GET /status", g.guard(g.serveStatus))
	mux.Handle("POST /-/reload", http.NewCrossOriginProtection().Handler(g.guard(g.serveReload)))
	return mux
}

func (g *gateway) healthRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		switch {
		case g.draining.Load():
			say(w, http.StatusServiceUnavailable, "shutting down")
		case !g.fleet.Ready():
			say(w, http.StatusServiceUnavailable, "no instance is ready")
		default:
			say(w, http.StatusOK, "ready")
		}
	})
}

func say(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = fmt.Fprintln(w, text) // a prober that is gone needs no answer
}

// guard lets through whoever has the token; without one, callers from this
// machine.
func (g *gateway) guard(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := g.adminToken()
		given, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		switch {
		case token == "" && isLocal(r):
		case token != "" && bearer && subtle.ConstantTimeCompare([]byte(given), []byte(token)) == 1:
		default:
			w.Header().Set("WWW-Authenticate", `Bearer realm="warmroute"`)
			say(w, http.StatusUnauthorized, "the admin token is missing or wrong")
			return
		}
		h(w, r)
	})
}

// isLocal reports whether the request comes from this machine and was meant for
// it: a name in Host that is not a loopback one is that of a web page, whose
// owner made it resolve to this machine.
func isLocal(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !peer.Addr().Unmap().IsLoopback() {
		return false
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// serveReload reads the configuration again and says what became of it.
func (g *gateway) serveReload(w http.ResponseWriter, _ *http.Request) {
	result := g.reload("request")
	status := http.StatusOK
	if len(result.Faults) > 0 {
		status = http.StatusUnprocessableEntity
	}
	g.writeJSON(w, status, result)
}

// status is the state of everything, for people and scripts.
type status struct {
	Version   string                `json:"version"`
	Started   time.Time             `json:"started"`
	Ready     bool                  `json:"ready"`
	Draining  bool                  `json:"draining"`
	Running   int64                 `json:"running"` // requests
	Held      int                   `json:"held"`    // of them, waiting for an instance
	Models    []fleet.Model         `json:"models"`
	Instances []fleet.View          `json:"instances"`
	Sources   []fleet.SourceView    `json:"sources"`
	Index     index.Stats           `json:"index"`
	Caches    []index.InstanceStats `json:"caches"`
}

func (g *gateway) serveStatus(w http.ResponseWriter, _ *http.Request) {
	version, _ := telemetry.Build()
	g.writeJSON(w, http.StatusOK, status{
		Version: version, Started: g.started, Ready: g.fleet.Ready(), Draining: g.draining.Load(),
		Running: g.recorder.running.Load(), Held: g.proxy.Held(),
		Models: g.fleet.Models(), Instances: slices.Collect(g.fleet.All()), Sources: slices.Collect(g.fleet.Sources()),
		Index: g.index.Stats(), Caches: slices.Collect(g.index.Instances()),
	})
}

func (g *gateway) writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		g.log.Error("BUG: admin answer has no JSON form", slog.String("error", err.Error()))
		say(w, http.StatusInternalServerError, "the answer has no JSON form")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // a caller that is gone needs no answer
}
