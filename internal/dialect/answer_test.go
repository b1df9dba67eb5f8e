package dialect

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/warmroute/warmroute/internal/prompt"
)

func describeWhole(a Answer) string {
	var b strings.Builder
	fmt.Fprintf(&b, "finish %q usage %+v\n", a.Finish, a.Usage)
	if a.Fault != nil {
		fmt.Fprintf(&b, "fault %+v\n", *a.Fault)
	}
	b.WriteString(describeAnswer(a.Message, a.Joinable))
	return b.String()
}

func TestParseAnswerGolden(t *testing.T) {
	var got strings.Builder
	f := func(k Kind, body string) {
		t.Helper()
		a, err := ParseAnswer(k, []byte(body))
		if err != nil {
			t.Errorf("%s %s: %v", k, body, err)
		}
		fmt.Fprintf(&got, "%s %s\n%s\n", k, body, describeWhole(a))
	}
	f(Chat, `{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"Hello\n你好","refusal":null},"finish_reason":"stop"}],"usage":{"prompt_tokens":100,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":64}}}`)
	f(Chat, `{"choices":[{"message":{"content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}},{"id":"c2","function":{"name":"g","arguments":"{}"}}],"reasoning_content":"Hm.","role":"assistant"},"finish_reason":"tool_calls"}]}`)
	f(Chat, `{"choices":[{"message":{"role":"assistant","content":"a"}},{"message":{"role":"assistant","content":"b"}}],"usage":null}`)
	f(Chat, `{"choices":[],"usage":{"prompt_tokens":1}}`)
	f(Chat, `{"choices":[{"message":{"role":"assistant","content":""},"finish_reason":"length"}]}`)
	f(Chat, `{"choices":null}`)
	f(Chat, `{"choices":[{"message":{"content":"a"}}]}`)
	f(Chat, `{"choices":[{"message":{"role":"assistant","content":"a"},"finish_reason":"abort"}]}`)
	f(Chat, `{"error":{"message":"out of memory","type":"server_error","code":500}}`)
	f(Chat, `{"object":"error","message":"too long","type":"BadRequestError","param":null,"code":400}`)
	f(Chat, `{"error":null,"choices":[{"message":{"role":"assistant","content":"a"}}]}`)
	f(Completions, `{"choices":[{"text":"there was a king","finish_reason":"length"}],"usage":{"prompt_tokens":5,"completion_tokens":4}}`)
	f(Completions, `{"choices":[{"text":"a"},{"text":"b"}]}`)
	f(Responses, `{"object":"response","status":"completed","error":null,"instructions":"x","output":[{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"Hm."}]},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Warm."}]},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}],"usage":{"input_tokens":10,"output_tokens":5,"input_tokens_details":{"cached_tokens":4}}}`)
	f(Responses, `{"status":"failed","error":{"code":"server_error","message":"boom"},"output":[]}`)
	f(Responses, `{"status":"failed","error":null,"output":[]}`)
	f(Responses, `{"status":"in_progress","output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"a"}]}]}`)
	f(Responses, `{"status":"incomplete","output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"a"}]}]}`)
	f(Responses, `{"status":"completed","output":"text"}`)
	f(Embeddings, `{"object":"list","data":[{"embedding":[0.1,-2e-3]}],"usage":{"prompt_tokens":7,"total_tokens":7}}`)
	f(Rerank, `{"results":[{"index":0,"relevance_score":0.5}],"usage":{"total_tokens":9}}`)
	f(Score, `{"data":[{"score":1}],"usage":{}}`)
	f(Tokenize, `{"count":3,"tokens":[1,2,3],"max_model_len":4096}`)
	golden(t, "testdata/answers.txt", got.String())
}

func TestParseAnswerRefuses(t *testing.T) {
	f := func(body, want string) {
		t.Helper()
		if a, err := ParseAnswer(Chat, []byte(body)); err == nil || err.Error() != want || a.Joinable {
			t.Errorf("%q: got %+v, %v; want %s", body, a, err, want)
		}
	}
	f("", "parse chat answer: body is no JSON object")
	f("<html>", "parse chat answer: body is no JSON object")
	f("[]", "parse chat answer: body is no JSON object")
	f(`{"choices":[{"message":{"content":"cut`, "parse chat answer: body is not valid JSON: it ends at byte 38 where the string's end should follow")
	f(`{} {}`, "parse chat answer: body is not valid JSON: '{' at byte 3 where the end should be")
}

// An answer that did not stream joins the chain as a streamed one does.
func TestWholeAnswerJoinsTheChain(t *testing.T) {
	ask := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("北京的天气？", 20) + `"}`
	first := decode(t, Chat, ask+`]}`)
	a, err := ParseAnswer(Chat, []byte(`{"choices":[{"message":{"role":"assistant","content":null,"reasoning":"Hm.","tool_calls":[{"id":"c1","function":{"name":"w","arguments":"{\"c\": \"北京\"}"}}]},"finish_reason":"tool_calls"}]}`))
	if err != nil || !a.Joinable {
		t.Fatal(a, err)
	}
	second := decode(t, Chat, ask+`,{"role":"assistant","reasoning":"Hm.","tool_calls":[{"id":"c1","function":{"name":"w","arguments":"{\"c\":\"北京\"}"}}],"content":""},{"role":"tool","content":"25"}]}`)
	var joined bytes.Buffer
	prompt.Stream(&joined, &first.Prompt)
	prompt.StreamAnswer(&joined, a.Message)
	if !strings.HasPrefix(stream(second), joined.String()) {
		t.Errorf("turn 2\n%s\ndoes not begin with turn 1 and its answer\n%s", prompt.Dump([]byte(stream(second))), prompt.Dump(joined.Bytes()))
	}
}

func FuzzParseAnswer(f *testing.F) {
	f.Add(1, []byte(`{"choices":[{"message":{"role":"assistant","content":"a","tool_calls":[{}]}}],"usage":{"prompt_tokens":1}}`))
	f.Add(2, []byte(`{"choices":[{"text":"a"}],"error":null}`))
	f.Add(4, []byte(`{"status":"completed","output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"a"}]}]}`))
	f.Fuzz(func(t *testing.T, kind int, body []byte) {
		a, err := ParseAnswer(Kind(kind&7), body)
		if err != nil && (a.Joinable || a.Fault != nil || a.Usage != Usage{}) {
			t.Fatalf("an error and an answer: %+v, %v", a, err)
		}
		if a.Joinable && a.Fault != nil {
			t.Fatalf("joins in spite of %v", a.Fault)
		}
		if u := ParseUsage(body); err == nil && u != a.Usage && a.Usage.HasUsage && !u.HasUsage {
			t.Fatalf("usage %+v here, %+v there", a.Usage, u)
		}
	})
}

func BenchmarkParseAnswer(b *testing.B) {
	body := []byte(`{"choices":[{"message":{"role":"assistant","content":"` + strings.Repeat("some words of an answer, ", 100) + `"},"finish_reason":"stop"}],"usage":{"prompt_tokens":100,"completion_tokens":3}}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseAnswer(Chat, body); err != nil {
			b.Fatal(err)
		}
	}
}
