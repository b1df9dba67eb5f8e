package proxy

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/internal/testkit"
)

func parseExplanation(t testing.TB, text string) (e Explanation) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		t.Errorf("parse explanation %q: %v", text, err)
	}
	return e
}

func TestExplain(t *testing.T) {
	check := func(t testing.TB, e Explanation, cached int) {
		t.Helper()
		if e.Decision == nil || len(e.Decision.Candidates) != 2 || e.Decision.Policy != "cost" || e.Instance == "" || e.Decision.Chosen != e.Instance {
			t.Errorf("got %+v", e)
			return
		}
		if e.Actual == nil || *e.Actual != cached || e.Predicted < 900 || e.Outcome != "served" {
			t.Errorf("predicted %d, actual %v, outcome %s", e.Predicted, e.Actual, e.Outcome)
		}
		for _, c := range e.Decision.Candidates {
			if c.Chosen != (c.Name == e.Instance) || c.Chosen && e.Predicted != c.Match*e.PromptTokens/e.Decision.Tokens || c.Cost <= 0 {
				t.Errorf("candidate %+v", c)
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, always(testkit.Act{Cached: 960}))
		body := func(stream bool) string { return chat(long("document", 1000), stream) }
		plain := r.post(chatPath, body(true))
		if strings.Contains(plain.body, "warmroute") || plain.header.Get("Trailer") != "" || len(plain.trailer) != 0 {
			t.Errorf("an explanation that nobody asked for: %q %v", plain.body, plain.header)
		}
		a := r.post(chatPath, body(true), explainHeader, "1")
		line := ""
		if _, rest, ok := strings.Cut(a.body, "\n: warmroute "); ok {
			line, _, _ = strings.Cut(rest, "\n")
		}
		check(t, parseExplanation(t, line), 960)
		if got := a.trailer.Get(explanationHeader); got != line {
			t.Errorf("trailer %q; want %q", got, line)
		}
		// Without the comment line the stream is what it would have been: no event
		// more, none changed.
		if got := strings.Replace(a.body, ": warmroute "+line+"\n", "", 1); got != plain.body {
			t.Errorf("got %q; want %q", got, plain.body)
		}
		a = r.post(chatPath, body(false), explainHeader, "1")
		check(t, parseExplanation(t, a.header.Get(explanationHeader)), 960)

		r.gateway.cfg.Explain = false
		if a = r.post(chatPath, body(false), explainHeader, "1"); a.header.Get(explanationHeader) != "" {
			t.Error("explained though switched off")
		}
		r.gateway.cfg.Reveal = false
		if a = r.post(chatPath, body(false)); a.header.Get(instanceHeader)+a.header.Get(matchHeader)+a.header.Get(reasonHeader) != "" {
			t.Errorf("revealed though switched off: %v", a.header)
		}
	})
}

func TestExplainFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, always(testkit.Broken()))
		a := r.post(chatPath, chat("x", true), explainHeader, "1")
		e := parseExplanation(t, a.header.Get(explanationHeader))
		if a.status != 502 || len(e.Tries) != 1 || e.Decision == nil || e.Outcome != "transient" {
			t.Fatalf("got %d %+v", a.status, e)
		}
		for _, c := range e.Decision.Candidates {
			if c.Excluded != "failed" {
				t.Errorf("candidate %+v; want it excluded as failed", c)
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, served(script(helloChunk)))
		a := r.post(chatPath, chat("x", true), explainHeader, "1")
		if e := parseExplanation(t, a.trailer.Get(explanationHeader)); e.Outcome != "truncated" {
			t.Errorf("got %+v", e)
		}
	})
	synctest.Test(t, func(t *testing.T) { // an end without a marker
		r := newRig(t, 1, served(script(helloChunk, stopChunk)))
		a := r.post(chatPath, chat("x", true), explainHeader, "1")
		if !strings.HasPrefix(a.body, helloChunk+stopChunk+": warmroute {") || strings.HasSuffix(a.body, "\n\n") {
			t.Errorf("got %q", a.body)
		}
	})
}

func TestExplanationIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 100, func(s *setup) {
			s.instance = func(i int, c *fleet.InstanceConfig) { c.Weight = float64(i + 1) }
		})
		r.post(chatPath, chat(long("document", 1000), false))
		a := r.post(chatPath, chat(long("document", 1000), false), explainHeader, "1")
		text := a.header.Get(explanationHeader)
		e := parseExplanation(t, text)
		if len(text) > maxExplanation || e.Omitted == 0 || e.Omitted+len(e.Decision.Candidates) != 100 {
			t.Errorf("%d bytes with %d candidates, %d omitted", len(text), len(e.Decision.Candidates), e.Omitted)
		}
		if !e.Decision.Candidates[0].Chosen {
			t.Errorf("the chosen one is missing: %+v", e.Decision.Candidates[0])
		}
	})
	e := &Explanation{Decision: &route.Explanation{Candidates: []route.CandidateExplained{{Cost: math.Inf(1)}}}}
	if b := e.encode(1000); !json.Valid(b) {
		t.Errorf("an infinite cost gave %q", b)
	}
}

func TestModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, func(s *setup) { s.pool = func(p *fleet.PoolConfig) { p.Model, p.Aliases = "org/m", []string{"gpt-4"} } })
		get := func(path string) (int, string) {
			req := r.request(path, "")
			req.Method = "GET"
			resp, err := r.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			var v any
			if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
				t.Fatal(err)
			}
			return resp.StatusCode, fmt.Sprint(v)
		}
		if code, body := get("/v1/models"); code != 200 || body != "map[data:[map[created:9.466848e+08 id:org/m object:model owned_by:warmroute parent:<nil> root:org/m] map[created:9.466848e+08 id:gpt-4 object:model owned_by:warmroute parent:<nil> root:org/m]] object:list]" {
			t.Errorf("got %d %s", code, body)
		}
		if code, body := get("/v1/models/org/m"); code != 200 || !strings.Contains(body, "id:org/m") {
			t.Errorf("got %d %s", code, body)
		}
		if rec := r.last(); rec.Status != 200 || rec.Outcome() != "served" {
			t.Errorf("recorded %+v", rec)
		}
		r.idle()
	})
}

func TestASCIIJSON(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		got := string(asciiJSON([]byte(in)))
		if got != want {
			t.Errorf("%s becomes %s; want %s", in, got, want)
		}
		var before, after any
		if json.Unmarshal([]byte(in), &before) != nil || json.Unmarshal([]byte(got), &after) != nil || before != after {
			t.Errorf("%s reads back as %v; want %v", got, after, before)
		}
	}
	f(`"plain"`, `"plain"`)
	f(`"通义"`, `"\u901a\u4e49"`)
	f(`"é🙂"`, `"\u00e9\ud83d\ude42"`)
}
