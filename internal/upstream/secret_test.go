package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/testkit"
)

func TestSecretDoesNotPrint(t *testing.T) {
	s := NewSecret(testKey)
	type hidden struct{ key Secret }
	type shown struct{ Key Secret }
	values := []any{
		s, &s, hidden{s}, &hidden{s}, shown{s}, &shown{s}, []Secret{s}, map[string]Secret{"a": s},
		Target{Key: s}, &instance{target: Target{Key: s}}, struct{ t Target }{Target{Key: s}},
	}
	for _, v := range values {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			if got := fmt.Sprintf(verb, v); strings.Contains(got, testKey) || strings.Contains(got, fmt.Sprintf("%x", testKey)) {
				t.Errorf("%s of %T tells the secret: %s", verb, v, got)
			}
		}
		if b, err := json.Marshal(v); err == nil && bytes.Contains(b, []byte(testKey)) {
			t.Errorf("JSON of %T tells the secret: %s", v, b)
		}
		var out bytes.Buffer
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", slog.Any("v", v))
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", slog.Any("v", v))
		if strings.Contains(out.String(), testKey) {
			t.Errorf("slog of %T tells the secret: %s", v, out.String())
		}
	}
	if got := fmt.Errorf("send: %w", fmt.Errorf("key %v", s)).Error(); strings.Contains(got, testKey) {
		t.Error(got)
	}
	if s.Reveal() != testKey || s.String() != redacted || NewSecret(" \n").String() != "" || !NewSecret("").IsZero() {
		t.Error("the secret itself is wrong")
	}
	if !s.Equal(NewSecret(testKey+"\n")) || s.Equal(NewSecret("other")) || s.Equal(Secret{}) {
		t.Error("Equal is wrong")
	}
}

func TestRedact(t *testing.T) {
	var r Redactor
	r.Add(NewSecret("pa/ss word+1"))
	r.Add(NewSecret("EMPTY")) // too short to search for
	f := func(in, want string) {
		t.Helper()
		if got := r.Redact(in); got != want {
			t.Errorf("%q: %q; want %q", in, got, want)
		}
	}
	f("EMPTY queue", "EMPTY queue")
	f("key pa/ss word+1 refused", "key [redacted] refused")
	f("GET /x?k=pa%2Fss+word%2B1", "GET /x?k=[redacted]")
	f("Authorization: Bearer abcdefgh.ijk", "Authorization: Bearer [redacted]")
	f("Incorrect API key provided: sk-proj-abcdEFGH1234_5678", "Incorrect API key provided: [redacted]")
	f(`{"api_key":"abcd1234","n":1}`, `{"api_key":"[redacted]","n":1}`)
	f("x-api-key: abcd1234", "x-api-key: [redacted]")
	f("dial https://user:pw@host/", "dial https://[redacted]host/")
	f("https://h/p?api-key=abc&x=1", "https://h/p?api-key=[redacted]&x=1")
	f("hf_abcdefghijklmnop and AKIAABCDEFGHIJKLMNOP", "[redacted] and [redacted]")
	f("eyJhbGciOiJI.eyJzdWIiOiIx.c2ln end", "[redacted] end")
	f("max_tokens 4096 is too large for model sk-1", "max_tokens 4096 is too large for model sk-1")
}

// A key that an instance plants in its answers reaches nobody, and lengths stay
// true.
func TestPlantedKey(t *testing.T) {
	f := func(act testkit.Act, body string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			n := testkit.NewNetwork()
			n.Serve(t, "e:1", testkit.NewEngine(act))
			resp, err := dialed(t, n, nil, Target{Key: NewSecret(testKey)}).RoundTrip(request(t.Context(), body))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			fault := Classify(resp, time.Now())
			b, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(b, []byte(testKey)) || fault != nil && strings.Contains(fault.Error(), testKey) {
				t.Errorf("the key came through: %s; %v", b, fault)
			}
			if !bytes.Contains(b, bytes.Repeat([]byte{'*'}, len(testKey))) {
				t.Errorf("no key was planted, so this test shows nothing: %s", b)
			}
		})
	}
	f(testkit.Act{Status: 400, Body: `{"error":"bad key ` + testKey + `"}`}, "{}")
	f(testkit.Act{Status: 500, Body: strings.Repeat("x", maxDetail-5) + testKey}, "{}")
	f(testkit.Act{Body: `{"text":"` + testKey + `"}`}, "{}")
	f(testkit.Act{FirstEvent: `{"error":"` + testKey + `"}`}, `{"stream":true}`)
}

// A key in the text of a connection error does not reach the fault's text.
func TestFaultTextIsRedacted(t *testing.T) {
	dial := func(context.Context, string, string) (net.Conn, error) {
		return nil, fmt.Errorf("proxy said: bad token %s for https://u:pw12@h", testKey)
	}
	u, err := New(Default(), dial)
	if err != nil {
		t.Fatal(err)
	}
	rt, err := u.Instance(Target{Name: "e", URL: "http://e:1", Key: NewSecret(testKey)})
	if err != nil {
		t.Fatal(err)
	}
	_, err = rt.RoundTrip(request(t.Context(), "{}"))
	for _, text := range []string{err.Error(), fmt.Sprintf("%+v", err), fmt.Sprintf("%#v", FaultOf(err)), u.Redact("x " + testKey)} {
		if strings.Contains(text, testKey) || strings.Contains(text, "pw12") {
			t.Errorf("secret in %q", text)
		}
	}
	if errors.Unwrap(err) != nil {
		t.Error("the fault unwraps to a text that holds the secret")
	}
}

func TestMaskerAtEveryCut(t *testing.T) {
	const secret = "abcabcabcabd" // its prefixes overlap with themselves
	text := "abc" + secret + "xabcabc" + secret + secret + "abcabcabcab"
	want := strings.ReplaceAll(text, secret, strings.Repeat("*", len(secret)))
	for cut := 1; cut <= len(text); cut++ {
		for buf := 1; buf <= len(text)+1; buf += 3 {
			m := newMasker(NewSecret(secret))
			src := &cutReader{text: text, cut: cut}
			got := readMasked(t, &m, src.Read, buf)
			if got != want {
				t.Fatalf("cut %d, buffer %d: %q; want %q", cut, buf, got, want)
			}
		}
	}
}

type cutReader struct {
	text string
	cut  int
}

func (r *cutReader) Read(p []byte) (int, error) {
	n := copy(p, r.text[:min(r.cut, len(r.text))])
	r.text = r.text[n:]
	if r.text == "" {
		return n, io.EOF
	}
	return n, nil
}

func readMasked(t *testing.T, m *masker, src func([]byte) (int, error), buf int) string {
	t.Helper()
	var out strings.Builder
	p := make([]byte, buf)
	for range 100_000 {
		n, err := m.read(p, src)
		out.Write(p[:n])
		if errors.Is(err, io.EOF) {
			return out.String()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the masker does not end")
	return ""
}

// The end of an event is passed on with it: nothing of a secret begins there.
func TestMaskerHoldsNoEventBack(t *testing.T) {
	m := newMasker(NewSecret(testKey))
	const event = "data: {\"a\":\"k-4f\"}\n\n"
	p := make([]byte, 100)
	n, err := m.read(p, strings.NewReader(event).Read)
	if string(p[:n]) != event || err != nil {
		t.Errorf("got %q, %v", p[:n], err)
	}
}

func TestMaskerKeepsErrors(t *testing.T) {
	broken := errors.New("broken")
	m := newMasker(NewSecret(testKey))
	src := io.MultiReader(strings.NewReader("xy k-4f9a"), iotest.ErrReader(broken))
	got, err := io.ReadAll(readerFunc(func(p []byte) (int, error) { return m.read(p, src.Read) }))
	if string(got) != "xy k-4f9a" || !errors.Is(err, broken) {
		t.Errorf("got %q, %v", got, err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func FuzzMasker(f *testing.F) {
	f.Add("abcabcabcabc", "zabcabcabcabcabcabc", uint64(1))
	f.Add("............", "........................", uint64(2))
	f.Fuzz(func(t *testing.T, secret, text string, seed uint64) {
		if len(secret) > 200 || len(text) > 2000 {
			t.Skip("longer than any key; cubic time")
		}
		s := NewSecret(secret)
		want := text
		if len(s.Reveal()) >= minMaskBytes {
			want = strings.ReplaceAll(text, s.Reveal(), strings.Repeat("*", len(s.Reveal())))
		}
		rng := rand.New(rand.NewPCG(seed, 0))
		m := newMasker(s)
		src := strings.NewReader(text)
		got := readMasked(t, &m, func(p []byte) (int, error) { return src.Read(p[:1+rng.IntN(len(p))]) }, 1+rng.IntN(40))
		if got != want {
			t.Errorf("secret %q: %q; want %q", secret, got, want)
		}
	})
}

func BenchmarkMasker(b *testing.B) {
	text := []byte(strings.Repeat(`data: {"choices":[{"delta":{"content":"hello"}}]}`+"\n\n", 80))
	p := make([]byte, 32<<10)
	m := newMasker(NewSecret(testKey))
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if n, _ := m.read(p, func(p []byte) (int, error) { return copy(p, text), nil }); n != len(text) {
			b.Fatal(n)
		}
	}
}
