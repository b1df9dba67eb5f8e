package sim

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestServer_HeadersAndInfo(t *testing.T) {
	inBubble(t, ServerOptions{Adapters: []string{"lora"}, MaxBody: 1 << 20}, func(t *testing.T, g *rig) {
		body := `{"messages":[{"role":"user","content":"x"}],"max_tokens":1}`
		resp, _ := g.post("/v1/chat/completions", body)
		sum := sha256.Sum256([]byte(body))
		if resp.Header.Get(HeaderBodySHA256) != hex.EncodeToString(sum[:]) || resp.Header.Get(HeaderReplica) != "r0" {
			t.Errorf("headers %v", resp.Header)
		}
		var models struct{ Data []modelCard }
		_, text := g.get("/v1/models")
		if err := json.Unmarshal([]byte(text), &models); err != nil {
			t.Fatal(err)
		}
		if len(models.Data) != 2 || *models.Data[0].MaxModelLen != 131_072 || models.Data[1].Parent == nil || *models.Data[1].Parent != "m" {
			t.Errorf("models %s", text)
		}
		f := func(path string, status int, want string) {
			t.Helper()
			resp, text := g.get(path)
			if resp.StatusCode != status || strings.TrimSpace(text) != want {
				t.Errorf("%s: %d %q; want %d %q", path, resp.StatusCode, text, status, want)
			}
		}
		f("/health", 200, "")
		f("/ping", 200, "")
		f("/version", 200, `{"version":"`+EngineVersion+`"}`)
		f("/load", 200, `{"server_load":0}`)
		f("/nowhere", 404, `{"error":{"message":"Not Found","type":"Not Found","param":null,"code":404}}`)
		f("/sim/restart", 404, `{"error":{"message":"Not Found","type":"Not Found","param":null,"code":404}}`)
		var tokens struct{ Tokens []TokenID }
		g.postInto("/tokenize", `{"prompt":"Grüße, 你好","add_special_tokens":false}`, &tokens)
		raw, _ := json.Marshal(tokens)
		var back struct{ Prompt string }
		g.postInto("/detokenize", strings.ToLower(string(raw)), &back)
		if back.Prompt != "Grüße, 你好" {
			t.Errorf("detokenised %q", back.Prompt)
		}
		if resp, _ := g.post("/v1/chat/completions", strings.Repeat("x", 1<<20+1)); resp.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("body over the limit: %d", resp.StatusCode)
		}
	})
}

// metric returns the value of a series of GET /metrics.
func (g *rig) metric(series string) float64 {
	g.t.Helper()
	_, text := g.get("/metrics")
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			var v float64
			if err := json.Unmarshal([]byte(rest), &v); err != nil {
				g.t.Fatal(err)
			}
			return v
		}
	}
	g.t.Errorf("no series %s in\n%s", series, text)
	return 0
}

func TestServer_Metrics(t *testing.T) {
	inBubble(t, ServerOptions{Adapters: []string{"lora"}}, func(t *testing.T, g *rig) {
		body := `{"messages":[{"role":"user","content":"` + strings.Repeat("again ", 100) + `"}],"max_tokens":10,"ignore_eos":true}`
		g.cached(body)
		n := g.cached(body)
		f := func(name, labels string, want float64) {
			t.Helper()
			if labels != "" {
				labels = "," + labels
			}
			if got := g.metric("vllm:" + name + `{engine="0",model_name="m"` + labels + `}`); got != want {
				t.Errorf("%s is %v; want %v", name, got, want)
			}
		}
		u := g.s.Stats()
		f("num_requests_running", "", 0)
		f("num_requests_waiting", "", 0)
		f("num_requests_waiting_by_reason", `reason="capacity"`, 0)
		f("kv_cache_usage_perc", "", 0)
		f("num_preemptions_total", "", 0)
		f("prompt_tokens_total", "", float64(u.PromptTokens))
		f("prompt_tokens_cached_total", "", float64(n))
		f("prompt_tokens_by_source_total", `source="local_cache_hit"`, float64(n))
		f("prompt_tokens_by_source_total", `source="local_compute"`, float64(u.PromptTokens)-float64(n))
		f("generation_tokens_total", "", 20)
		f("prefix_cache_queries_total", "", float64(u.PromptTokens))
		f("prefix_cache_hits_total", "", float64(n))
		f("time_to_first_token_seconds_count", "", 2)
		f("inter_token_latency_seconds_count", "", 18)
		f("e2e_request_latency_seconds_count", "", 2)
		if got := g.metric(`vllm:request_success_total{engine="0",finished_reason="length",model_name="m"}`); got != 2 {
			t.Errorf("%v requests ended by length; want 2", got)
		}
		_, text := g.get("/metrics")
		for _, want := range []string{`block_size="16"`, `num_gpu_blocks="26250"`, `enable_prefix_caching="True"`, "vllm:lora_requests_info{", "# TYPE vllm:cache_config_info gauge"} {
			if !strings.Contains(text, want) {
				t.Errorf("no %s in\n%s", want, text)
			}
		}
	})
}

func TestDecadeBuckets(t *testing.T) {
	if d := cmp.Diff([]float64{1, 2, 5, 10, 20, 50, 100}, decadeBuckets(100)); d != "" {
		t.Error(d)
	}
}
