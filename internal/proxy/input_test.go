package proxy

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/dialect"
	"github.com/warmroute/warmroute/internal/fleet"
)

// TestBadInput has the rows of the table of that name in the semantics.
func TestBadInput(t *testing.T) {
	f := func(name, body string, status int, code, message string, headers ...string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 1)
			a := r.post(chatPath, body, headers...)
			e := errorOf(t, a.body)
			if a.status != status || e.Code != code || e.Type != invalidRequest || !strings.Contains(e.Message, message) {
				t.Errorf("%s: got %d %+v; want %d, code %s, message with %q", name, a.status, e, status, code, message)
			}
			if ct := a.header.Get("Content-Type"); ct != "application/json" {
				t.Errorf("%s: Content-Type %q", name, ct)
			}
			if n := r.calls(0); n != 0 {
				t.Errorf("%s: the engine got %d requests; want none", name, n)
			}
			rec := r.last()
			if rec.Status != status || rec.Outcome() != "client" {
				t.Errorf("%s: recorded %d %s", name, rec.Status, rec.Outcome())
			}
			r.idle()
		})
	}
	f("not JSON", `hello`, 400, "invalid_json", "byte 0")
	f("truncated JSON", `{"model":"m","messages":[`, 400, "invalid_json", "byte 25")
	f("trailing bytes", `{"model":"m"} x`, 400, "invalid_json", "byte 14")
	f("empty", ``, 400, "invalid_json", "empty")
	f("no object", `[1]`, 400, "invalid_type", "object")
	f("wrong content type", chat("x", false), 400, "invalid_content_type", "offset 0", "Content-Type", "text/plain")
	f("form", "a=b", 400, "invalid_content_type", "application/json", "Content-Type", "application/x-www-form-urlencoded")
	f("duplicate model", `{"model":"m","model":"n","messages":[]}`, 400, "duplicate_key", "model")
	f("duplicate stream", `{"model":"m","stream":true,"messages":[],"stream":false}`, 400, "duplicate_key", "stream")
	f("duplicate messages", `{"model":"m","messages":[],"messages":[]}`, 400, "duplicate_key", "messages")
	f("duplicate by escape", `{"model":"m","messages":[],"mod\u0065l":"n"}`, 400, "duplicate_key", "model")
	f("unknown model", `{"model":"nope","messages":[]}`, 404, "model_not_found", "Served models: m.")
	f("unpackable", `{"model":"m"}`, 415, "unsupported_content_encoding", "br", "Content-Encoding", "br")
	f("not gzip", `{"model":"m"}`, 400, "invalid_encoding", "gzip", "Content-Encoding", "gzip")
}

func TestBadInputPasses(t *testing.T) {
	f := func(name, body string, unknown int) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 1)
			a := r.post(chatPath, body)
			if a.status != 200 {
				t.Errorf("%s: got %d %s", name, a.status, a.body)
				return
			}
			if got := r.engines[0].Calls()[0].Body; string(got) != body {
				t.Errorf("%s: the engine got %q; want %q", name, got, body)
			}
			if rec := r.last(); rec.UnknownParts != unknown {
				t.Errorf("%s: %d unknown parts counted; want %d", name, rec.UnknownParts, unknown)
			}
		})
	}
	f("messages not an array", `{"model":"m","messages":{"role":"user"}}`, 1)
	f("messages a text", `{"model":"m","messages":"hi"}`, 1)
	f("unknown part type", `{"model":"m","messages":[{"role":"user","content":[{"type":"hologram","x":1}]}]}`, 1)
	f("unknown fields", `{"model":"m","messages":[],"top_k":3,"chat_template_kwargs":{"a":1},"extra_body":{"deep":[{}]}}`, 0) // T37
	f("broken UTF-8", "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\xffb\"}]}", 0)
	f("odd spacing", "{ \"model\" :\t\"m\" ,\n \"messages\": [ ] , \"b\":1.0e5 , \"a\":null }", 0)
}

func TestBodyLimit(t *testing.T) { // T54
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, func(s *setup) { s.proxy.BodyBytes = 64 << 10 })
		over := func(name string, a answer) {
			t.Helper()
			if e := errorOf(t, a.body); a.status != 413 || e.Code != "request_too_large" || !strings.Contains(e.Message, "65536") {
				t.Errorf("%s: got %d %+v", name, a.status, e)
			}
			if rec := r.last(); rec.Status != 413 || rec.Outcome() != "client" {
				t.Errorf("%s: recorded %d %s", name, rec.Status, rec.Outcome())
			}
		}
		over("declared", r.post(chatPath, chat(strings.Repeat("x", 70<<10), false)))
		over("unpacked", r.post(chatPath, pack(t, chat(strings.Repeat("x", 1<<20), false)), "Content-Encoding", "gzip"))
		// Stored as it is, a body is longer packed than unpacked.
		stored := packAt(t, chat(strings.Repeat("x", 64<<10-70), false), gzip.NoCompression)
		over("packed", r.post(chatPath, stored, "Content-Encoding", "gzip"))
		over("packed and chunked", r.chunked(stored, "Content-Encoding", "gzip"))
		over("chunked", r.chunked(chat(strings.Repeat("x", 70<<10), false)))
		if a := r.post(chatPath, chat(strings.Repeat("x", 60<<10), false)); a.status != 200 {
			t.Errorf("below the limit: got %d %s", a.status, a.body)
		}
		r.idle()
	})
}

func TestTwoMegabytesPass(t *testing.T) { // T54
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		body := chat(strings.Repeat("word ", 400<<10), false)
		if a := r.post(chatPath, body); a.status != 200 {
			t.Fatalf("got %d %s", a.status, a.body)
		}
		if got := string(r.engines[0].Calls()[0].Body); got != body {
			t.Errorf("the engine got %d bytes that differ from the %d sent", len(got), len(body))
		}
	})
}

func TestGzipBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		body := chat("hello", false)
		if a := r.post(chatPath, pack(t, body), "Content-Encoding", "gzip"); a.status != 200 {
			t.Fatalf("got %d %s", a.status, a.body)
		}
		call := r.engines[0].Calls()[0]
		if string(call.Body) != body || call.Header.Get("Content-Encoding") != "" {
			t.Errorf("the engine got %q, Content-Encoding %q", call.Body, call.Header.Get("Content-Encoding"))
		}
		cut := pack(t, body)
		if a := r.post(chatPath, cut[:len(cut)-6], "Content-Encoding", "gzip"); a.status != 400 {
			t.Errorf("cut gzip: got %d %s", a.status, a.body)
		}
	})
}

func pack(t testing.TB, s string) string { return packAt(t, s, gzip.DefaultCompression) }

func packAt(t testing.TB, s string, level int) string {
	t.Helper()
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, level)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write([]byte(s)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// chunked posts a body of unknown length.
func (r *rig) chunked(body string, headers ...string) answer {
	r.t.Helper()
	req := r.request(chatPath, "", headers...)
	req.Body, req.ContentLength, req.GetBody = io.NopCloser(strings.NewReader(body)), -1, nil
	resp, err := r.client.Do(req)
	if err != nil {
		r.t.Errorf("post: %v", err)
		return answer{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(b), resp.Trailer, err}
}

// raw sends the rest of a request as it is, and reads an error answer.
func (r *rig) raw(path, rest string) (status int, e struct{ Message, Type, Param, Code string }) {
	r.t.Helper()
	conn, err := r.net.DialContext(r.t.Context(), "tcp", "gateway:80")
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	go func() {
		_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n%s", path, rest)
	}()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		r.t.Errorf("%q: no answer: %v", rest[:min(len(rest), 80)], err)
		return 0, e
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Errorf("%q: read answer: %v", rest[:min(len(rest), 80)], err)
	}
	return resp.StatusCode, errorOf(r.t, string(b))
}

func TestSlowBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		body, w := io.Pipe()
		defer w.Close()
		req := r.request(chatPath, "")
		req.Body, req.ContentLength, req.GetBody = body, -1, nil
		began := time.Now()
		resp, err := r.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		if e := errorOf(t, string(b)); resp.StatusCode != 408 || e.Code != "request_timeout" {
			t.Errorf("got %d %+v", resp.StatusCode, e)
		}
		if d := time.Since(began); d != Default().ReadTimeout {
			t.Errorf("answered after %v; want %v", d, Default().ReadTimeout)
		}
	})
}

// The server waits for a body of known length before it answers: an answer to a
// body that does not come must not wait for ever.
func TestSlowBodyOfKnownLength(t *testing.T) {
	f := func(path, headers, body string, status int, code string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 1)
			began := time.Now()
			got, e := r.raw(path, headers+"Content-Length: 1000\r\n\r\n"+body)
			if got != status || e.Code != code {
				t.Errorf("%s %q %q: got %d %+v; want %d, %s", path, headers, body, got, e, status, code)
			}
			if d := time.Since(began); d != Default().ReadTimeout {
				t.Errorf("%s %q %q: answered after %v; want %v", path, headers, body, d, Default().ReadTimeout)
			}
			r.idle()
		})
	}
	const packed = "Content-Encoding: gzip\r\n"
	f(chatPath, "", "", 408, "request_timeout")
	f(chatPath, "", `{"model":"m"`, 408, "request_timeout")
	f(chatPath, packed, "", 408, "request_timeout")
	f(chatPath, packed, "\x1f\x8b\x08", 408, "request_timeout")
	f(chatPath, "Content-Encoding: br\r\n", "", 415, "unsupported_content_encoding")
	f("/v1/nothing", "", "", 404, "unknown_url")
	f("/v1/models", "", "", 405, "method_not_allowed")
}

func TestMalformedChunks(t *testing.T) {
	f := func(body string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 1)
			status, e := r.raw(chatPath, "Transfer-Encoding: chunked\r\n\r\n"+body)
			if status != 400 || e.Code != "invalid_body" || !strings.Contains(e.Message, "chunked") {
				t.Errorf("%q: got %d %+v; want 400, invalid_body", body, status, e)
			}
			if rec := r.last(); rec.Outcome() != "client" || r.calls(0) != 0 {
				t.Errorf("%q: recorded %s, %d calls; want client, none", body, rec.Outcome(), r.calls(0))
			}
		})
	}
	f("zz\r\n{}")
	f("2\n{}\n0\n\n")
	f("fffffffffffffffff\r\n{}")
	f("2\r\n{}xx0\r\n\r\n")
	f("2;a=" + strings.Repeat("x", 20<<10) + "\r\n{}\r\n0\r\n\r\n")
}

func TestBodyBreaksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		conn, err := r.net.DialContext(t.Context(), "tcp", "gateway:80")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"model\"", chatPath)
		conn.Close()
		if rec := r.last(); rec.Status != StatusClientGone || rec.Outcome() != "client_gone" {
			t.Errorf("recorded %d %s", rec.Status, rec.Outcome())
		}
		if r.calls(0) != 0 {
			t.Error("half a body reached the engine")
		}
	})
}

// TestBodyMemory makes sure that a length alone takes no memory.
func TestBodyMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := new(payload) // not a pooled one, which may have grown before
		req, _ := http.NewRequestWithContext(context.Background(), http.MethodPost, "/", strings.NewReader("{}"))
		req.ContentLength = 31 << 20
		if err := readBody(p, req, 32<<20); err != nil {
			t.Fatal(err)
		}
		if n := p.buf.Cap(); n > 2<<20 {
			t.Errorf("a declared length of 31 MiB took %d bytes", n)
		}
	})
}

func TestNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, func(s *setup) { s.fleet.Health.Interval = 5 * time.Second }) // never probed: never ready
		a := r.post(chatPath, chat("x", true))
		if e := errorOf(t, a.body); a.status != 503 || e.Code != "no_instance_ready" || e.Type != serverError {
			t.Errorf("got %d %+v", a.status, e)
		}
		if ra := a.header.Get("Retry-After"); ra == "" || ra == "0" {
			t.Errorf("Retry-After %q", ra)
		}
		rec := r.last()
		if rec.Status != 503 || rec.Outcome() != "transient" || rec.Cause != "starting" || rec.Attempts != 0 {
			t.Errorf("recorded %+v", rec)
		}
	})
}

func TestUnknownModelWhileDiscovering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, func(s *setup) { s.pool = func(p *fleet.PoolConfig) { p.Model = "" } })
		a := r.post(chatPath, chat("x", true))
		if e := errorOf(t, a.body); a.status != 503 || e.Code != "no_instance_ready" || a.header.Get("Retry-After") != "1" {
			t.Errorf("got %d %+v", a.status, e)
		}
	})
}

func TestKeys(t *testing.T) { // T25: masked; T56: no client credential passes
	synctest.Test(t, func(t *testing.T) {
		const key = "wr-abc-thisisasecret"
		r := newRig(t, 1, func(s *setup) {
			s.deps = func(d *Deps) {
				d.Admit = func(r *http.Request) (string, *dialect.Error) {
					if r.Header.Get("Authorization") == "Bearer "+key {
						return "acme", nil
					}
					return "", &dialect.Error{Status: 401, Type: invalidRequest, Code: "invalid_api_key", Message: "Incorrect API key provided."}
				}
			}
		})
		for _, h := range [][]string{nil, {"Authorization", "Bearer wr-abc-wrong"}} {
			a := r.post(chatPath, chat("x", false), h...)
			if e := errorOf(t, a.body); a.status != 401 || e.Code != "invalid_api_key" {
				t.Errorf("got %d %+v", a.status, e)
			}
			if rec := r.last(); rec.Outcome() != "client" || rec.Status != 401 {
				t.Errorf("recorded %+v", rec)
			}
		}
		if r.calls(0) != 0 {
			t.Error("a request without a key reached the engine")
		}
		a := r.post(chatPath, chat("x", false), "Authorization", "Bearer "+key, "X-Api-Key", key, "Cookie", "s="+key)
		if a.status != 200 {
			t.Fatalf("got %d %s", a.status, a.body)
		}
		for name, values := range r.engines[0].Calls()[0].Header {
			if strings.Contains(strings.Join(values, " "), key) {
				t.Errorf("the client's key reached the engine in %s", name)
			}
		}
		if got := r.engines[0].Calls()[0].Header.Get("Authorization"); got != "Bearer sk-e0-verysecretkey" {
			t.Errorf("the engine got Authorization %q", got)
		}
		if rec := r.last(); rec.Tenant != "acme" {
			t.Errorf("recorded tenant %q", rec.Tenant)
		}
		if strings.Contains(r.log.String(), "wr-abc") {
			t.Error("a key stands in the log")
		}
	})
}

func TestPaths(t *testing.T) {
	f := func(method, path string, status int, code string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 1)
			req := r.request(path, "")
			req.Method = method
			resp, err := r.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			if e := errorOf(t, string(b)); resp.StatusCode != status || e.Code != code {
				t.Errorf("%s %s: got %d %+v; want %d %s", method, path, resp.StatusCode, e, status, code)
			}
			if status == 405 && resp.Header.Get("Allow") == "" {
				t.Errorf("%s %s: 405 without Allow", method, path)
			}
			if resp.Header.Get("X-Request-Id") == "" {
				t.Errorf("%s %s: no X-Request-Id", method, path)
			}
		})
	}
	f("GET", chatPath, 405, "method_not_allowed")
	f("PUT", "/v1/embeddings", 405, "method_not_allowed")
	f("POST", "/v1/models", 405, "method_not_allowed")
	f("DELETE", "/v1/models/m", 405, "method_not_allowed")
	f("GET", "/v1/models/nope", 404, "model_not_found")
	f("POST", "/v1/nothing", 404, "unknown_url")
	f("GET", "/", 404, "unknown_url")
	f("POST", "/v1/modelsx", 404, "unknown_url")
	f("POST", "//v1/chat/completions", 404, "unknown_url")
}

func TestEveryEndpoint(t *testing.T) {
	f := func(path, body string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 1)
			if a := r.post(path, body); a.status != 200 {
				t.Fatalf("%s: got %d %s", path, a.status, a.body)
			}
			call := r.engines[0].Calls()[0]
			if call.Path != path || string(call.Body) != body {
				t.Errorf("the engine got %s %q; want %s %q", call.Path, call.Body, path, body)
			}
			if rec := r.last(); rec.Kind != endpoints[path] || rec.Instance != "e0" {
				t.Errorf("%s: recorded %+v", path, rec)
			}
			r.idle()
		})
	}
	f("/v1/chat/completions", chat("x", false))
	f("/v1/completions", `{"model":"m","prompt":"x"}`)
	f("/v1/embeddings", `{"model":"m","input":["a","b"]}`)
	f("/v1/responses", `{"model":"m","input":"x"}`)
	f("/v1/rerank", `{"model":"m","query":"q","documents":["a"]}`)
	f("/v2/rerank", `{"model":"m","query":"q","documents":["a"]}`)
	f("/rerank", `{"query":"q","documents":["a"]}`)
	f("/v1/score", `{"model":"m","text_1":"a","text_2":"b"}`)
	f("/score", `{"text_1":"a","text_2":"b"}`)
	f("/tokenize", `{"prompt":"x"}`)
	f("/v1/tokenize", `{"model":"m","prompt":"x"}`)
	if got := len(Paths()); got != len(endpoints)+2 {
		t.Errorf("Paths has %d", got)
	}
}

func TestModelNames(t *testing.T) {
	two := func(s *setup) {
		s.pool = func(p *fleet.PoolConfig) { p.Aliases, p.UpstreamModel = []string{"gpt-4"}, "org/model-70b" }
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, two)
		r.post(chatPath, `{"z":1, "model" : "gpt-4","messages":[]}`)
		r.post(chatPath, `{"model":"m","messages":[]}`)
		r.post(chatPath, `{"messages":[]}`)
		calls := r.engines[0].Calls()
		for i, want := range []string{
			`{"z":1, "model" : "org/model-70b","messages":[]}`,
			`{"model":"org/model-70b","messages":[]}`,
			`{"messages":[]}`,
		} {
			if got := string(calls[i].Body); got != want {
				t.Errorf("the engine got %s; want %s", got, want)
			}
		}
		if rec := r.last(); rec.Asked != "" || rec.Model != "m" {
			t.Errorf("recorded asked %q, model %q", rec.Asked, rec.Model)
		}
	})
}
