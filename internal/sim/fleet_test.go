package sim

import (
	"bufio"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"go.uber.org/goleak"
)

// startFleet runs n replicas on loopback. The returned function stops them and fails on any goroutine left.
func startFleet(t *testing.T, n int, grace time.Duration, o ServerOptions) (*Fleet, *http.Client, func()) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	f, err := Listen("127.0.0.1:0", n, o)
	if err != nil {
		t.Fatal(err)
	}
	f.Grace = grace
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	transport := &http.Transport{}
	return f, &http.Client{Transport: transport}, func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		transport.CloseIdleConnections()
		if err := goleak.Find(before); err != nil {
			t.Error(err)
		}
	}
}

func TestFleet_ServesTheSDK(t *testing.T) {
	f, client, stop := startFleet(t, 3, time.Second, ServerOptions{Model: "m", Speed: 1000})
	defer stop()
	var texts []string
	for i, url := range f.URLs() {
		sdk := openai.NewClient(option.WithBaseURL(url+"/v1"), option.WithAPIKey("k"), option.WithHTTPClient(client))
		var resp *http.Response
		chat, err := sdk.Chat.Completions.New(t.Context(), chatParams("hello", 20), option.WithResponseInto(&resp))
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, chat.Choices[0].Message.Content)
		if got, want := resp.Header.Get(HeaderReplica), f.Replicas()[i].Server.Replica(); got != want || got != "sim-"+string(rune('0'+i)) {
			t.Errorf("replica %q; want %q", got, want)
		}
		models, err := sdk.Models.List(t.Context())
		if err != nil || models.Data[0].ID != "m" {
			t.Errorf("models %+v, %v", models, err)
		}
		emb, err := sdk.Embeddings.New(t.Context(), openai.EmbeddingNewParams{
			Model: "m", Input: openai.EmbeddingNewParamsInputUnion{OfString: openai.String("warm cache")}, Dimensions: openai.Int(8),
		})
		if err != nil || len(emb.Data[0].Embedding) != 8 || emb.Usage.PromptTokens != 3 {
			t.Errorf("embedding %+v, %v", emb, err)
		}
		answer, err := sdk.Responses.New(t.Context(), responses.ResponseNewParams{
			Model: "m", Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("hello")}, MaxOutputTokens: openai.Int(20),
		})
		if err != nil || answer.OutputText() != texts[0] || answer.Usage.OutputTokens != 20 {
			t.Errorf("response %q, %v; want %q", answer.OutputText(), err, texts[0])
		}
		checkResponseStream(t, sdk, texts[0])
	}
	if len(slices.Compact(texts)) != 1 {
		t.Errorf("replicas answer differently: %q", texts)
	}
}

func checkResponseStream(t *testing.T, sdk openai.Client, want string) {
	t.Helper()
	stream := sdk.Responses.NewStreaming(t.Context(), responses.ResponseNewParams{
		Model: "m", Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("hello")}, MaxOutputTokens: openai.Int(20),
	})
	var text strings.Builder
	last := ""
	for stream.Next() {
		ev := stream.Current()
		last = ev.Type
		if ev.Type == "response.output_text.delta" {
			text.WriteString(ev.Delta)
		}
	}
	if stream.Err() != nil || text.String() != want || last != "response.incomplete" {
		t.Errorf("streamed %q, last event %s, %v", text.String(), last, stream.Err())
	}
}

// Within the grace period a stream under way ends well; the listener is closed at once.
func TestFleet_GracefulStop(t *testing.T) {
	f, client, stop := startFleet(t, 1, 10*time.Second, ServerOptions{Model: "m", Speed: 10})
	url := f.URLs()[0]
	resp, err := client.Post(url+"/v1/completions", "application/json",
		strings.NewReader(`{"prompt":"x","max_tokens":400,"ignore_eos":true,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan string)
	go func() {
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		read <- string(b)
	}()
	var text string
	var wg sync.WaitGroup
	wg.Go(func() { text = <-read })
	stop()
	wg.Wait()
	if !strings.HasSuffix(text, "data: [DONE]\n\n") {
		t.Errorf("stream ended with %q", text[max(0, len(text)-80):])
	}
	if _, err := client.Get(url + "/health"); err == nil {
		t.Error("a stopped fleet answers")
	}
}

// Without grace requests under way are cut, and nothing is left of them.
func TestFleet_HardStop(t *testing.T) {
	f, client, stop := startFleet(t, 2, 0, ServerOptions{Model: "m"})
	var wg sync.WaitGroup
	for _, url := range slices.Repeat(f.URLs(), 3) {
		resp, err := client.Post(url+"/v1/completions", "application/json",
			strings.NewReader(`{"prompt":"x","max_tokens":100000,"ignore_eos":true,"stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer resp.Body.Close()
			if _, err := io.ReadAll(resp.Body); err == nil {
				t.Error("a cut stream ended well")
			}
		})
	}
	stop()
	wg.Wait()
}

// Clients that leave at any moment, restarts and changes of capacity at once: nothing stays behind.
func TestFleet_Storm(t *testing.T) {
	f, client, stop := startFleet(t, 2, time.Second, ServerOptions{Model: "m", Speed: 200, Engine: Options{KVTokens: 20_000}})
	var wg sync.WaitGroup
	for worker := range uint64(8) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(worker, 0))
			for range 40 {
				stormRequest(t, client, f.URLs()[rng.IntN(2)], rng)
			}
		})
	}
	wg.Go(func() {
		for i := range 10 {
			s := f.Replicas()[i%2].Server
			s.SetKVTokens(10_000 + 2_000*i)
			if i%5 == 4 {
				s.Restart(0)
			}
			_ = s.Stats()
		}
	})
	wg.Wait()
	for _, r := range f.Replicas() {
		s, left := atRest(r.Server)
		if s.Running != 0 || s.Waiting != 0 || s.UsedBlocks != 0 || left != 0 {
			t.Errorf("%s at rest keeps %d sequences: %+v", r.Server.Replica(), left, s)
		}
	}
	stop()
}

// atRest waits until no handler runs and aborts have taken effect, a second at most, and returns the state and the sequences left.
func atRest(s *Server) (Stats, int) {
	for range 100 {
		s.mu.Lock()
		serving := s.serving
		s.mu.Unlock()
		if serving == 0 && s.Stats().Running == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	st := s.Stats()
	s.mu.Lock()
	defer s.mu.Unlock()
	return st, len(s.sequences)
}

func stormRequest(t *testing.T, client *http.Client, url string, rng *rand.Rand) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rng.IntN(30))*time.Millisecond)
	defer cancel()
	body := `{"prompt":"` + strings.Repeat("storm ", 1+rng.IntN(3000)) + `","max_tokens":200,"n":2`
	if rng.IntN(2) == 0 {
		body += `,"stream":true`
	}
	req, err := http.NewRequestWithContext(ctx, "POST", url+"/v1/completions", strings.NewReader(body+"}"))
	if err != nil {
		t.Error(err)
		return
	}
	resp, err := client.Do(req)
	if err != nil {
		return // left before the headers, or the engine restarted
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body) // may be cut
}

func TestListen_Errors(t *testing.T) {
	f := func(addr string) {
		t.Helper()
		if _, err := Listen(addr, 1, ServerOptions{Model: "m"}); err == nil {
			t.Errorf("%s: no error", addr)
		}
	}
	f("nowhere")
	f("127.0.0.1:x")
	f("256.0.0.1:0")
}

// One request in full: parse, render, tokenise, simulate, stream 16 tokens of a prompt of 8k.
func BenchmarkServer(b *testing.B) {
	f := func(name, path, body string) {
		b.Run(name, func(b *testing.B) {
			fleet, err := Listen("127.0.0.1:0", 1, ServerOptions{Model: "m", Speed: 1e6})
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(b.Context())
			var wg sync.WaitGroup
			wg.Go(func() { _ = fleet.Run(ctx) })
			url := fleet.URLs()[0] + path
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				resp, err := http.Post(url, "application/json", strings.NewReader(body))
				if err != nil {
					b.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			cancel()
			wg.Wait()
		})
	}
	content := strings.Repeat(strings.ReplaceAll(strings.ReplaceAll(english, "\n", " "), `"`, "'"), 80)
	f("whole", "/v1/chat/completions", `{"messages":[{"role":"user","content":"`+content+`"}],"max_tokens":16,"ignore_eos":true}`)
	f("stream", "/v1/chat/completions", `{"messages":[{"role":"user","content":"`+content+`"}],"max_tokens":16,"ignore_eos":true,"stream":true}`)
}

// How late tokens reach a client on loopback, in simulated ms at speed 10, of decode steps of about 9 ms.
func BenchmarkServer_Lateness(b *testing.B) {
	f := func(name string, precise bool) {
		b.Run(name, func(b *testing.B) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			var ends []time.Duration
			o := ServerOptions{Model: "m", Speed: 10, Precise: precise}
			o.Engine.OnStep = func(s Step) { ends = append(ends, s.End) }
			s := NewServer(o)
			fleet := NewFleet(Replica{Listener: l, Server: s})
			ctx, cancel := context.WithCancel(b.Context())
			var wg sync.WaitGroup
			wg.Go(func() { _ = fleet.Run(ctx) })
			var late []float64
			for b.Loop() {
				ends = ends[:0]
				resp, err := http.Post(fleet.URLs()[0]+"/v1/completions", "application/json",
					strings.NewReader(`{"prompt":"x","max_tokens":100,"ignore_eos":true,"stream":true}`))
				if err != nil {
					b.Fatal(err)
				}
				var at []time.Duration
				lines := bufio.NewScanner(resp.Body)
				for lines.Scan() {
					if strings.HasPrefix(lines.Text(), "data: {") {
						at = append(at, s.clock.at(time.Now()))
					}
				}
				resp.Body.Close()
				s.mu.Lock()
				for i, v := range at {
					late = append(late, float64(v-ends[i])/1e6)
				}
				s.mu.Unlock()
			}
			slices.Sort(late)
			b.ReportMetric(late[len(late)/2], "p50-ms")
			b.ReportMetric(late[len(late)*99/100], "p99-ms")
			cancel()
			wg.Wait()
		})
	}
	f("precise", true)
	f("timers", false)
}
