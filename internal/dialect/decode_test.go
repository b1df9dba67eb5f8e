package dialect

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmroute/warmroute/internal/prompt"
	"github.com/warmroute/warmroute/prefix"
)

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, path, got string) {
	t.Helper()
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

// kindOf returns the kind that a test file is named for.
func kindOf(tb testing.TB, path string) Kind {
	tb.Helper()
	name, _, _ := strings.Cut(filepath.Base(path), "-")
	k := slices.Index(kinds[:], name)
	if k < 1 {
		tb.Fatalf("%s names no kind", path)
	}
	return Kind(k)
}

// Each testdata/decode/KIND-NAME.json is decoded into the .txt beside it: the
// call, then its canonical stream.
func TestDecodeGolden(t *testing.T) {
	paths, _ := filepath.Glob("testdata/decode/*.json")
	if len(paths) < 20 {
		t.Fatalf("%d bodies; want 20 at least", len(paths))
	}
	for _, path := range paths {
		body, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		before := bytes.Clone(body)
		c, err := Decode(kindOf(t, path), body)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if !bytes.Equal(before, body) {
			t.Errorf("%s: Decode changed the body", path)
		}
		golden(t, strings.TrimSuffix(path, ".json")+".txt", describe(c))
	}
}

func describe(c *Call) string {
	var b, s bytes.Buffer
	fmt.Fprintf(&b, "%s model %q stream %t usage %d max %d choices %d session %q previous %q unknown %d\n\n",
		c.Kind, c.Model, c.Stream, c.Usage, c.MaxTokens, c.Choices, c.Session, c.Previous, c.Unknown)
	prompt.Stream(&s, &c.Prompt)
	b.WriteString(prompt.Dump(s.Bytes()))
	return b.String()
}

func TestDecodeRefuses(t *testing.T) {
	f := func(k Kind, body, code, param, message string) {
		t.Helper()
		c, err := Decode(k, []byte(body))
		e, ok := errors.AsType[*Error](err)
		if !ok || c != nil {
			t.Errorf("%s %s: got %v, %v; want an *Error", k, body, c, err)
			return
		}
		want := &Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Code: code, Param: param, Message: message}
		if diff := cmp.Diff(want, e); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", k, body, diff)
		}
	}
	f(Chat, "", "invalid_json", "", "The request body is empty; it must be a JSON object.")
	f(Chat, "   ", "invalid_json", "", "The request body is not valid JSON: it ends at byte 3 where a value should follow.")
	f(Chat, `{"model":"m","messages":[`, "invalid_json", "", "The request body is not valid JSON: it ends at byte 25 where a value should follow.")
	f(Chat, `{"model":"m",}`, "invalid_json", "", "The request body is not valid JSON: '}' at byte 13 where a key in quotes should be.")
	f(Chat, `{"model":"m"} x`, "invalid_json", "", "The request body is not valid JSON: 'x' at byte 14 where the end should be.")
	f(Chat, `{"model":"m","x":"é`+"\n"+`"}`, "invalid_json", "", `The request body is not valid JSON: '\n' at byte 20 where the string's end should be.`)
	f(Chat, "{\"model\":\xff}", "invalid_json", "", "The request body is not valid JSON: 0xff at byte 9 where a value should be.")
	f(Chat, "{\"model\":你}", "invalid_json", "", "The request body is not valid JSON: '你' at byte 9 where a value should be.")
	f(Chat, "\xef\xbb\xbf{}", "invalid_json", "", `The request body is not valid JSON: '\ufeff' at byte 0 where a value should be.`)
	f(Chat, `model=m`, "invalid_json", "", "The request body is not valid JSON: 'm' at byte 0 where a value should be.")
	f(Chat, `[{"model":"m"}]`, "invalid_type", "", "The request body must be a JSON object, but it is an array.")
	f(Chat, `"m"`, "invalid_type", "", "The request body must be a JSON object, but it is a string.")
	f(Chat, `[`, "invalid_json", "", "The request body is not valid JSON: it ends at byte 1 where a value should follow.")
	f(Chat, `{"x":`+strings.Repeat("[", 600), "json_too_deep", "", "The request body nests deeper than 512 levels at byte 516.")
	f(Chat, `{"messages":[{"content":`+strings.Repeat("[", 600), "json_too_deep", "", "The request body nests deeper than 512 levels at byte 533.")

	f(Chat, `{"model":"a","model":"b"}`, "duplicate_key", "model", "The request names 'model' twice; give it once.")
	f(Chat, `{"model":"a","\u006dodel":"b"}`, "duplicate_key", "model", "The request names 'model' twice; give it once.")
	f(Chat, `{"stream":true,"stream":true}`, "duplicate_key", "stream", "The request names 'stream' twice; give it once.")
	f(Chat, `{"messages":[],"messages":[]}`, "duplicate_key", "messages", "The request names 'messages' twice; give it once.")
	f(Chat, `{"prompt":1,"prompt":1}`, "duplicate_key", "prompt", "The request names 'prompt' twice; give it once.")
	f(Responses, `{"input":"","input":""}`, "duplicate_key", "input", "The request names 'input' twice; give it once.")
	f(Chat, `{"tools":[],"tools":[]}`, "duplicate_key", "tools", "The request names 'tools' twice; give it once.")
	f(Chat, `{"stream_options":{},"stream_options":{}}`, "duplicate_key", "stream_options", "The request names 'stream_options' twice; give it once.")

	f(Chat, `{"model":7}`, "invalid_type", "model", "Invalid type for 'model': expected a string, but got a number.")
	f(Chat, `{"model":["m"]}`, "invalid_type", "model", "Invalid type for 'model': expected a string, but got an array.")
	f(Chat, `{"stream":"true"}`, "invalid_type", "stream", "Invalid type for 'stream': expected true or false, but got a string.")
	f(Chat, `{"stream":1}`, "invalid_type", "stream", "Invalid type for 'stream': expected true or false, but got a number.")

	// What is no JSON is that before it is anything else; the first fault counts.
	f(Chat, `{"model":7,"model":8,`, "invalid_json", "", "The request body is not valid JSON: it ends at byte 21 where a key in quotes should follow.")
	f(Chat, `{"model":7,"stream":"x"}`, "invalid_type", "model", "Invalid type for 'model': expected a string, but got a number.")
}

// A prompt of a type that is none passes: the engine decides. It is counted, so that routing's blindness shows.
func TestDecodePassesStrangePrompts(t *testing.T) {
	f := func(k Kind, body string) {
		t.Helper()
		c, err := Decode(k, []byte(body))
		if err != nil || c.Unknown != 1 {
			t.Errorf("decode %s: %+v, %v; want it to pass with 1 unknown part", body, c, err)
		}
	}
	f(Chat, `{"model":"m","messages":"hi"}`)
	f(Chat, `{"model":"m","messages":{"role":"user"}}`)
	f(Completions, `{"model":"m","prompt":{}}`)
	f(Completions, `{"model":"m","prompt":true}`)
	f(Embeddings, `{"model":"m","input":5}`)
	f(Responses, `{"model":"m","input":{}}`)
}

func decode(t *testing.T, k Kind, body string) *Call {
	t.Helper()
	c, err := Decode(k, []byte(body))
	if err != nil {
		t.Fatalf("decode %s: %v", body, err)
	}
	return c
}

func stream(c *Call) string {
	var b bytes.Buffer
	prompt.Stream(&b, &c.Prompt)
	return b.String()
}

// One conversation through two front doors is one stream.
func TestChatAndResponsesAgree(t *testing.T) {
	f := func(chat, responses string) {
		t.Helper()
		a, b := decode(t, Chat, chat), decode(t, Responses, responses)
		if diff := cmp.Diff(describe(a)[strings.Index(describe(a), "\n"):], describe(b)[strings.Index(describe(b), "\n"):]); diff != "" {
			t.Errorf("chat and responses differ (-chat +responses):\n%s", diff)
		}
	}
	f(`{"model":"m","messages":[{"role":"user","content":"Hello"}]}`, `{"model":"m","input":"Hello"}`)
	f(`{"model":"m","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hello"}]}`,
		`{"input":[{"role":"user","content":[{"type":"input_text","text":"Hello"}]}],"instructions":"Be brief.","model":"m"}`)
	f(`{"model":"m","reasoning_effort":"low","messages":[{"role":"user","content":"北京？"},
		{"role":"assistant","content":"Let me look.","reasoning_content":"Weather.","tool_calls":[
			{"id":"1","type":"function","function":{"name":"w","arguments":"{\"c\":\"北京\"}"}},{"id":"2","type":"function","function":{"name":"w","arguments":"{\"c\":\"上海\"}"}}]},
		{"role":"tool","tool_call_id":"1","content":"25"},{"role":"tool","tool_call_id":"2","content":"28"},
		{"role":"assistant","content":"Warm."},{"role":"user","content":[{"type":"text","text":"This?"},{"type":"image_url","image_url":{"url":"data:image/png;base64,aGVsbG8="}}]}],
		"tools":[{"type":"function","function":{"name":"w","description":"d","parameters":{"type":"object","b":1,"a":2},"strict":true}}]}`,
		`{"model":"m","reasoning":{"effort":"low"},"input":[{"role":"user","content":"北京？"},
		{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"Weather."}]},
		{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Let me look."}]},
		{"type":"function_call","call_id":"1","name":"w","arguments":"{\"c\": \"北京\"}"},{"type":"function_call","call_id":"2","name":"w","arguments":"{\"c\": \"上海\"}"},
		{"type":"function_call_output","call_id":"1","output":"25"},{"type":"function_call_output","call_id":"2","output":"28"},
		{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Warm."}]},
		{"role":"user","content":[{"type":"input_text","text":"This?"},{"type":"input_image","image_url":"data:image/png;base64,aGVsbG8="}]}],
		"tools":[{"type":"function","name":"w","description":"d","parameters":{"type":"object","b":1,"a":2},"strict":true}]}`)
}

// What engines render the same must be the same, what they do not, must not.
func TestDecodedKeys(t *testing.T) {
	f := func(what string, same bool, k Kind, a, b string) {
		t.Helper()
		if got := stream(decode(t, k, a)) == stream(decode(t, k, b)); got != same {
			t.Errorf("%s: one stream: %t; want %t", what, got, same)
		}
	}
	hi := `"messages":[{"role":"user","content":"hi"}]`
	f("sampling", true, Chat, `{`+hi+`,"temperature":0.1,"max_tokens":5,"user":"a","seed":1}`, `{"temperature":0.9,`+hi+`}`)
	f("string and part", true, Chat, `{`+hi+`}`, `{"messages":[{"content":[{"type":"text","text":"hi"}],"role":"user"}]}`)
	f("escapes", true, Chat, `{"messages":[{"role":"user","content":"你\/"}]}`, `{"messages":[{"role":"user","content":"\u4f60/"}]}`)
	f("null and no content", true, Chat, `{"messages":[{"role":"assistant","content":null}]}`, `{"messages":[{"role":"assistant"}]}`)
	f("template keys in another order", true, Chat, `{`+hi+`,"chat_template_kwargs":{"a":1,"b":{"c":2,"d":3}}}`, `{`+hi+`,"chat_template_kwargs":{"b":{"d":3,"c":2},"a":1}}`)
	f("template values", false, Chat, `{`+hi+`,"chat_template_kwargs":{"a":1}}`, `{`+hi+`,"chat_template_kwargs":{"a":2}}`)
	f("template", false, Chat, `{`+hi+`,"chat_template_kwargs":{"enable_thinking":false}}`, `{`+hi+`}`)
	f("effort", false, Chat, `{`+hi+`,"reasoning_effort":"low"}`, `{`+hi+`,"reasoning_effort":"high"}`)
	f("salt", false, Chat, `{`+hi+`,"cache_salt":"a"}`, `{`+hi+`,"cache_salt":"b"}`)
	f("salt and extra key", false, Chat, `{`+hi+`,"cache_salt":"a"}`, `{`+hi+`,"extra_key":"a"}`)
	f("adapter", false, Chat, `{`+hi+`,"lora_path":"a"}`, `{`+hi+`}`)
	f("model", false, Chat, `{`+hi+`,"model":"a"}`, `{`+hi+`,"model":"b"}`)
	tool := func(members string) string {
		return `{` + hi + `,"tools":[{"type":"function","function":{` + members + `}}]}`
	}
	f("tool members in another order", true, Chat, tool(`"name":"f","parameters":{"x": 1}`), tool(`"parameters":{"x":1},"name":"f"`))
	f("schema keys in another order", false, Chat, tool(`"name":"f","parameters":{"x":1,"y":2}`), tool(`"name":"f","parameters":{"y":2,"x":1}`))
	f("tool description", false, Chat, tool(`"name":"f","description":"a"`), tool(`"name":"f","description":"b"`))
	f("null description", true, Chat, tool(`"name":"f","description":null,"strict":null`), tool(`"name":"f"`))
	image := func(url string) string {
		return `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + url + `"}}]}]}`
	}
	f("image", false, Chat, image("data:image/png;base64,aGVsbG8="), image("data:image/png;base64,aGVsbG9v"))
	f("media type of an image", true, Chat, image("data:image/png;base64,aGVsbG8="), image("data:image/gif;base64,aGVsbG8="))
	f("whole conversation", false, Chat,
		`{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"a"},{"role":"user","content":"x"}]}`,
		`{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"b"},{"role":"user","content":"x"}]}`)
	f("custom input", false, Chat, `{"messages":[{"role":"assistant","tool_calls":[{"custom":{"name":"f","input":"a b"}}]}]}`, `{"messages":[{"role":"assistant","tool_calls":[{"custom":{"name":"f","input":"ab"}}]}]}`)
	f("chat and tokenize", true, Tokenize, `{`+hi+`}`, `{`+hi+`,"prompt":null}`)
}

func TestBrokenUTF8IsRoutedByItsBytes(t *testing.T) {
	a := decode(t, Chat, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\xff\"}]}")
	b := decode(t, Chat, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\xfe\"}]}")
	if a.Prompt.Messages[0].Parts[0].Text != "a\xff" || stream(a) == stream(b) {
		t.Error("broken bytes do not count for what they are")
	}
}

func TestDecodeManyMembers(t *testing.T) {
	// A body of members that routing does not know, of every type.
	body := `{"model":"m","a":null,"b":[{}],"c":{"model":"other","model":"x"},"d":-1.5e9,"e":"\u0041","messages":[],"metadata":{"k":"v"},"a":1}`
	c := decode(t, Chat, body)
	if c.Model != "m" || c.Unknown != 0 {
		t.Errorf("model %q, unknown %d; want m and 0", c.Model, c.Unknown)
	}
}

// What Decode took must stay apart from later bodies: nothing is shared.
// Lists of elements of three bytes each must not cost much more than they are
// long.
func TestDecodeBoundsItems(t *testing.T) {
	const listed = 1 << 18
	f := func(k Kind, before, element, after string) {
		t.Helper()
		body := []byte(before + strings.Repeat(element+",", listed) + element + after)
		var from, to runtime.MemStats
		runtime.ReadMemStats(&from)
		c, err := Decode(k, body)
		runtime.ReadMemStats(&to)
		if err != nil {
			t.Fatalf("%s: %v", before, err)
		}
		if got := to.TotalAlloc - from.TotalAlloc; got > 64<<20 {
			t.Errorf("%s: decoding %d bytes took %d bytes; want at most %d", before, len(body), got, 64<<20)
		}
		p := &c.Prompt
		n := len(p.Messages) + len(p.Tools) + len(p.Raw) + len(p.Tokens)
		for i := range p.Messages {
			n += len(p.Messages[i].Parts)
		}
		for i := range p.Tools {
			n += len(p.Tools[i].Extra)
		}
		if n > maxItems+2 {
			t.Errorf("%s: %d items are kept; want at most %d", before, n, maxItems)
		}
		if c.Model != "m" {
			t.Errorf("%s: model = %q; what follows must be read", before, c.Model)
		}
	}
	const end = `],"model":"m"}`
	f(Chat, `{"messages":[`, `{}`, end)
	f(Chat, `{"messages":[`, `0`, end)
	f(Chat, `{"messages":[{"content":[`, `{}`, `]}`+end)
	f(Chat, `{"messages":[{"content":[`, `""`, `]}`+end)
	f(Chat, `{"messages":[{"tool_calls":[`, `{}`, `]}`+end)
	f(Chat, `{"tools":[`, `{}`, end)
	f(Chat, `{"functions":[`, `{}`, end)
	f(Chat, `{"tools":[{`, `"a":0`, `}`+end)
	f(Chat, `{"documents":[`, `{}`, end)
	f(Chat, `{"chat_template_kwargs":[`, `0`, end)
	f(Responses, `{"input":[`, `{}`, end)
	f(Responses, `{"input":[`, `{"role":"a"}`, end)
	f(Responses, `{"input":[{"type":"reasoning","summary":[`, `""`, `]}`+end)
	f(Completions, `{"prompt":[`, `""`, end)
	f(Completions, `{"prompt":[`, `[1]`, end)
	f(Completions, `{"prompt":[`, `1`, end)
	f(Rerank, `{"documents":[`, `{}`, end)
	f(Rerank, `{"documents":[`, `""`, end)
}

func TestDecodeBoundsIDs(t *testing.T) {
	f := func(before, after string) {
		t.Helper()
		c, err := Decode(Completions, []byte(before+strings.Repeat("1,", maxIDs)+"1"+after))
		if err != nil {
			t.Fatal(err)
		}
		if n := len(c.Prompt.Tokens[0]); n != maxIDs || c.Unknown != 1 {
			t.Errorf("%s: %d ids are kept, %d left out; want %d, 1", before, n, c.Unknown, maxIDs)
		}
	}
	f(`{"prompt":[`, `]}`)
	f(`{"prompt":[[`, `]]}`)
}

func TestDecodeIsIndependent(t *testing.T) {
	a := decode(t, Chat, `{"messages":[{"role":"user","content":"a\nb"}]}`)
	before := stream(a)
	_ = decode(t, Chat, `{"messages":[{"role":"user","content":"xxx\nyyy"}]}`)
	if stream(a) != before {
		t.Error("a later Decode changed an earlier Call")
	}
}

func chainOf(c *Call, answer ...prompt.Message) prefix.Chain {
	var h prefix.Hasher
	h.Reset(64)
	prompt.Write(&h, &c.Prompt)
	for _, m := range answer {
		prompt.WriteAnswer(&h, m)
	}
	return slices.Clone(h.Chain())
}

// Decode never panics, never changes the body, agrees with itself, and what it
// accepts can be edited.
func FuzzDecode(f *testing.F) {
	paths, _ := filepath.Glob("testdata/decode/*.json")
	for _, path := range paths {
		body, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(int(kindOf(f, path)), body)
	}
	f.Fuzz(func(t *testing.T, kind int, body []byte) {
		k := Kind(kind & 7)
		before := bytes.Clone(body)
		c, err := Decode(k, body)
		if !bytes.Equal(before, body) {
			t.Fatal("Decode changed the body")
		}
		if err != nil {
			e, ok := errors.AsType[*Error](err)
			if !ok || e.Status != http.StatusBadRequest || e.Message == "" {
				t.Fatalf("got %#v; want an *Error with status 400", err)
			}
			return
		}
		again, err := Decode(k, before)
		if err != nil || describe(again) != describe(c) {
			t.Fatalf("decoded again it is something else: %v", err)
		}
		if len(stream(c)) > 40*len(body)+4096*bytes.Count(body, []byte("{"))+4096 {
			t.Fatalf("a body of %d bytes has a stream of %d", len(body), len(stream(c)))
		}
		if _, err := Decode(k, c.Edit("other", true)); err != nil {
			t.Fatalf("edited it does not decode: %v", err)
		}
	})
}
