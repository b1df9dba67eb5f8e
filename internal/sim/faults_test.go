package sim

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// A client that leaves during prefill, and one that leaves in the middle of the stream, give everything back.
func TestServer_ClientLeaves(t *testing.T) {
	inBubble(t, ServerOptions{}, func(t *testing.T, g *rig) {
		f := func(stream bool, after time.Duration) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), after)
			defer cancel()
			params := chatParams(strings.Repeat("many words ", 10_000), 20_000)
			params.SetExtraFields(map[string]any{"ignore_eos": true})
			if stream {
				s := g.sdk.Chat.Completions.NewStreaming(ctx, params)
				for s.Next() {
				}
				if !errors.Is(s.Err(), context.DeadlineExceeded) {
					t.Errorf("stream ended with %v", s.Err())
				}
			} else if _, err := g.sdk.Chat.Completions.New(ctx, params); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("request ended with %v", err)
			}
			if s := g.s.Stats(); s.Running != 1 {
				t.Errorf("%d running before the end of the step", s.Running)
			}
			time.Sleep(time.Second)
			if s := g.s.Stats(); s.Running != 0 || s.Waiting != 0 || s.UsedBlocks != 0 {
				t.Errorf("a second later: %+v", s)
			}
			if _, text := g.get("/load"); strings.TrimSpace(text) != `{"server_load":0}` {
				t.Errorf("load %s", text)
			}
		}
		f(true, 100*time.Millisecond)
		f(true, 5*time.Second)
		f(false, 100*time.Millisecond)
		f(false, 5*time.Second)
	})
}

func TestServer_Restart(t *testing.T) {
	inBubble(t, ServerOptions{Admin: true}, func(t *testing.T, g *rig) {
		body := `{"messages":[{"role":"user","content":"` + strings.Repeat("again ", 100) + `"}],"max_tokens":1}`
		g.cached(body)
		if g.cached(body) < 100 {
			t.Fatal("not warm")
		}
		broken := make(chan error)
		go func() {
			s := g.sdk.Chat.Completions.NewStreaming(t.Context(), chatParams("x", 10_000))
			for s.Next() {
			}
			broken <- s.Err()
		}()
		time.Sleep(200 * time.Millisecond)
		before := g.metric("process_start_time_seconds")
		g.post("/sim/restart?down=10s", "")
		if err := <-broken; err == nil {
			t.Error("the stream under way ended well")
		}
		time.Sleep(5 * time.Second)
		if _, err := g.client.Get("http://sim:80/health"); err == nil {
			t.Error("a dead process answered")
		}
		time.Sleep(6 * time.Second)
		if got := g.cached(body); got != -1 {
			t.Errorf("%d cached after restart", got)
		}
		if got := g.metric("process_start_time_seconds"); got < before+10 {
			t.Errorf("process started at %v, before at %v", got, before)
		}
		if got := g.metric(`vllm:prompt_tokens_total{engine="0",model_name="m"}`); got > 200 {
			t.Errorf("%v prompt tokens counted after restart", got)
		}
	})
}

func TestServer_KVTokens(t *testing.T) {
	inBubble(t, ServerOptions{Admin: true}, func(t *testing.T, g *rig) {
		g.post("/sim/kv_tokens?tokens=3200", "")
		if got := g.s.Stats().TotalBlocks; got != 200 {
			t.Errorf("%d blocks", got)
		}
		resp, text := g.post("/v1/completions", `{"prompt":"`+strings.Repeat("word ", 5000)+`"}`)
		if resp.StatusCode != 400 || !strings.Contains(text, "maximum context length") {
			t.Errorf("%d %s", resp.StatusCode, text)
		}
		if resp, _ := g.post("/sim/kv_tokens?tokens=-1", ""); resp.StatusCode != 400 {
			t.Errorf("negative capacity: %d", resp.StatusCode)
		}
	})
}

func TestServer_Faults(t *testing.T) {
	inBubble(t, ServerOptions{Admin: true}, func(t *testing.T, g *rig) {
		const whole = `{"messages":[{"role":"user","content":"x"}],"max_tokens":9,"ignore_eos":true}`
		stream := `{"stream":true,` + whole[1:]
		g.post("/sim/faults", `{"error_rate":1,"error_status":503,"retry_after":"7"}`)
		resp, _ := g.post("/v1/chat/completions", whole)
		if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "7" {
			t.Errorf("%d, Retry-After %q", resp.StatusCode, resp.Header.Get("Retry-After"))
		}
		g.s.SetFaults(Faults{ErrorRate: .5})
		failed := 0
		for range 100 {
			if resp, _ := g.post("/v1/chat/completions", whole); resp.StatusCode != 200 {
				failed++
			}
		}
		if failed < 30 || failed > 70 {
			t.Errorf("%d of 100 failed", failed)
		}
		g.s.SetFaults(Faults{ErrorEvent: true})
		if resp, text := g.post("/v1/chat/completions", whole); resp.StatusCode != 200 || !strings.HasPrefix(text, `{"error":`) {
			t.Errorf("%d %s", resp.StatusCode, text)
		}
		if resp, text := g.post("/v1/chat/completions", stream); resp.StatusCode != 200 || !strings.HasPrefix(text, `data: {"error":`) {
			t.Errorf("%d %s", resp.StatusCode, text)
		}
		g.s.SetFaults(Faults{EndAfter: 3})
		if _, text := g.post("/v1/chat/completions", stream); strings.Contains(text, "[DONE]") || strings.Count(text, "data: ") != 4 {
			t.Errorf("ended stream: %s", text)
		}
		g.s.SetFaults(Faults{CutAfter: 3})
		resp, err := g.client.Post("http://sim:80/v1/chat/completions", "application/json", strings.NewReader(stream))
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(resp.Body); err == nil || bytes.Count(text, []byte("data: ")) != 4 {
			t.Errorf("cut stream: %v, %s", err, text)
		}
		resp.Body.Close()
		g.s.SetFaults(Faults{Unhealthy: true, ProbeDelay: 3 * time.Second})
		begin := time.Now()
		if resp, _ := g.get("/health"); resp.StatusCode != 503 || time.Since(begin) != 3*time.Second {
			t.Errorf("health %d after %v", resp.StatusCode, time.Since(begin))
		}
	})
}

func TestServer_HangAndSlow(t *testing.T) {
	inBubble(t, ServerOptions{}, func(t *testing.T, g *rig) {
		const body = `{"messages":[{"role":"user","content":"x"}],"max_tokens":10,"ignore_eos":true}`
		took := func() time.Duration {
			begin := time.Now()
			g.post("/v1/chat/completions", body)
			return time.Since(begin)
		}
		usual := took()
		g.s.SetFaults(Faults{Slow: 10})
		if got := took(); got < 9*usual || got > 10*usual {
			t.Errorf("slowed down tenfold it took %v; usually %v", got, usual)
		}
		g.s.SetFaults(Faults{Hang: true})
		go func() {
			time.Sleep(time.Minute)
			g.s.SetFaults(Faults{})
		}()
		if got := took(); got < time.Minute || got > time.Minute+usual+time.Millisecond {
			t.Errorf("hung for a minute it took %v", got)
		}
	})
}

func TestServer_Freeze(t *testing.T) {
	inBubble(t, ServerOptions{Admin: true}, func(t *testing.T, g *rig) {
		g.post("/sim/faults", `{"freeze":true}`)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for _, path := range []string{"/health", "/metrics", "/v1/models"} {
			req, err := http.NewRequestWithContext(ctx, "GET", "http://sim:80"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := g.client.Do(req); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s of a frozen server: %v", path, err)
			}
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			time.Sleep(time.Second)
			g.post("/sim/faults", `{}`)
		})
		if resp, _ := g.get("/health"); resp.StatusCode != 200 {
			t.Errorf("thawed server: %d", resp.StatusCode)
		}
		wg.Wait()
	})
}
