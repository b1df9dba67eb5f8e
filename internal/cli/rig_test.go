package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/warmroute/warmroute/internal/config"
	"github.com/warmroute/warmroute/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a gateway on a network of pipes, with a configuration that the test may
// change. It lives in a synctest bubble.
type rig struct {
	t       *testing.T
	net     *testkit.Network
	gateway *gateway
	client  *http.Client
	log     *buffer
	env     map[string]string
	stop    context.CancelFunc // as SIGTERM does
	hangups chan os.Signal     // as SIGHUP does
	done    chan error         // what run returned

	mu   sync.Mutex // guards below
	file string     // what the configuration file holds
}

// Addresses of a rig's gateway.
const (
	dataAddr  = "gateway:80"
	adminAddr = "admin:80"
)

const rigHead = `
server: {listen: "gateway:80", drain_delay: 3s, grace: 10m}
admin: {listen: "admin:80", token: "${env:ADMIN_TOKEN}"}
log: {format: json, level: debug}
fleet: {health: {interval: 1s}, scrape: {interval: 0s}}
`

// newRig starts a gateway with rigHead and pools. Engines at their addresses
// must serve already.
func newRig(t *testing.T, n *testkit.Network, pools string) *rig {
	t.Helper()
	r := &rig{
		t: t, net: n, log: new(buffer), file: rigHead + pools, done: make(chan error, 1), hangups: make(chan os.Signal, 1),
		env: map[string]string{"ADMIN_TOKEN": "planted-admin-token", "KEY": "planted-engine-key"},
	}
	r.client = &http.Client{Transport: &http.Transport{DialContext: n.DialContext, DisableCompression: true}}
	t.Cleanup(r.client.CloseIdleConnections)
	cfg, err := r.load()
	if err != nil {
		t.Fatal(err)
	}
	w := world{
		dial:    n.DialContext,
		hangups: r.hangups,
		listen:  func(_ context.Context, address string) (net.Listener, error) { return n.Listen(address), nil },
	}
	r.gateway, err = newGateway(cfg, r.load, w, newSieve(r.log))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	r.stop = stop
	go func() { r.done <- r.gateway.run(ctx) }()
	t.Cleanup(func() {
		stop()
		r.wait()
	})
	synctest.Wait()
	return r
}

// wait blocks until the gateway has stopped.
func (r *rig) wait() error {
	err := <-r.done
	r.done <- err
	return err
}

func (r *rig) load() (*config.Config, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return config.Parse("warmroute.yml", []byte(r.file), config.World{
		Env: func(name string) (string, bool) { v, ok := r.env[name]; return v, ok },
	})
}

// write changes the configuration file.
func (r *rig) write(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.file = text
}

// reload asks for a reload as an operator does.
func (r *rig) reload() (int, reloadResult) {
	r.t.Helper()
	status, body := r.do(http.MethodPost, "http://"+adminAddr+"/-/reload", "")
	var result reloadResult
	if err := json.Unmarshal([]byte(body), &result); err != nil {
		r.t.Errorf("reload answers %q: %v", body, err)
	}
	return status, result
}

// do sends one request; status 0 means that there was no answer.
func (r *rig) do(method, url, body string) (status int, answer string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if strings.Contains(url, adminAddr) {
		req.Header.Set("Authorization", "Bearer planted-admin-token")
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return resp.StatusCode, string(b) + " CUT: " + err.Error()
	}
	return resp.StatusCode, string(b)
}

func (r *rig) get(url string) (int, string) {
	r.t.Helper()
	return r.do(http.MethodGet, url, "")
}

// chat sends a streamed chat completion.
func (r *rig) chat(model string) (int, string) {
	r.t.Helper()
	return r.do(http.MethodPost, "http://"+dataAddr+"/v1/chat/completions",
		fmt.Sprintf(`{"model":%q,"stream":true,"messages":[{"role":"user","content":"hello"}]}`, model))
}

// metrics are all series of the admin listener with their values as text.
func (r *rig) metrics() map[string]string {
	r.t.Helper()
	_, page := r.get("http://" + adminAddr + "/metrics")
	series := make(map[string]string)
	for line := range strings.Lines(page) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "} "); ok {
			series[name+"}"] = value
		} else if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			series[name] = value
		}
	}
	return series
}

// buffer is a log that tests can read while it is written.
type buffer struct {
	mu  sync.Mutex // guards below
	buf bytes.Buffer
	on  map[string]chan struct{} // closed when the text has been written
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for text, seen := range b.on {
		if bytes.Contains(p, []byte(text)) {
			close(seen)
			delete(b.on, text)
		}
	}
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// expect returns a channel that is closed when a line with the text is written.
func (b *buffer) expect(text string) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.on == nil {
		b.on = make(map[string]chan struct{})
	}
	seen := make(chan struct{})
	b.on[text] = seen
	return seen
}

func await(t *testing.T, seen <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-seen:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s did not happen", what)
	}
}

// tempFile writes a file of this test.
func tempFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// mustContain and mustNotContain check text.
func mustContain(t *testing.T, what, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("%s lacks %q:\n%s", what, want, text)
		}
	}
}

func mustNotContain(t *testing.T, what, text string, bans ...string) {
	t.Helper()
	for _, ban := range bans {
		if strings.Contains(text, ban) {
			t.Errorf("%s holds %q:\n%s", what, ban, text)
		}
	}
}
