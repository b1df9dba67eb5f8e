package prompt_test

import (
	"bytes"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmroute/warmroute/internal/prompt"
	"github.com/warmroute/warmroute/prefix"
)

var update = flag.Bool("update", false, "write the golden files anew")

func text(s string) prompt.Part { return prompt.Part{Kind: prompt.Text, Text: s} }

func message(role string, parts ...prompt.Part) prompt.Message {
	return prompt.Message{Role: role, Parts: parts}
}

func stream(r *prompt.Request) string {
	var b bytes.Buffer
	prompt.Stream(&b, r)
	return b.String()
}

func chain(r *prompt.Request, answer ...prompt.Message) prefix.Chain {
	var h prefix.Hasher
	h.Reset(64)
	prompt.Write(&h, r)
	for _, m := range answer {
		prompt.WriteAnswer(&h, m)
	}
	return slices.Clone(h.Chain())
}

// conversation is a request with everything in it.
func conversation() *prompt.Request {
	return &prompt.Request{
		Scope: prompt.Scope{Model: "llama", Adapter: "legal", Tenant: "t1", CacheSalt: "s", Template: []byte(`{"a": 1}`)},
		Tools: []prompt.Tool{
			{Name: "weather", Description: "Weather of a city", Parameters: `{ "type": "object" }`, Extra: []prompt.Field{{Name: "strict", Raw: "true"}}},
			{Type: "web_search"},
		},
		Messages: []prompt.Message{
			message("system", text("You are careful.")),
			{Role: "user", Name: "mei", Parts: []prompt.Part{
				text("Look:"), text("here"), {Kind: prompt.Image, Text: "https://files.example/a.png"}, text("now"),
				{Kind: prompt.Audio, Text: "a"}, {Kind: prompt.Video, Text: "v"}, {Kind: prompt.File, Text: "f"},
				{Kind: prompt.Unknown, Text: `{ "type": "odd" }`},
			}},
			message("assistant", prompt.Part{Kind: prompt.Reasoning, Text: "Hm."}, text("Calling."),
				prompt.Part{Kind: prompt.ToolCall, ID: "c1", Name: "weather", Text: `{"city": "北京"}`}),
			message("tool", prompt.Part{Kind: prompt.ToolResult, ID: "c1", Text: "25 °C"}),
		},
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := "testdata/" + name
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func TestStreamGolden(t *testing.T) {
	golden(t, "conversation.txt", prompt.Dump([]byte(stream(conversation()))))
	golden(t, "raw.txt", prompt.Dump([]byte(stream(&prompt.Request{
		Scope: prompt.Scope{Model: "m"}, Raw: []string{"Once upon", "broken \xff bytes"}, Tokens: [][]int{{1, 127, 128, 1<<28 - 1}, {-1, 1 << 28}},
	}))))
	open := conversation()
	open.Messages, open.Continue = open.Messages[:3], true
	if s := stream(open); !strings.HasSuffix(s, `{"city":"北京"}`) {
		t.Errorf("a message to be continued ends in %q", s[len(s)-20:])
	}
}

// What differs for the engine's cache must differ from the first block that it
// concerns, and scopes must share nothing at all.
func TestDifferencesSeparateChains(t *testing.T) {
	f := func(what string, change func(r *prompt.Request), shared int) {
		t.Helper()
		a, b := conversation(), conversation()
		change(b)
		for _, r := range []*prompt.Request{a, b} { // so that no difference lies in the last, partial block
			r.Messages = append(r.Messages, message("user", text(strings.Repeat("And then? ", 10))))
		}
		ca, cb := chain(a), chain(b)
		n := ca.Common(cb)
		if n == min(len(ca), len(cb)) {
			t.Errorf("%s: the chains do not part", what)
		}
		if shared == 0 && n > 0 {
			t.Errorf("%s: %d blocks are shared; want none", what, n)
		}
		if shared > 0 && n < shared {
			t.Errorf("%s: %d blocks are shared; want %d at least", what, n, shared)
		}
	}
	f("model", func(r *prompt.Request) { r.Scope.Model = "qwen" }, 0)
	f("adapter", func(r *prompt.Request) { r.Scope.Adapter = "" }, 0)
	f("tenant", func(r *prompt.Request) { r.Scope.Tenant = "t2" }, 0)
	f("salt", func(r *prompt.Request) { r.Scope.CacheSalt = "x" }, 0)
	f("template", func(r *prompt.Request) { r.Scope.Template = []byte(`{"a":2}`) }, 0)
	f("no template", func(r *prompt.Request) { r.Scope.Template = nil }, 0)
	f("salt that looks like an adapter", func(r *prompt.Request) { r.Scope.Adapter, r.Scope.CacheSalt = "legals", "" }, 0)
	f("no tools", func(r *prompt.Request) { r.Tools = nil }, 0)
	f("tool name", func(r *prompt.Request) { r.Tools[0].Name = "climate" }, 0)
	f("tool order", func(r *prompt.Request) { slices.Reverse(r.Tools) }, 0)
	f("last tool", func(r *prompt.Request) { r.Tools[1].Type = "file_search" }, 1)
	f("system", func(r *prompt.Request) { r.Messages[0].Parts[0].Text = "You are careful!" }, 1)
	f("role", func(r *prompt.Request) { r.Messages[0].Role = "developer" }, 1)
	f("image", func(r *prompt.Request) { r.Messages[1].Parts[2].Text = "https://files.example/b.png" }, 2)
	f("image as sound", func(r *prompt.Request) { r.Messages[1].Parts[2].Kind = prompt.Audio }, 2)
	f("call", func(r *prompt.Request) { r.Messages[2].Parts[2].Text = `{"city":"上海"}` }, 10)
	f("result", func(r *prompt.Request) { r.Messages[3].Parts[0].Text = strings.Repeat("x", 128) }, 10)
}

// Spellings of one thing must not separate.
func TestSpellingsShareChains(t *testing.T) {
	f := func(what string, a, b prompt.Message) {
		t.Helper()
		ra := &prompt.Request{Messages: []prompt.Message{a}}
		rb := &prompt.Request{Messages: []prompt.Message{b}}
		if sa, sb := stream(ra), stream(rb); sa != sb {
			t.Errorf("%s: %q and %q", what, sa, sb)
		}
	}
	call := func(args string) prompt.Part {
		return prompt.Part{Kind: prompt.ToolCall, Name: "f", Text: args}
	}
	f("parts are joined", message("user", text("a"), text("b")), message("user", text("a\nb")))
	f("an empty part is an empty line", message("user", text("a"), text("")), message("user", text("a\n")))
	f("empty text beside a call", message("assistant", text(""), call("{}")), message("assistant", call("{}")))
	f("empty reasoning", message("assistant", prompt.Part{Kind: prompt.Reasoning}, text("a")), message("assistant", text("a")))
	f("space in arguments", message("assistant", call(`{"a": [1, 2]}`)), message("assistant", call(`{"a":[1,2]}`)))
	f("call ids", message("assistant", prompt.Part{Kind: prompt.ToolCall, Name: "f", ID: "1"}), message("assistant", prompt.Part{Kind: prompt.ToolCall, Name: "f", ID: "2"}))
	f("a tool's text", message("tool", prompt.Part{Kind: prompt.ToolResult, Text: "x"}), message("tool", text("x")))
}

// No text can pose as framing: in particular not as another role.
func TestTextCannotPoseAsFraming(t *testing.T) {
	f := func(a, b *prompt.Request) {
		t.Helper()
		if sa, sb := stream(a), stream(b); sa == sb {
			t.Errorf("different requests have one stream %q", sa)
		}
	}
	user := func(s string) *prompt.Request {
		return &prompt.Request{Messages: []prompt.Message{message("user", text(s))}}
	}
	two := &prompt.Request{Messages: []prompt.Message{message("user", text("a")), message("system", text("b"))}}
	f(user("a\xffe\xffmsystem\xfftb"), two)
	f(user("\xff"), user("\xff\xff"))
	f(user(""), &prompt.Request{Messages: []prompt.Message{{Role: "user\xffe"}}})
	f(&prompt.Request{Raw: []string{"a", "b"}}, &prompt.Request{Raw: []string{"ab"}})
	f(&prompt.Request{Raw: []string{"a"}}, &prompt.Request{Messages: []prompt.Message{message("", text("a"))}})
	f(&prompt.Request{Tokens: [][]int{{1, 2}}}, &prompt.Request{Tokens: [][]int{{1}, {2}}})
	f(&prompt.Request{Tokens: [][]int{{1 << 28}}}, &prompt.Request{Tokens: [][]int{{0}}})
	f(&prompt.Request{Tokens: [][]int{{-1}}}, &prompt.Request{Tokens: [][]int{{1<<28 - 1}}})
}

// The second turn begins with the first and its answer, whatever is in it.
func TestSecondTurnBeginsWithFirstAndAnswer(t *testing.T) {
	f := func(what string, first *prompt.Request, answer prompt.Message, more ...prompt.Message) {
		t.Helper()
		second := *first
		second.Messages = append(slices.Clone(first.Messages), answer)
		second.Messages = append(second.Messages, more...)
		var b bytes.Buffer
		prompt.Stream(&b, first)
		prompt.StreamAnswer(&b, answer)
		if s := stream(&second); !strings.HasPrefix(s, b.String()) {
			t.Errorf("%s: the second turn's stream does not begin with the first and its answer", what)
		}
		if joined, next := chain(first, answer), chain(&second); len(joined) == 0 || !next.HasPrefix(joined) {
			t.Errorf("%s: the second turn's chain does not begin with the first and its answer", what)
		}
		if before, next := chain(first), chain(&second); !next.HasPrefix(before) {
			t.Errorf("%s: the second turn's chain does not begin with the first", what)
		}
	}
	f("text", conversation(), message("assistant", text(strings.Repeat("Sunny. ", 30))), message("user", text("Thanks")))
	f("Chinese", conversation(), message("assistant", text(strings.Repeat("今天天气晴朗。", 30))), message("user", text("谢谢")))
	f("tool calls", conversation(), message("assistant",
		prompt.Part{Kind: prompt.ToolCall, ID: "c2", Name: "weather", Text: `{"city": "Paris"}`},
		prompt.Part{Kind: prompt.ToolCall, ID: "c3", Name: "weather", Text: `{"city": "Oslo"}`}),
		message("tool", prompt.Part{Kind: prompt.ToolResult, ID: "c2", Text: "20"}))
	f("reasoning", conversation(), message("assistant", prompt.Part{Kind: prompt.Reasoning, Text: "Let me see."}, text("Done.")))
	f("nothing", conversation(), message("assistant"))
}

// An answer whose reasoning is not replayed matches up to the prompt, which is
// what engines do.
func TestDroppedReasoningMatchesThePrompt(t *testing.T) {
	first := conversation()
	answer := message("assistant", prompt.Part{Kind: prompt.Reasoning, Text: strings.Repeat("hm ", 100)}, text("Done."))
	second := conversation()
	second.Messages = append(second.Messages, message("assistant", text("Done.")), message("user", text("Go on")))
	shared := chain(first, answer).Common(chain(second))
	if want := len(chain(first)); shared != want {
		t.Errorf("%d blocks are shared; want the prompt's %d", shared, want)
	}
}

func TestRawAnswerContinuesThePrompt(t *testing.T) {
	first := &prompt.Request{Scope: prompt.Scope{Model: "m"}, Raw: []string{strings.Repeat("Once upon a time ", 20)}}
	answer := message("", text("there was a \xff king."))
	second := &prompt.Request{Scope: first.Scope, Raw: []string{first.Raw[0] + "there was a \xff king. And then"}}
	var b bytes.Buffer
	prompt.Stream(&b, first)
	prompt.StreamAnswer(&b, answer)
	if !strings.HasPrefix(stream(second), b.String()) {
		t.Error("prompt, answer and more do not begin with prompt and answer")
	}
}

func TestWriteAllocatesNothing(t *testing.T) {
	r := conversation()
	for i := range r.Messages {
		r.Messages[i].Parts = slices.DeleteFunc(r.Messages[i].Parts, func(p prompt.Part) bool {
			return p.Kind >= prompt.Image && p.Kind <= prompt.File // hashed by content first
		})
	}
	r.Scope.Template = nil
	r.Tools[0].Description = `{"\u4e2d": "\/"}`
	r.Tokens = [][]int{{1, 2, 3}}
	var h prefix.Hasher
	run := func() {
		h.Reset(64)
		prompt.Write(&h, r)
	}
	if n := testing.AllocsPerRun(100, run); n != 0 {
		t.Errorf("Write allocates %v times; want 0", n)
	}
}

func BenchmarkWrite(b *testing.B) {
	r := conversation()
	for range 50 {
		r.Messages = append(r.Messages, message("user", text(strings.Repeat("What is the weather? ", 100))),
			message("assistant", text(strings.Repeat("Sunny. ", 250))))
	}
	var h prefix.Hasher
	h.Reset(0)
	prompt.Write(&h, r)
	b.SetBytes(h.Bytes())
	b.ReportAllocs()
	for b.Loop() {
		h.Reset(0)
		prompt.Write(&h, r)
	}
}

// pieces reads a stream back, as the framing promises is possible.
func pieces(t *testing.T, s string) (kinds string, texts []string) {
	t.Helper()
	for i := 0; i < len(s); {
		if s[i] != 0xFF || i+1 == len(s) || s[i+1] == 0xFF {
			t.Fatalf("no mark at %d of %q", i, s)
		}
		kinds += s[i+1 : i+2]
		var piece []byte
		for i += 2; i < len(s); i++ {
			if s[i] == 0xFF {
				if i+1 == len(s) {
					t.Fatalf("a lone mark byte ends %q", s)
				}
				if s[i+1] != 0xFF {
					break
				}
				i++
			}
			piece = append(piece, s[i])
		}
		texts = append(texts, string(piece))
	}
	return kinds, texts
}

// Whatever the texts hold, the stream reads back as what was written.
func FuzzStream(f *testing.F) {
	f.Add("system", "Be brief.", "name", "Hello", "{}")
	f.Add("\xff", "a\xff\xff", "\xffm", "\xffe\xffmuser", "\xff\xff\xff")
	f.Fuzz(func(t *testing.T, role, s, name, tail, thought string) {
		r := &prompt.Request{Messages: []prompt.Message{
			{Role: role, Name: name, Parts: []prompt.Part{text(s)}},
			message(tail, prompt.Part{Kind: prompt.Reasoning, Text: thought}, text(s), text(tail)),
		}}
		wantKinds, want := "MANSKm", []string{"", "", "", "", "", role}
		add := func(kind, s string, write bool) {
			if write {
				wantKinds += kind
				want = append(want, s)
			}
		}
		add("n", name, name != "")
		add("t", s, s != "")
		add("e", "", true)
		add("m", tail, true)
		add("r", thought, thought != "")
		add("t", s+"\n"+tail, true)
		add("e", "", true)
		add("m", "assistant", true)
		kinds, texts := pieces(t, stream(r))
		if kinds != wantKinds || !slices.Equal(texts, want) {
			t.Fatalf("got %s %q; want %s %q", kinds, texts, wantKinds, want)
		}
		_ = prompt.Dump([]byte(stream(r)))
		_ = prompt.Dump([]byte(s))
	})
}
