package prefix_test

import (
	"strings"
	"testing"

	"github.com/warmroute/warmroute/prefix"
)

func TestSimpleKeyVectors(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		if got := prefix.SimpleKey(text, 100); got != want {
			t.Errorf("SimpleKey(%.20q) is %s; want %s", text, got, want)
		}
	}
	f(strings.Repeat("a", 150), "2816597888e4a0d3a36b82b83316ab32680eb8f00f8cd3b904d681246d285a0e")
	f(strings.Repeat("你", 150), "5f10f321d6f7459aa527a81f68926a073a621adceef0d3d16167b807b753afae")
	f("You are a helpful assistant.", "75357d685f238b6afd7738be9786fdafde641eb6ca9a3be7471939715a68a4de")

	// As they are published, shortened.
	short := func(text, head, tail string) {
		t.Helper()
		key := prefix.SimpleKey(text, 100)
		if len(key) != 64 || !strings.HasPrefix(key, head) || !strings.HasSuffix(key, tail) {
			t.Errorf("SimpleKey(%.20q) is %s; want %s...%s", text, key, head, tail)
		}
	}
	short(strings.Repeat("a", 150), "28165978", "285a0e")
	short(strings.Repeat("你", 150), "5f10f321", "53afae")
	short("You are a helpful assistant.", "75357d68", "68a4de")
}

func TestHead(t *testing.T) {
	f := func(text string, n int, want string) {
		t.Helper()
		if got := prefix.Head(text, n); got != want {
			t.Errorf("Head(%q, %d) is %q; want %q", text, n, got, want)
		}
	}
	f("", 3, "")
	f("abc", 0, "")
	f("abc", -1, "")
	f("abc", 2, "ab")
	f("abc", 3, "abc")
	f("abc", 4, "abc")
	f("你好吗", 2, "你好")
	f("你好吗", 3, "你好吗")
	f("你好吗", 8, "你好吗")
	f("e\u0301x", 2, "e\u0301") // a combining mark is a character of its own
	f("\xff\xfea", 2, "\xff\xfe")
}

func TestSimpleKeyIsBlindBehindItsCharacters(t *testing.T) {
	head := strings.Repeat("é", 100)
	if prefix.SimpleKey(head+"one", 100) != prefix.SimpleKey(head+"two", 100) {
		t.Error("text behind the first n characters changed the key")
	}
	if prefix.SimpleKey(head+"one", 101) == prefix.SimpleKey(head+"two", 101) {
		t.Error("text within the first n characters did not change the key")
	}
}

func BenchmarkSimpleKey(b *testing.B) {
	text := strings.Repeat("你", 1000)
	b.ReportAllocs()
	for b.Loop() {
		prefix.SimpleKey(text, 100)
	}
}
