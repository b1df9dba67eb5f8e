package dialect

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/warmroute/warmroute/internal/prompt"
)

const answerLimit = 1 << 20

// follow runs a stream through Reader and Stream and tells what they made of
// it: a line per event, then the state at the end.
func follow(t *testing.T, k Kind, r io.Reader) string {
	t.Helper()
	sse, s := NewReader(r, 1<<24), NewStream(k, answerLimit)
	var b strings.Builder
	for {
		e, err := sse.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		class := s.Observe(e)
		clear(e.Raw) // the Stream must keep nothing of it
		clear(e.Data)
		fmt.Fprintf(&b, "%s %d\n", class, len(e.Raw))
	}
	fmt.Fprintf(&b, "complete %t tokens %d unknown %d\n", s.Complete(), s.Tokens(), s.Unknown())
	fmt.Fprintf(&b, "usage %+v\n", s.Usage())
	if e := s.Fault(); e != nil {
		fmt.Fprintf(&b, "fault %+v\n", *e)
	}
	b.WriteString(describeAnswer(s.Answer()))
	return b.String()
}

func describeAnswer(m prompt.Message, ok bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "joins %t role %q\n", ok, m.Role)
	for _, p := range m.Parts {
		fmt.Fprintf(&b, "%s %q name %q id %q\n", p.Kind, p.Text, p.Name, p.ID)
	}
	return b.String()
}

// Each testdata/stream/KIND-NAME.sse is followed into the .txt beside it.
func TestStreamGolden(t *testing.T) {
	paths, _ := filepath.Glob("testdata/stream/*.sse")
	if len(paths) < 40 {
		t.Fatalf("%d streams; want 40 at least", len(paths))
	}
	for _, path := range paths {
		body, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want := follow(t, kindOf(t, path), bytes.NewReader(body))
		golden(t, strings.TrimSuffix(path, ".sse")+".txt", want)
		if strings.Contains(path, "crlf") {
			continue // a CRLF that is cut belongs half to either event
		}
		for _, r := range []io.Reader{iotest.OneByteReader(bytes.NewReader(body)), iotest.HalfReader(bytes.NewReader(body))} {
			if got := follow(t, kindOf(t, path), r); got != want {
				t.Errorf("%s in pieces (-whole +pieces):\n%s", path, cmp.Diff(want, got))
			}
		}
	}
}

// Cut in two at any byte, a transcript is the same.
func TestStreamSplitAtAnyByte(t *testing.T) {
	for _, path := range []string{"testdata/stream/chat-reasoning.sse", "testdata/stream/responses-incomplete.sse"} {
		body, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want := follow(t, kindOf(t, path), bytes.NewReader(body))
		for i := range body {
			r := io.MultiReader(bytes.NewReader(body[:i]), bytes.NewReader(body[i:]))
			if got := follow(t, kindOf(t, path), r); got != want {
				t.Fatalf("%s cut at %d (-whole +cut):\n%s", path, i, cmp.Diff(want, got))
			}
		}
	}
}

// A stream that stops at any byte before its terminal marker is not complete,
// and never was a failure.
func TestStreamCutShort(t *testing.T) {
	f := func(path, marker string) {
		t.Helper()
		body, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		end := bytes.Index(body, []byte(marker))
		if end < 0 {
			t.Fatalf("%s has no %s", path, marker)
		}
		for i := range end {
			sse, s := NewReader(bytes.NewReader(body[:i]), 1<<20), NewStream(kindOf(t, path), answerLimit)
			for {
				e, err := sse.Next()
				if err != nil {
					break
				}
				s.Observe(e)
			}
			if s.Complete() || s.Fault() != nil {
				t.Fatalf("%s cut at %d: complete %t, fault %v", path, i, s.Complete(), s.Fault())
			}
		}
	}
	f("testdata/stream/chat-plain.sse", `"stop"`)
	f("testdata/stream/chat-tools.sse", `"finish_reason":"tool_calls"`)
	f("testdata/stream/completions-plain.sse", `"length"`)
	f("testdata/stream/responses-plain.sse", `"type":"response.completed"`)
}

func TestAnswerIsBounded(t *testing.T) {
	f := func(pieces int, want bool) {
		t.Helper()
		s := NewStream(Chat, 1000)
		for range pieces {
			s.Observe(Event{Data: []byte(`{"choices":[{"index":0,"delta":{"content":"0123456789"}}]}`)})
		}
		if m, ok := s.Answer(); ok != want || ok != (len(m.Text()) == 10*pieces) && pieces > 0 {
			t.Errorf("%d pieces: joins %t with %d bytes; want %t", pieces, ok, len(m.Text()), want)
		}
		if cap(s.answer.text) > 4000 {
			t.Errorf("%d pieces: keeps %d bytes with a limit of 1000", pieces, cap(s.answer.text))
		}
		if s.Tokens() != pieces {
			t.Errorf("%d tokens; want %d", s.Tokens(), pieces)
		}
	}
	f(0, false)
	f(100, true)
	f(101, false)
	f(10_000, false)

	s := NewStream(Chat, 1000)
	for i := range 10_000 { // calls without end, each almost empty
		s.Observe(Event{Data: fmt.Appendf(nil, `{"choices":[{"delta":{"tool_calls":[{"index":%d}]}}]}`, i)})
	}
	if _, ok := s.Answer(); ok || len(s.answer.calls) > 20 {
		t.Errorf("keeps %d tool calls with a limit of 1000 bytes", len(s.answer.calls))
	}
	s = NewStream(Chat, 0)
	s.Observe(Event{Data: []byte(`{"choices":[{"index":0,"delta":{"content":"a"}}]}`)})
	if _, ok := s.Answer(); ok {
		t.Error("a Stream that collects nothing has an answer")
	}
}

// What the stream collected joins the chain: turn 2 begins with turn 1's prompt
// and answer, through chat, completions and responses.
func TestStreamedAnswerJoinsTheChain(t *testing.T) {
	f := func(path, first, second string) {
		t.Helper()
		body, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		k := kindOf(t, path)
		sse, s := NewReader(bytes.NewReader(body), 1<<20), NewStream(k, answerLimit)
		for {
			e, err := sse.Next()
			if err != nil {
				break
			}
			s.Observe(e)
		}
		m, ok := s.Answer()
		if !ok || !s.Complete() {
			t.Fatalf("%s: joins %t, complete %t", path, ok, s.Complete())
		}
		a, b := decode(t, k, first), decode(t, k, second)
		var joined bytes.Buffer
		prompt.Stream(&joined, &a.Prompt)
		prompt.StreamAnswer(&joined, m)
		if !strings.HasPrefix(stream(b), joined.String()) {
			t.Errorf("%s: turn 2\n%s\ndoes not begin with turn 1 and its answer\n%s", path, prompt.Dump([]byte(stream(b))), prompt.Dump(joined.Bytes()))
		}
		if c, d := chainOf(a, m), chainOf(b); len(c) == 0 || !d.HasPrefix(c) || !d.HasPrefix(chainOf(a)) {
			t.Errorf("%s: the chain of turn 2 does not begin with that of turn 1", path)
		}
	}
	ask := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("北京的天气？", 20) + `"}`
	f("testdata/stream/chat-plain.sse", ask+`]}`,
		ask+`,{"role":"assistant","content":"Hello\n北京"},{"role":"user","content":"`+strings.Repeat("谢谢", 40)+`"}]}`)
	f("testdata/stream/chat-tools.sse", ask+`]}`, ask+`,{"role":"assistant","content":"Calling.","tool_calls":[
		{"id":"call_1","type":"function","function":{"name":"weather","arguments":"{\"city\": \"\u5317京\"}"}},
		{"id":"call_2","type":"function","function":{"name":"weather","arguments":"{\"city\":\"上海\"}"}}]},
		{"role":"tool","tool_call_id":"call_1","content":"25"},{"role":"tool","tool_call_id":"call_2","content":"28"}]}`)
	f("testdata/stream/chat-reasoning.sse", ask+`]}`,
		ask+`,{"role":"assistant","content":"Yes","reasoning":"Hm, yes."},{"role":"user","content":"ok"}]}`)
	once := strings.Repeat("Once upon a time ", 10)
	f("testdata/stream/completions-plain.sse", `{"prompt":"`+once+`"}`, `{"prompt":"`+once+`there was a king and a queen"}`)
	input := `{"model":"m","input":[{"role":"user","content":"` + strings.Repeat("北京的天气？", 20) + `"}`
	f("testdata/stream/responses-plain.sse", input+`]}`,
		input+`,{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"Hm."}]},
		{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Warm.\n"}]},{"role":"user","content":"ok"}]}`)
	f("testdata/stream/responses-tools.sse", input+`]}`,
		input+`,{"type":"function_call","call_id":"call_1","name":"weather","arguments":"{\"city\":\"北京\"}"},{"type":"function_call_output","call_id":"call_1","output":"25"}]}`)
}

// Whatever arrives, nothing panics, counts stay sane, and a stream that was
// complete stays so.
func FuzzStream(f *testing.F) {
	paths, _ := filepath.Glob("testdata/stream/*.sse")
	for _, path := range paths {
		body, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(int(kindOf(f, path)), body)
	}
	f.Fuzz(func(t *testing.T, kind int, body []byte) {
		sse, s := NewReader(bytes.NewReader(body), 1<<16), NewStream(Kind(kind&7), 1<<10)
		events := 0
		for complete := false; ; events++ {
			e, err := sse.Next()
			if err != nil {
				break
			}
			class := s.Observe(e)
			if class.String() == "invalid" || class == Failure && s.Fault() == nil {
				t.Fatalf("class %d, fault %v", class, s.Fault())
			}
			if class == Done && !s.Complete() {
				t.Fatal("done and not complete")
			}
			complete = complete || class == Done
			if complete != (complete && s.Complete()) {
				t.Fatal("a complete stream became incomplete")
			}
		}
		if s.Tokens() > events || s.Usage().Cached < 0 || s.Usage().Prompt < 0 {
			t.Fatalf("%d tokens in %d events, usage %+v", s.Tokens(), events, s.Usage())
		}
		if m, ok := s.Answer(); ok {
			n := 0
			for _, p := range m.Parts {
				n += len(p.Text) + len(p.Name) + len(p.ID)
			}
			if n > 1<<10 {
				t.Fatalf("an answer of %d bytes with a limit of 1 KiB", n)
			}
		}
	})
}
