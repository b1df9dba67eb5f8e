package sim

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/warmroute/warmroute/internal/testkit"
)

// rig is a server behind a pipe network inside a synctest bubble.
type rig struct {
	t      *testing.T
	s      *Server
	client *http.Client
	sdk    openai.Client
}

// inBubble runs f with a server for it. Everything has ended when it returns.
func inBubble(t *testing.T, o ServerOptions, f func(*testing.T, *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		if o.Model == "" {
			o.Model = "m"
		}
		o.Replica = "r0"
		s := NewServer(o)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := s.Run(ctx); err != nil {
				t.Error(err)
			}
		}()
		net := testkit.NewNetwork()
		stop := net.Serve(t, "sim:80", s)
		transport := &http.Transport{DialContext: net.DialContext}
		client := &http.Client{Transport: transport}
		f(t, &rig{t: t, s: s, client: client, sdk: openai.NewClient(
			option.WithBaseURL("http://sim:80/v1"), option.WithAPIKey("k"), option.WithHTTPClient(client), option.WithMaxRetries(0))})
		stop()
		cancel()
		<-done
		transport.CloseIdleConnections()
		s.handlers.Wait()
		time.Sleep(time.Second) // net/http lingers after a body over the limit
	})
}

func (g *rig) post(path, body string) (*http.Response, string) {
	g.t.Helper()
	resp, err := g.client.Post("http://sim:80"+path, "application/json", strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	return resp, g.read(resp)
}

func (g *rig) get(path string) (*http.Response, string) {
	g.t.Helper()
	resp, err := g.client.Get("http://sim:80" + path)
	if err != nil {
		g.t.Fatal(err)
	}
	return resp, g.read(resp)
}

func (g *rig) read(resp *http.Response) string {
	g.t.Helper()
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	return string(b)
}

func (g *rig) postInto(path, body string, v any) {
	g.t.Helper()
	resp, text := g.post(path, body)
	if resp.StatusCode != http.StatusOK {
		g.t.Fatalf("%s: %d %s", path, resp.StatusCode, text)
	}
	if err := json.Unmarshal([]byte(text), v); err != nil {
		g.t.Fatal(err)
	}
}

func chatParams(content string, max int64) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: "m", MaxTokens: openai.Int(max),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(content)},
	}
}

func TestServer_ChatSDK(t *testing.T) {
	inBubble(t, ServerOptions{}, func(t *testing.T, g *rig) {
		long := strings.Repeat("A long shared beginning. ", 400)
		got, err := g.sdk.Chat.Completions.New(t.Context(), chatParams(long, 30))
		if err != nil {
			t.Fatal(err)
		}
		u := got.Usage
		if u.CompletionTokens != 30 || u.TotalTokens != u.PromptTokens+30 || u.PromptTokens < 2000 || u.PromptTokensDetails.CachedTokens != 0 {
			t.Errorf("usage %+v", u)
		}
		if got.Choices[0].FinishReason != "length" || got.Choices[0].Message.Role != "assistant" || got.Choices[0].Message.Content == "" {
			t.Errorf("choice %+v", got.Choices[0])
		}
		again, err := g.sdk.Chat.Completions.New(t.Context(), chatParams(long, 30))
		if err != nil {
			t.Fatal(err)
		}
		if again.Choices[0].Message.Content != got.Choices[0].Message.Content {
			t.Error("the same prompt has another answer")
		}
		if want := (u.PromptTokens - 1) / 16 * 16; again.Usage.PromptTokensDetails.CachedTokens != want {
			t.Errorf("%d cached; want %d", again.Usage.PromptTokensDetails.CachedTokens, want)
		}
	})
}

// Turn 2 finds turn 1's prompt and its answer in the cache.
func TestServer_TurnTwoHitsTheAnswer(t *testing.T) {
	inBubble(t, ServerOptions{}, func(t *testing.T, g *rig) {
		params := chatParams(strings.Repeat("Please go on. ", 50), 400)
		first, err := g.sdk.Chat.Completions.New(t.Context(), params)
		if err != nil {
			t.Fatal(err)
		}
		params.Messages = append(params.Messages, first.Choices[0].Message.ToParam(), openai.UserMessage("And then?"))
		second, err := g.sdk.Chat.Completions.New(t.Context(), params)
		if err != nil {
			t.Fatal(err)
		}
		want := (first.Usage.TotalTokens - 1) / 16 * 16
		if first.Usage.CompletionTokens < 32 {
			t.Fatalf("answer of %d tokens is too short for the test", first.Usage.CompletionTokens)
		}
		if got := second.Usage.PromptTokensDetails.CachedTokens; got != want {
			t.Errorf("%d cached; want %d", got, want)
		}
	})
}

// The first token arrives when the engine says, the others at its pace, and the chunks come in vLLM's order.
func TestServer_StreamTiming(t *testing.T) {
	inBubble(t, ServerOptions{Speed: 10}, func(t *testing.T, g *rig) {
		params := chatParams(strings.Repeat("word ", 3000), 5)
		params.StreamOptions.IncludeUsage = openai.Bool(true)
		params.SetExtraFields(map[string]any{"ignore_eos": true})
		p := g.s.engine.Profile()
		begin := time.Now()
		stream := g.sdk.Chat.Completions.NewStreaming(t.Context(), params)
		var text strings.Builder
		var at []time.Duration
		var last openai.ChatCompletionChunk
		role := ""
		for stream.Next() {
			last = stream.Current()
			for _, ch := range last.Choices {
				role += ch.Delta.Role
				text.WriteString(ch.Delta.Content)
				if ch.Delta.Content != "" {
					at = append(at, time.Since(begin))
				}
			}
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		n := int(last.Usage.PromptTokens)
		if role != "assistant" || len(at) != 5 || last.Usage.CompletionTokens != 5 || len(last.Choices) != 0 || n < 3000 {
			t.Fatalf("role %q, %d content chunks, last chunk %+v", role, len(at), last)
		}
		prefill := p.StepMS(Load{Prefill: n, PrefillPairs: float64(n) * float64(n) / 2})
		decode := p.StepMS(Load{Decodes: 1, Context: n + 1})
		for i, got := range at {
			want := (prefill + float64(i)*decode) / 10
			if ms := float64(got) / 1e6; ms < want || ms > want+.05 {
				t.Errorf("token %d after %.3f ms; want %.3f", i, ms, want)
			}
		}
		params.StreamOptions = openai.ChatCompletionStreamOptionsParam{}
		whole, err := g.sdk.Chat.Completions.New(t.Context(), params)
		if err != nil || whole.Choices[0].Message.Content != text.String() {
			t.Errorf("stream said %q; whole answer %v", text.String(), err)
		}
	})
}

func TestServer_StreamBytes(t *testing.T) {
	inBubble(t, ServerOptions{}, func(t *testing.T, g *rig) {
		req, err := http.NewRequest("POST", "http://sim:80/v1/chat/completions", strings.NewReader(
			`{"model":"m","messages":[{"role":"user","content":"Hi"}],"max_tokens":2,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Request-Id", "abc")
		resp, err := g.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body := g.read(resp)
		if ct := resp.Header.Get("Content-Type"); ct != "text/event-stream; charset=utf-8" {
			t.Errorf("content type %q", ct)
		}
		testkit.Golden(t, "chat_stream.txt", stable(body))
	})
}

// stable replaces what depends on the time.
func stable(body string) []byte {
	return bytes.ReplaceAll([]byte(body), []byte(`"created":946684800`), []byte(`"created":0`))
}

func TestServer_WholeBytes(t *testing.T) {
	inBubble(t, ServerOptions{Adapters: []string{"lora"}}, func(t *testing.T, g *rig) {
		f := func(golden, path, body string) {
			t.Helper()
			req, err := http.NewRequest("POST", "http://sim:80"+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Request-Id", "abc")
			resp, err := g.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			testkit.Golden(t, golden+".txt", stable(g.read(resp)))
		}
		f("chat_whole", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"Hi"}],"max_tokens":3,"ignore_eos":true}`)
		f("completion_whole", "/v1/completions", `{"model":"m","prompt":"Hi","max_tokens":3,"ignore_eos":true,"return_token_ids":true}`)
		f("completion_stream", "/v1/completions", `{"model":"lora","prompt":"Hi","max_tokens":2,"ignore_eos":true,"stream":true,"echo":true}`)
		f("response_whole", "/v1/responses", `{"model":"m","input":"Hi","max_output_tokens":3}`)
		f("response_stream", "/v1/responses", `{"model":"m","input":"Hi","max_output_tokens":2,"stream":true}`)
		f("embedding", "/v1/embeddings", `{"model":"m","input":["Hi","Hi"],"dimensions":4}`)
		f("rerank", "/v1/rerank", `{"model":"m","query":"warm cache","documents":["cold start","a warm cache"],"top_n":1}`)
		f("score", "/v1/score", `{"model":"m","text_1":"warm cache","text_2":["warm cache"]}`)
		f("tokenize", "/tokenize", `{"model":"m","prompt":"Hello world","return_token_strs":true}`)
		f("unknown_model", "/v1/chat/completions", `{"model":"gpt-2","messages":[{"role":"user","content":"Hi"}]}`)
		f("bad_json", "/v1/chat/completions", `{"model":"m",`)
		f("bad_type", "/v1/chat/completions", `{"model":"m","messages":"Hi"}`)
		f("too_long", "/v1/completions", `{"model":"m","prompt":"Hi","max_tokens":1000000}`)
	})
}

func TestServer_ErrorsSDK(t *testing.T) {
	inBubble(t, ServerOptions{}, func(t *testing.T, g *rig) {
		f := func(p openai.ChatCompletionNewParams, status int, want string) {
			t.Helper()
			_, err := g.sdk.Chat.Completions.New(t.Context(), p)
			e, ok := errors.AsType[*openai.Error](err)
			if !ok || e.StatusCode != status || !strings.Contains(e.Message, want) {
				t.Errorf("error %v; want %d %q", err, status, want)
			}
		}
		p := chatParams("x", 1)
		p.Model = "other"
		f(p, 404, "The model `other` does not exist.")
		f(chatParams("x", 200_000), 400, "maximum context length is 131072 tokens")
		f(chatParams("x", 0), 400, "max_tokens must be at least 1")
		p = chatParams("x", 1)
		p.N = openai.Int(0)
		f(p, 400, "n must be at least 1")
		p = chatParams("x", 1)
		p.StreamOptions.IncludeUsage = openai.Bool(true)
		f(p, 400, "stream=True")
		p = chatParams("x", 1)
		p.Messages = nil
		f(p, 400, "non-empty")
	})
}

func TestServer_CompletionsSDK(t *testing.T) {
	inBubble(t, ServerOptions{}, func(t *testing.T, g *rig) {
		params := openai.CompletionNewParams{
			Model:  "m",
			Prompt: openai.CompletionNewParamsPromptUnion{OfArrayOfStrings: []string{"one", "two"}},
			N:      openai.Int(2), MaxTokens: openai.Int(4),
		}
		got, err := g.sdk.Completions.New(t.Context(), params)
		if err != nil {
			t.Fatal(err)
		}
		texts := map[string]bool{}
		for i, ch := range got.Choices {
			if ch.Index != int64(i) {
				t.Errorf("choice %d has index %d", i, ch.Index)
			}
			texts[ch.Text] = true
		}
		if len(texts) != 4 || got.Usage.PromptTokens != 4 {
			t.Errorf("%d different texts, usage %+v", len(texts), got.Usage)
		}
		stream := g.sdk.Completions.NewStreaming(t.Context(), params)
		streamed := make([]string, 4)
		for stream.Next() {
			for _, ch := range stream.Current().Choices {
				streamed[ch.Index] += ch.Text
			}
		}
		for i, text := range streamed {
			if text != got.Choices[i].Text {
				t.Errorf("choice %d streams %q; whole %q", i, text, got.Choices[i].Text)
			}
		}

		var asText, asIDs completionAnswer
		g.postInto("/v1/completions", `{"prompt":"one","max_tokens":4,"return_token_ids":true}`, &asText)
		raw, _ := json.Marshal(asText.Choices[0].PromptTokenIDs)
		g.postInto("/v1/completions", `{"prompt":`+string(raw)+`,"max_tokens":4}`, &asIDs)
		if asText.Choices[0].Text != asIDs.Choices[0].Text {
			t.Errorf("prompt as token IDs gives another answer")
		}
	})
}

func TestServer_Stop(t *testing.T) {
	inBubble(t, ServerOptions{}, func(t *testing.T, g *rig) {
		var got chatAnswer
		g.postInto("/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"max_tokens":100,"ignore_eos":true,"stop":"."}`, &got)
		ch := got.Choices[0]
		if ch.FinishReason != "stop" || ch.StopReason == nil || *ch.StopReason != "." || strings.Contains(ch.Message.Content, ".") || got.Usage.CompletionTokens > 20 {
			t.Errorf("%+v, usage %+v", ch, got.Usage)
		}
	})
}

// cached asks for a chat and returns the cached tokens, -1 for null.
func (g *rig) cached(body string) int {
	g.t.Helper()
	var got struct {
		Usage usage `json:"usage"`
	}
	g.postInto("/v1/chat/completions", body, &got)
	if got.Usage.Details == nil {
		return -1
	}
	return got.Usage.Details.CachedTokens
}

func TestServer_CachesAreSeparate(t *testing.T) {
	inBubble(t, ServerOptions{Adapters: []string{"lora"}}, func(t *testing.T, g *rig) {
		const tail = `"messages":[{"role":"user","content":"The same long question for everybody, please answer it in a few words and no more than that."}],"max_tokens":1}`
		f := func(head string, want int) {
			t.Helper()
			if got := g.cached(head + tail); got != want {
				t.Errorf("%s: %d cached; want %d", head, got, want)
			}
		}
		f(`{`, -1)
		f(`{`, 48)
		f(`{"model":"lora",`, -1)
		f(`{"model":"lora",`, 48)
		f(`{"cache_salt":"a",`, -1)
		f(`{"cache_salt":"b",`, -1)
		f(`{"cache_salt":"a",`, 48)
		f(`{"tools":[{"type":"function","function":{"name":"f"}}],`, 16) // the first block has the date alone
	})
	inBubble(t, ServerOptions{HidePromptDetails: true}, func(t *testing.T, g *rig) {
		body := `{"messages":[{"role":"user","content":"` + strings.Repeat("again ", 100) + `"}],"max_tokens":1}`
		if a, b := g.cached(body), g.cached(body); a != -1 || b != -1 {
			t.Errorf("%d and %d cached in spite of hidden details", a, b)
		}
	})
}

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
