package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// probe is one measured request.
type probe struct {
	first, end time.Duration // to the first content and to the end
	err        error
}

// send is a probe to be made at a time.
type send struct {
	at    time.Duration
	url   string
	body  []byte
	probe *probe
}

// probeTransport never compresses and keeps every connection, so that a probe
// measures neither gzip nor handshakes.
func probeTransport() *http.Transport {
	return &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true}
}

// sendAll makes probes at their times, whether or not earlier ones have ended.
func sendAll(ctx context.Context, sends []send) {
	transport := probeTransport()
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	start := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var wg sync.WaitGroup
	for i := range sends {
		s := &sends[i]
		timer.Reset(s.at - time.Since(start))
		select {
		case <-timer.C:
		case <-ctx.Done():
			s.probe.err = context.Cause(ctx)
			continue
		}
		wg.Go(func() { *s.probe = makeProbe(ctx, client, s.url, s.body) })
	}
	wg.Wait()
}

// firstContent is what a stream's first event with content has and earlier
// ones have not, in the stub's wording.
var firstContent = []byte(`"content":"word`)

func makeProbe(ctx context.Context, client *http.Client, url string, body []byte) probe {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return probe{err: err}
	}
	request.Header.Set("Content-Type", "application/json")
	start := time.Now()
	response, err := client.Do(request)
	if err != nil {
		return probe{err: err}
	}
	defer response.Body.Close()
	var p probe
	var text []byte
	buffer := make([]byte, 4096)
	for {
		n, err := response.Body.Read(buffer)
		text = append(text, buffer[:n]...)
		if p.first == 0 && bytes.Contains(text, firstContent) {
			p.first = time.Since(start)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return probe{err: err}
		}
	}
	p.end = time.Since(start)
	if response.StatusCode != http.StatusOK || p.first == 0 {
		return probe{err: fmt.Errorf("status %d: %.200s", response.StatusCode, text)}
	}
	return p
}

// hammer lets clients send one request after the other for a time, and counts
// those that were answered. A failed request ends it.
func hammer(ctx context.Context, url string, bodies [][]byte, clients int, d time.Duration) (answered int, err error) {
	transport := probeTransport()
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var count atomic.Int64
	var wg sync.WaitGroup
	until := time.Now().Add(d)
	for c := range clients {
		wg.Go(func() {
			for i := c; time.Now().Before(until); i++ {
				if p := makeProbe(ctx, client, url, bodies[i%len(bodies)]); p.err != nil {
					cancel(p.err)
					return
				}
				count.Add(1)
			}
		})
	}
	wg.Wait()
	return int(count.Load()), context.Cause(ctx)
}

// probeDocuments is how many different documents the probes' bodies share.
const probeDocuments = 16

// probeBodies are chat requests of about the given size: a few documents, each
// with several questions, as a gateway gets them.
func probeBodies(size int, stream bool) [][]byte {
	corpus, err := NewCorpus(English)
	if err != nil {
		return nil // the corpus ships with the program
	}
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	bodies := make([][]byte, 0, 4*probeDocuments)
	for i := range 4 * probeDocuments {
		question := corpus.Question(i)
		overhead := len(question) + 200
		body, err := json.Marshal(struct {
			Model    string    `json:"model"`
			Stream   bool      `json:"stream"`
			Messages []message `json:"messages"`
		}{stubModel, stream, []message{{"system", corpus.Document(i%probeDocuments, max(size-overhead, 100))}, {"user", question}}})
		if err != nil {
			return nil // strings always marshal
		}
		bodies = append(bodies, body)
	}
	return bodies
}

// errNoNginx is a reason to skip, not a fault.
var errNoNginx = errors.New("no nginx on this machine (apt-get install nginx-light)")

// nginxConfig is a plain proxy: one process, connections kept on both sides,
// streams passed on as they come, no files.
const nginxConfig = `daemon off;
master_process off;
pid nginx.pid;
error_log stderr error;
events { worker_connections 1024; }
http {
  access_log off;
  client_max_body_size 64m;
  client_body_buffer_size 1m;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  keepalive_requests 1000000;
  upstream engine { server %s; keepalive 256; keepalive_requests 1000000; }
  server {
    listen %s;
    location / {
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }
  }
}
`

func (o *Overhead) startNginx(ctx context.Context, engine string) (*child, error) {
	if o.Nginx == "" {
		return nil, errNoNginx
	}
	directory, err := os.MkdirTemp("", "warmroute-nginx")
	if err != nil {
		return nil, fmt.Errorf("start nginx: %w", err)
	}
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	config := filepath.Join(directory, "nginx.conf")
	text := fmt.Sprintf(nginxConfig, engine[len("http://"):], addr)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("start nginx: %w", err)
	}
	cmd := exec.CommandContext(ctx, o.Nginx, "-p", directory, "-c", config, "-e", "stderr")
	c, err := startChild(ctx, cmd, addr, "/health")
	if err != nil {
		_ = os.RemoveAll(directory) // a leftover in the temporary directory
		return nil, err
	}
	c.directory = directory
	return c, nil
}

func kilobytes(n int) string { return fmt.Sprintf("%d KB", n/1000) }

func answerKind(stream bool) string {
	if stream {
		return "streamed"
	}
	return "in one piece"
}
