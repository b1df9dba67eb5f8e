package dialect

import (
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// value reads the value at the cursor into what encoding/json would make of it.
func value(c *cursor) any {
	switch c.peek() {
	case '{':
		m := map[string]any{}
		for key := range c.members {
			m[runes(key)] = value(c)
		}
		return m
	case '[':
		a := []any{}
		for range c.elements {
			a = append(a, value(c))
		}
		return a
	case '"':
		s, _ := c.text()
		return runes(s)
	case 't', 'f':
		b, _ := c.boolean()
		return b
	case 'n':
		c.skip()
		return nil
	}
	n, _ := strconv.ParseFloat(c.raw(), 64)
	return n
}

// runes is s with each broken byte replaced, as encoding/json does. The cursor
// leaves them, because text is routed by its bytes.
func runes(s string) string { return string([]rune(s)) }

// check compares the cursor with encoding/json: what is valid, where it stops
// being so, and what it means, both when walking and when skipping.
func check(t *testing.T, in []byte) {
	t.Helper()
	var want any
	err := json.Unmarshal(in, &want)
	syntax, broken := errors.AsType[*json.SyntaxError](err)

	walk := cursor{b: in}
	got := value(&walk)
	walk.finish()
	skip := cursor{b: in}
	skip.skip()
	skip.finish()
	if walk.fault != skip.fault {
		t.Fatalf("%q: walking finds %+v, skipping %+v", in, walk.fault, skip.fault)
	}
	if walk.fault.want == deeper {
		return // encoding/json goes deeper
	}
	if walk.fault.set != broken {
		t.Fatalf("%q: the cursor finds %+v, encoding/json %v", in, walk.fault, err)
	}
	if broken {
		at := int(syntax.Offset) - 1
		// encoding/json tells of an early end by the blank that it puts behind it.
		blank := strings.HasPrefix(syntax.Error(), "invalid character ' '") && in[at] != ' '
		if blank || strings.HasPrefix(syntax.Error(), "unexpected end") {
			at = len(in)
		}
		if walk.fault.at != at {
			t.Fatalf("%q: the cursor stops at %d, encoding/json at %d: %v", in, walk.fault.at, at, err)
		}
		return
	}
	if err == nil && !reflect.DeepEqual(got, want) {
		t.Fatalf("%q: the cursor reads %#v, encoding/json %#v", in, got, want)
	}
}

var jsonSamples = []string{
	``, ` `, `{}`, ` [ ] `, `null`, `true`, `fals`, `nulL`, `"a"`, `"a`, `"\`, `"\x"`, `"\u12g4"`, `"\ud83d\ude00"`, `"\ud83d"`, `"\ud83dx"`,
	`"\ud83d\u0041"`, `"\ude00\ud83d\ude00"`, `"\ud83d\u00zz"`, `"\ud83d\`, `"\/\b\f\n\r\t\"\\"`, "\"\n\"", "\"\x1f", "\"\x7f\xff\"", `"12345678\n12345678"`,
	`0`, `-0`, `01`, `-`, `1.`, `1.5e`, `1e+`, `1E-9`, `.5`, `+1`, `1.5e9x`, `123456789`,
	`{"a":1,"b":[1,2,{"c":null}],"a":2}`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{,}`, `{1:2}`, `[1,]`, `[1 2]`, `[`, `{`, `{"a":[}`, `[1}`, `{"a":1]`, `[]]`, `{} {}`,
	"\xef\xbb\xbf{}", "{\"a\":\v1}", `{"a\u0062":"\u00e9"}`,
}

func TestCursorAgreesWithEncodingJSON(t *testing.T) {
	for _, s := range jsonSamples {
		check(t, []byte(s))
	}
}

func FuzzCursor(f *testing.F) {
	for _, s := range jsonSamples {
		f.Add([]byte(s))
	}
	f.Fuzz(check)
}

func TestCursorDepth(t *testing.T) {
	f := func(open, inner, shut string, depth int, want bool) {
		t.Helper()
		in := []byte(strings.Repeat(open, depth) + inner + strings.Repeat(shut, depth))
		c := cursor{b: in}
		c.skip()
		c.finish()
		if deep := c.fault.want == deeper; c.fault.set != want || deep != want {
			t.Errorf("%d levels of %s: fault %+v; want one: %t", depth, open, c.fault, want)
		}
	}
	f("[", "", "]", 512, false)
	f("[", "", "]", 513, true)
	f("[", "1", "]", 512, false)
	f(`{"a":`, "{}", "}", 511, false)
	f(`{"a":`, "{}", "}", 512, true)
	f("[", "", "", 10_000_000, true) // costs no stack
	f(`[{"a":`, "1", "}]", 256, false)
	f(`[{"a":`, "1", "}]", 257, true)
}

func TestCursorIntegers(t *testing.T) {
	f := func(in string, want int, ok bool) {
		t.Helper()
		c := cursor{b: []byte(in)}
		if got, have := c.integer(); got != want || have != ok {
			t.Errorf("%s: got %d, %t; want %d, %t", in, got, have, want, ok)
		}
	}
	f("17", 17, true)
	f("-3", -3, true)
	f("2.9", 2, true)
	f("1e3", 1000, true)
	f("1e30", 0, false)
	f(`"17"`, 0, false)
	f("null", 0, false)
}

// A walk that stops early still checks the rest.
func TestCursorBreak(t *testing.T) {
	c := cursor{b: []byte(`{"a":1,"b":[1,2],"c":3}`)}
	var keys strings.Builder
	for key := range c.members {
		keys.WriteString(key)
		if key == "b" {
			for range c.elements {
				break
			}
			break
		}
	}
	c.finish()
	if keys.String() != "ab" || c.fault.set {
		t.Errorf("walked %s, fault %+v; want ab and none", keys.String(), c.fault)
	}
	c = cursor{b: []byte(`{"a":1,"b":]}`)}
	for range c.members {
		break
	}
	c.finish()
	if c.fault.at != 11 {
		t.Errorf("fault at %d; want 11", c.fault.at)
	}
}

func BenchmarkSkip(b *testing.B) {
	body := chatBody(200 << 10)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		c := cursor{b: body}
		c.skip()
		if c.fault.set {
			b.Fatal(c.fault)
		}
	}
}
