package prompt_test

import (
	"strings"
	"testing"

	"github.com/warmroute/warmroute/internal/prompt"
)

func TestHeadText(t *testing.T) {
	f := func(r *prompt.Request, n int, want string) {
		t.Helper()
		if got := prompt.HeadText(r, n); got != want {
			t.Errorf("HeadText(%d) is %q; want %q", n, got, want)
		}
	}
	chat := conversation()
	f(chat, 0, "")
	f(chat, 3, "You")
	f(chat, 16, "You are careful.")
	f(chat, 18, "You are careful.Lo")
	f(chat, 1000, "You are careful.Look:herenowCalling.25 °C")
	f(&prompt.Request{Raw: []string{"你好吗", "second"}}, 2, "你好")
	f(&prompt.Request{Raw: []string{"ab", "second"}}, 10, "ab")
	f(&prompt.Request{Tokens: [][]int{{1}}}, 10, "")
	f(&prompt.Request{}, 10, "")
}

func TestHeadTextOfOnePartIsNoCopy(t *testing.T) {
	r := &prompt.Request{Messages: []prompt.Message{message("user", text(strings.Repeat("a", 1000)))}}
	if n := testing.AllocsPerRun(100, func() { prompt.HeadText(r, 100) }); n != 0 {
		t.Errorf("HeadText allocates %v times; want 0", n)
	}
}

func TestMessageText(t *testing.T) {
	f := func(m prompt.Message, want string) {
		t.Helper()
		if got := m.Text(); got != want {
			t.Errorf("got %q; want %q", got, want)
		}
	}
	f(message("user"), "")
	f(message("user", text("a")), "a")
	f(message("user", text("a"), prompt.Part{Kind: prompt.Image, Text: "u"}, text("b")), "a\nb")
	f(message("tool", prompt.Part{Kind: prompt.ToolResult, Text: "r"}), "r")
}

func TestPartKindNames(t *testing.T) {
	f := func(k prompt.PartKind, want string) {
		t.Helper()
		if k.String() != want {
			t.Errorf("got %s; want %s", k, want)
		}
	}
	f(prompt.Text, "text")
	f(prompt.Unknown, "unknown")
	f(0, "invalid")
	f(200, "invalid")
}
