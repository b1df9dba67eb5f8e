package prompt

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func compacted(s string) string {
	var b bytes.Buffer
	compact(&b, s)
	return b.String()
}

func TestCompact(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		if got := compacted(in); got != want {
			t.Errorf("compact(%q) is %q; want %q", in, got, want)
		}
	}
	f("", "")
	f(" \n\t\r", "")
	f(`{ "b" : 1 , "a" : [ 1 , 2 ] }`, `{"b":1,"a":[1,2]}`)
	f(`{"a": "x  y", "b\" c": " "}`, `{"a":"x  y","b\" c":" "}`)
	f(`"\u5317\u4eac \u00e9 \ud83d\ude00"`, `"北京 é 😀"`)
	f(`"a\/b \n \u000a \u0041 \\u5317"`, `"a/b \n \u000a \u0041 \\u5317"`)
	f(`"\ud83d x \ude00 \ud83d\u0041"`, `"\ud83d x \ude00 \ud83d\u0041"`)
	f("\"\xff\"", "\"\xff\xff\"")
	// No JSON: anything goes, as long as it ends.
	f(`"open \`, `"open \`)
	f(`"open \u12`, `"open \u12`)
	f(`a "b`, `a"b`)
}

// Compacting changes nothing of what the JSON means, and compacts fully: a
// second time changes nothing.
func FuzzCompact(f *testing.F) {
	f.Add(`{ "b" : 1.0 , "a" : [ "\u5317\/", "\ud83d\ude00" ] }`)
	f.Add(`"\ud83d"`)
	f.Add(`"\`)
	f.Fuzz(func(t *testing.T, s string) {
		got := compacted(s)
		if !json.Valid([]byte(s)) || strings.Contains(s, "\xff") {
			return
		}
		var want, have any
		if err := json.Unmarshal([]byte(s), &want); err != nil {
			return // a number out of range
		}
		if err := json.Unmarshal([]byte(got), &have); err != nil {
			t.Fatalf("compact(%q) is %q: %v", s, got, err)
		}
		if !reflect.DeepEqual(want, have) {
			t.Fatalf("compact(%q) is %q, which means something else", s, got)
		}
		if again := compacted(got); again != got {
			t.Fatalf("compact(%q) is %q, and that compacts to %q", s, got, again)
		}
	})
}

func BenchmarkCompact(b *testing.B) {
	s := strings.Repeat(`{"type": "function", "function": {"name": "weather", "description": "The weather of a city, in words", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}, `, 50)
	var w discard
	b.SetBytes(int64(len(s)))
	b.ReportAllocs()
	for b.Loop() {
		compact(&w, s)
	}
}

type discard struct{ n int }

func (d *discard) Write(p []byte) (int, error)       { d.n += len(p); return len(p), nil }
func (d *discard) WriteString(s string) (int, error) { d.n += len(s); return len(s), nil }
func (d *discard) WriteByte(byte) error              { d.n++; return nil }
