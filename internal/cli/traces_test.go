package cli

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/warmroute/warmroute/internal/config"
	"github.com/warmroute/warmroute/internal/sim"
)

// traceDir is where the real traces lie, which are no part of the repository: $WARMROUTE_TRACES, or shared/traces beside a folder
// above. Without them the test is skipped.
func traceDir(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("WARMROUTE_TRACES"); dir != "" {
		return dir
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for range 6 {
		dir = filepath.Dir(dir)
		if at := filepath.Join(dir, "shared", "traces"); exists(at) {
			return at
		}
	}
	t.Skip("no real traces: set WARMROUTE_TRACES to the folder that holds them")
	return ""
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// readTrace calls each with every line of a gzipped JSONL file.
func readTrace[T any](t *testing.T, name string, each func(T)) {
	t.Helper()
	f, err := os.Open(filepath.Join(traceDir(t), name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var v T
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		each(v)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}

// realRig is the gateway as `serve --upstream` builds it, in front of simulated engines on real sockets, and an SDK client.
type realRig struct {
	t       *testing.T
	base    string // URL of the API
	client  openai.Client
	gateway *gateway
	engines []*sim.Server

	mu             sync.Mutex // guards below
	sent, got      map[[sha256.Size]byte]int
	prompt, cached int64 // tokens that the client was told of
}

const realModel = "llama-3.1-8b"

// newRealRig starts n engines that run speed times faster than the hardware they imitate.
func newRealRig(t *testing.T, n int, speed float64) *realRig {
	t.Helper()
	r := &realRig{t: t, sent: map[[sha256.Size]byte]int{}, got: map[[sha256.Size]byte]int{}}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	profile, err := sim.LookupProfile("llama-3.1-8b-1xh100")
	if err != nil {
		t.Fatal(err)
	}
	serve := ServeCmd{Listen: "127.0.0.1:0", AdminListen: "127.0.0.1:0", LogLevel: "error"}
	for i := range n {
		e := sim.NewServer(sim.ServerOptions{Profile: profile, Model: realModel, Speed: speed, Replica: "sim-" + strconv.Itoa(i)})
		r.engines = append(r.engines, e)
		wg.Go(func() { _ = e.Run(ctx) })
		s := httptest.NewServer(r.witness(e))
		t.Cleanup(s.Close)
		serve.Upstream = append(serve.Upstream, s.URL)
	}
	cfg, err := serve.load()
	if err != nil {
		t.Fatal(err)
	}
	addresses := make(chan string, 2)
	w := world{listen: func(ctx context.Context, address string) (net.Listener, error) {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if err == nil {
			addresses <- l.Addr().String()
		}
		return l, err
	}}
	cfg.Server.DrainDelay = 0
	r.gateway, err = newGateway(cfg, func() (*config.Config, error) { return cfg, nil }, w, newSieve(t.Output()))
	if err != nil {
		t.Fatal(err)
	}
	wg.Go(func() {
		if err := r.gateway.run(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Error("gateway:", err)
		}
	})
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		wg.Wait()
	})
	r.base = "http://" + r.dataAddress(addresses) + "/v1/"
	r.client = openai.NewClient(
		option.WithBaseURL(r.base), option.WithAPIKey("client-key"), option.WithMaxRetries(0),
		option.WithHTTPClient(&http.Client{Transport: transport}), option.WithMiddleware(r.noteSent),
	)
	return r
}

// dataAddress waits for the gateway's sockets and for its engines, and returns the one that serves clients.
func (r *realRig) dataAddress(addresses <-chan string) string {
	r.t.Helper()
	deadline := time.After(20 * time.Second)
	var all []string
	for range 2 {
		select {
		case a := <-addresses:
			all = append(all, a)
		case <-deadline:
			r.t.Fatal("the gateway opens no sockets")
		}
	}
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		if m, ok := r.gateway.model(realModel); ok && m.Ready == len(r.engines) {
			tick.Stop()
			break
		}
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatal("the engines do not get ready")
		}
	}
	for _, a := range all {
		resp, err := http.Get("http://" + a + "/v1/models")
		if err != nil {
			continue
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return a
		}
	}
	r.t.Fatal("no address lists models")
	return ""
}

// noteSent counts the bodies that the SDK sends.
func (r *realRig) noteSent(req *http.Request, next option.MiddlewareNext) (*http.Response, error) {
	if req.Body != nil {
		b, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		req.Body.Close()
		req.Body = io.NopCloser(bytes.NewReader(b))
		r.mu.Lock()
		r.sent[sha256.Sum256(b)]++
		r.mu.Unlock()
	}
	return next(req)
}

// witness counts the bodies that reach an engine.
func (r *realRig) witness(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodPost {
			b, err := io.ReadAll(req.Body)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			req.Body = io.NopCloser(bytes.NewReader(b))
			r.mu.Lock()
			r.got[sha256.Sum256(b)]++
			r.mu.Unlock()
		}
		next.ServeHTTP(w, req)
	})
}

// ask sends one chat, streamed on every second call, and returns the answer's text.
func (r *realRig) ask(ctx context.Context, messages any, n int, extra map[string]any) (string, error) {
	raw, err := json.Marshal(messages)
	if err != nil {
		return "", err
	}
	params := openai.ChatCompletionNewParams{Model: realModel, MaxTokens: openai.Int(16)}
	opts := []option.RequestOption{option.WithJSONSet("messages", json.RawMessage(raw))}
	for k, v := range extra {
		opts = append(opts, option.WithJSONSet(k, v))
	}
	var text string
	var usage openai.CompletionUsage
	if n%2 == 0 {
		answer, err := r.client.Chat.Completions.New(ctx, params, opts...)
		if err != nil {
			return "", err
		}
		text, usage = answer.Choices[0].Message.Content, answer.Usage
	} else {
		params.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
		stream := r.client.Chat.Completions.NewStreaming(ctx, params, opts...)
		var acc openai.ChatCompletionAccumulator
		for stream.Next() {
			acc.AddChunk(stream.Current())
		}
		if err := stream.Err(); err != nil {
			return "", err
		}
		if len(acc.Choices) == 0 || acc.Choices[0].FinishReason == "" {
			return "", errors.New("stream without a finish reason")
		}
		text, usage = acc.Choices[0].Message.Content, acc.Usage
	}
	if text == "" || usage.PromptTokens == 0 {
		return "", fmt.Errorf("empty answer %q or no usage %+v", text, usage)
	}
	r.mu.Lock()
	r.prompt += usage.PromptTokens
	r.cached += usage.PromptTokensDetails.CachedTokens
	r.mu.Unlock()
	return text, nil
}

// check compares what the client was told, what the engines count and what the gateway exports.
func (r *realRig) check(requests, failed int) {
	r.t.Helper()
	if failed > 0 {
		r.t.Errorf("%d of %d requests failed", failed, requests)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for sum, n := range r.sent {
		if r.got[sum] != n {
			r.t.Errorf("a body that was sent %d times reached engines %d times byte for byte", n, r.got[sum])
		}
	}
	var prompt, cached int64
	for _, e := range r.engines {
		s := e.Stats()
		prompt += int64(s.PromptTokens)
		cached += int64(s.CachedTokens)
	}
	engines := 100 * float64(cached) / float64(prompt)
	client := 100 * float64(r.cached) / float64(r.prompt)
	actual := 100 * r.metric("warmroute_cached_tokens_total") / r.metric("warmroute_prompt_tokens_reported_total")
	predicted := 100 * r.metric("warmroute_cached_predicted_tokens_total") / r.metric("warmroute_prompt_tokens_total")
	r.t.Log(requests, "requests;",
		fmt.Sprintf("hit rate: engines %.2f %%, told to the client %.2f %%, exported %.2f %%, predicted %.2f %%", engines, client, actual, predicted))
	f := func(name string, rate, within float64) {
		r.t.Helper()
		if d := rate - engines; d < -within || d > within {
			r.t.Errorf("hit rate %s is %.2f %%, the engines count %.2f %%", name, rate, engines)
		}
	}
	f("told to the client", client, 1)
	f("exported", actual, 1)
	f("predicted", predicted, 5) // on average half a block of the match is below the index's grain
}

// metric sums a counter over its labels.
func (r *realRig) metric(name string) float64 {
	r.t.Helper()
	families, err := r.gateway.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue()
		}
	}
	return sum
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// TestRealQuestions asks the questions of two real corpora over their contexts, through the official SDK.
func TestRealQuestions(t *testing.T) {
	f := func(name string) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			type passage struct {
				Context   string   `json:"context"`
				Questions []string `json:"questions"`
			}
			var chats [][]message
			readTrace(t, name, func(p passage) {
				for _, q := range p.Questions {
					system := "Answer from the passage and from nothing else.\n\n" + strings.Repeat(p.Context+"\n\n", 4)
					chats = append(chats, []message{{"system", system}, {"user", q}})
				}
			})
			r := newRealRig(t, 4, 40)
			failed := r.run(len(chats), 8, func(i int) error {
				_, err := r.ask(t.Context(), chats[i], i, nil)
				return err
			})
			r.check(len(chats), failed)
		})
	}
	f("text_xquad_en.jsonl.gz")
	f("text_xquad_zh.jsonl.gz")
}

// TestRealDialogues plays real dialogues with tool calls turn by turn: each assistant turn is asked for, and the recorded one goes on.
func TestRealDialogues(t *testing.T) {
	type dialogue struct {
		Messages []json.RawMessage `json:"messages"`
	}
	var all []dialogue
	readTrace(t, "text_taubench_airline.jsonl.gz", func(d dialogue) { all = append(all, d) })
	if testing.Short() {
		all = all[:20]
	}
	r := newRealRig(t, 4, 40)
	var mu sync.Mutex
	turns := 0
	failed := r.run(len(all), 8, func(i int) error {
		for k, m := range all[i].Messages {
			if !bytes.Contains(m[:min(len(m), 40)], []byte(`"assistant"`)) {
				continue
			}
			if _, err := r.ask(t.Context(), all[i].Messages[:k], k, nil); err != nil {
				return fmt.Errorf("turn %d: %w", k, err)
			}
			mu.Lock()
			turns++
			mu.Unlock()
		}
		return nil
	})
	r.check(turns, failed)
}

// run calls do for 0..n-1 from some workers and returns how many failed.
func (r *realRig) run(n, workers int, do func(i int) error) int {
	jobs := make(chan int)
	var wg sync.WaitGroup
	var mu sync.Mutex
	failed := 0
	for range workers {
		wg.Go(func() {
			for i := range jobs {
				if err := do(i); err != nil {
					r.t.Logf("request %d: %v", i, err)
					mu.Lock()
					failed++
					mu.Unlock()
				}
			}
		})
	}
	for i := range n {
		jobs <- i
	}
	close(jobs)
	wg.Wait()
	return failed
}
