package dialect

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"testing"
)

func TestSetModel(t *testing.T) {
	f := func(body, model, want string) {
		t.Helper()
		got, err := SetModel([]byte(body), model)
		if err != nil || string(got) != want {
			t.Errorf("set %q in %s: got %s, %v; want %s", model, body, got, err, want)
		}
	}
	f(`{"model":"a"}`, "bb", `{"model":"bb"}`)
	f(`{"model":"long/name","x":1}`, "a", `{"model":"a","x":1}`)
	f(" {\n\t\"x\" : 1 , \"model\" :  \"a\"  ,\r\n \"x\" : 2}\n", "b", " {\n\t\"x\" : 1 , \"model\" :  \"b\"  ,\r\n \"x\" : 2}\n")
	f(`{"m\u006fdel":"a"}`, "b", `{"m\u006fdel":"b"}`)
	f(`{"metadata":{"model":"keep"},"model":null}`, "b", `{"metadata":{"model":"keep"},"model":"b"}`)
	f(`{"a":"model","model":"a"}`, "b\"\\\n", `{"a":"model","model":"b\"\\\n"}`)
	f(`{}`, "b", `{"model":"b"}`)
	f(`{ "x":1 }`, "b", `{ "x":1 ,"model":"b"}`)
	f(`{"model":"a"}`, "", `{"model":"a"}`)
}

func TestAskUsage(t *testing.T) {
	f := func(body, want string) {
		t.Helper()
		got, err := AskUsage([]byte(body))
		if err != nil || string(got) != want {
			t.Errorf("ask in %s: got %s, %v; want %s", body, got, err, want)
		}
	}
	f(`{"stream":true}`, `{"stream":true,"stream_options":{"include_usage":true}}`)
	f(`{}`, `{"stream_options":{"include_usage":true}}`)
	f("{ \"a\" : 1 ,\n \"a\" : 2\n}\n", "{ \"a\" : 1 ,\n \"a\" : 2\n,\"stream_options\":{\"include_usage\":true}}\n")
	f(`{"stream_options":{},"x":1}`, `{"stream_options":{"include_usage":true},"x":1}`)
	f(`{"stream_options": { } }`, `{"stream_options": { "include_usage":true} }`)
	f(`{"stream_options":{"y" : 1 },"x":1}`, `{"stream_options":{"y" : 1 ,"include_usage":true},"x":1}`)
	f(`{"stream_options": null ,"x":1}`, `{"stream_options": {"include_usage":true} ,"x":1}`)
	f(`{"stream_options":{"include_usage": null }}`, `{"stream_options":{"include_usage": true }}`)
	// What the client chose stays.
	for _, body := range []string{
		`{"stream_options":{"include_usage":true}}`,
		`{"stream_options":{"include_usage" : false}}`,
		`{"stream_options":{"include_usage":"yes"}}`,
		`{"stream_options":"all"}`,
		`{"stream_options":[]}`,
	} {
		f(body, body)
	}
}

func TestEditsRefuse(t *testing.T) {
	f := func(body, code string) {
		t.Helper()
		for _, edit := range []func([]byte) ([]byte, error){
			AskUsage,
			func(b []byte) ([]byte, error) { return SetModel(b, "x") },
		} {
			got, err := edit([]byte(body))
			if e, ok := errors.AsType[*Error](err); !ok || e.Code != code || got != nil {
				t.Errorf("%s: got %s, %v; want %s", body, got, err, code)
			}
		}
	}
	f(``, "invalid_type")
	f(`[]`, "invalid_type")
	f(`{"a":}`, "invalid_json")
	f(`{"a":1} {}`, "invalid_json")
	f(`{"model":"a","model":"b"}`, "duplicate_key")
	f(`{"stream_options":{},"stream_options":{}}`, "duplicate_key")
}

func TestCallEdit(t *testing.T) {
	f := func(body, model string, ask bool, want string) {
		t.Helper()
		if got := decode(t, Chat, body).Edit(model, ask); string(got) != want {
			t.Errorf("edit %s: got %s; want %s", body, got, want)
		}
	}
	f(`{"stream_options":{},"model":"a"}`, "b", true, `{"stream_options":{"include_usage":true},"model":"b"}`)
	f(`{"model":"a","stream_options":{}}`, "b", true, `{"model":"b","stream_options":{"include_usage":true}}`)
	f(`{}`, "b", true, `{"stream_options":{"include_usage":true},"model":"b"}`)
	f(`{"x":1}`, "b", true, `{"x":1,"stream_options":{"include_usage":true},"model":"b"}`)
	f(`{"model":"a"}`, "", false, `{"model":"a"}`)
	body := []byte(`{"model":"a"}`)
	c, err := Decode(Chat, body)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Edit("", false); &got[0] != &body[0] {
		t.Error("an edit of nothing copies the body")
	}
	// A hundred times the same request is a hundred times the same body.
	want := string(c.Edit("b", true))
	for range 100 {
		if got := c.Edit("b", true); string(got) != want {
			t.Fatalf("got %s; want %s", got, want)
		}
	}
	if string(body) != `{"model":"a"}` {
		t.Error("an edit changed the body in place")
	}
}

func TestMayAskUsage(t *testing.T) {
	f := func(k Kind, body string, want bool) {
		t.Helper()
		if got := decode(t, k, body).MayAskUsage(); got != want {
			t.Errorf("%s %s: got %t; want %t", k, body, got, want)
		}
	}
	f(Chat, `{"stream":true}`, true)
	f(Completions, `{"stream":true}`, true)
	f(Chat, `{"stream":true,"stream_options":{"x":1}}`, true)
	f(Chat, `{"stream":false}`, false)
	f(Chat, `{}`, false)
	f(Chat, `{"stream":true,"stream_options":{"include_usage":false}}`, false)
	f(Chat, `{"stream":true,"stream_options":{"include_usage":true}}`, false)
	f(Chat, `{"stream":true,"stream_options":5}`, false)
	f(Responses, `{"stream":true}`, false)
	f(Embeddings, `{"stream":true}`, false)
}

// An edit changes the one value and no other byte: what is left and right of
// it is found again, and without it both bodies mean the same.
func FuzzEdit(f *testing.F) {
	for _, body := range []string{
		`{"model":"a","messages":[{"role":"user","content":"hi"}],"stream":true}`,
		" {\n \"stream_options\" : { \"x\" : [1, 2] } , \"m\\u006fdel\" : null }\r\n",
		`{"stream_options":{"include_usage":false}}`, `{"a":1,"a":2}`, `{}`, `[]`,
	} {
		f.Add([]byte(body), "some/model")
	}
	f.Fuzz(func(t *testing.T, body []byte, model string) {
		before := bytes.Clone(body)
		set, err := SetModel(body, model)
		asked, err2 := AskUsage(body)
		if !bytes.Equal(body, before) {
			t.Fatal("an edit changed the body in place")
		}
		if (err == nil) != (err2 == nil) {
			t.Fatalf("one edit fails, the other does not: %v, %v", err, err2)
		}
		if err != nil {
			return
		}
		if model != "" {
			sameBut(t, body, set, "model")
		}
		sameBut(t, body, asked, "stream_options")
		twice, err := AskUsage(asked)
		if err != nil || !bytes.Equal(twice, asked) {
			t.Fatalf("asking twice changes %s to %s: %v", asked, twice, err)
		}
	})
}

// sameBut checks that b is a with one stretch replaced, and means the same but
// for the member named key.
func sameBut(t *testing.T, a, b []byte, key string) {
	t.Helper()
	head := 0
	for head < min(len(a), len(b)) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < min(len(a), len(b))-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	if changed := len(a) - head - tail; key == "stream_options" && changed > len("null") {
		t.Fatalf("%d bytes of %s are gone in %s", changed, a, b)
	}
	var was, is map[string]any
	if json.Unmarshal(a, &was) != nil {
		return // numbers out of range
	}
	if err := json.Unmarshal(b, &is); err != nil {
		t.Fatalf("%s became %s: %v", a, b, err)
	}
	delete(was, key)
	delete(is, key)
	if !reflect.DeepEqual(was, is) {
		t.Fatalf("%s became %s", a, b)
	}
}

func BenchmarkEdit(b *testing.B) {
	body := chatBody(200 << 10)
	c, err := Decode(Chat, body)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		c.Edit("other", true)
	}
}
