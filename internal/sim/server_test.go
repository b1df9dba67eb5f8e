package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
		var role strings.Builder
		for stream.Next() {
			last = stream.Current()
			for _, ch := range last.Choices {
				role.WriteString(ch.Delta.Role)
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
		if role.String() != "assistant" || len(at) != 5 || last.Usage.CompletionTokens != 5 || len(last.Choices) != 0 || n < 3000 {
			t.Fatalf("role %q, %d content chunks, last chunk %+v", role.String(), len(at), last)
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

func TestServer_StreamOptions(t *testing.T) {
	inBubble(t, ServerOptions{}, func(t *testing.T, g *rig) {
		f := func(options string, wantUsage, wantChoices int) {
			t.Helper()
			_, body := g.post("/v1/chat/completions",
				`{"messages":[{"role":"user","content":"x"}],"max_tokens":3,"ignore_eos":true,"n":2,"stream":true`+options+`}`)
			if got := strings.Count(body, `"usage":{`); got != wantUsage {
				t.Errorf("%s: %d chunks with usage; want %d in\n%s", options, got, wantUsage, body)
			}
			if got := strings.Count(body, `"choices":[{`); got != wantChoices || !strings.HasSuffix(body, "data: [DONE]\n\n") {
				t.Errorf("%s: %d chunks with choices; want %d in\n%s", options, got, wantChoices, body)
			}
		}
		f(``, 0, 8) // a role and 3 tokens for each choice
		f(`,"stream_options":{"include_usage":false}`, 0, 8)
		f(`,"stream_options":{"include_usage":true}`, 1, 8)
		f(`,"stream_options":{}`, 1, 8)
		f(`,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`, 9, 8)
	})
}

func TestServer_ForceUsage(t *testing.T) {
	inBubble(t, ServerOptions{ForceUsage: true}, func(t *testing.T, g *rig) {
		_, body := g.post("/v1/completions", `{"prompt":"x","max_tokens":3,"stream":true,"stream_options":{"include_usage":false}}`)
		if !strings.Contains(body, `"choices":[],"usage":{"prompt_tokens":2,`) {
			t.Errorf("no usage in\n%s", body)
		}
	})
}

// Several prompts of one request count their tokens once each, whatever n is, and the second finds the first in the cache.
func TestServer_UsageOfSeveralPrompts(t *testing.T) {
	inBubble(t, ServerOptions{}, func(t *testing.T, g *rig) {
		var one, two completionAnswer
		prompt := `"` + strings.Repeat("part ", 99) + `"`
		g.postInto("/v1/completions", `{"prompt":`+prompt+`,"n":3,"max_tokens":5,"ignore_eos":true}`, &one)
		g.postInto("/v1/completions", `{"prompt":[`+prompt+`,`+prompt+`],"n":2,"max_tokens":5,"ignore_eos":true}`, &two)
		a, b := one.Usage.(map[string]any), two.Usage.(map[string]any)
		if n := a["prompt_tokens"].(float64); n < 100 || b["prompt_tokens"] != 2*n || a["completion_tokens"] != 15.0 || b["completion_tokens"] != 20.0 {
			t.Errorf("usage %v and %v", a, b)
		}
		if d, ok := b["prompt_tokens_details"].(map[string]any); !ok || d["cached_tokens"] != 192.0 {
			t.Errorf("second usage %v; want 96 cached tokens for each prompt", b)
		}
	})
}

// Arrivals during a step enter the next one, and a second request shares the step of the first.
func TestServer_Batching(t *testing.T) {
	inBubble(t, ServerOptions{}, func(t *testing.T, g *rig) {
		ask := func(n int, done chan<- time.Duration) {
			begin := time.Now()
			g.post("/v1/completions", `{"prompt":"`+strings.Repeat("word ", n)+`","max_tokens":1}`)
			done <- time.Since(begin)
		}
		a, b := make(chan time.Duration, 1), make(chan time.Duration, 1)
		go ask(7000, a)
		time.Sleep(10 * time.Millisecond)
		go ask(10, b)
		first, second := <-a, <-b
		p := g.s.engine.Profile()
		step := p.StepMS(Load{Prefill: 11, PrefillPairs: 60.5})
		want := first + time.Duration(step*1e6) - 10*time.Millisecond
		if d := second - want; d < -time.Millisecond || d > time.Millisecond {
			t.Errorf("the short one took %v behind the long one's %v; want %v", second, first, want)
		}
	})
}
