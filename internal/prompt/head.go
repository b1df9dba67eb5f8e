package prompt

import (
	"strings"
	"unicode/utf8"

	"github.com/warmroute/warmroute/prefix"
)

// HeadText returns the first n Unicode characters of the request's own text:
// of the messages' text contents one after the other, or of the first
// untemplated prompt. It is the text behind [prefix.SimpleKey]; roles, tools,
// media and reasoning are no part of it. It reads no further than it must and
// copies only when the text is spread over several parts.
func HeadText(r *Request, n int) string {
	var b joiner
	for i := range r.Messages {
		for j := range r.Messages[i].Parts {
			p := &r.Messages[i].Parts[j]
			if n <= 0 {
				return b.String()
			}
			if p.Kind != Text && p.Kind != ToolResult {
				continue
			}
			head := prefix.Head(p.Text, n)
			n -= utf8.RuneCountInString(head)
			b.add("", head)
		}
	}
	if len(r.Messages) == 0 && len(r.Raw) > 0 {
		return prefix.Head(r.Raw[0], n)
	}
	return b.String()
}

// joiner joins strings and copies nothing while there is only one.
type joiner struct {
	first string
	n     int
	rest  strings.Builder
}

func (j *joiner) add(sep, s string) {
	j.n++
	switch j.n {
	case 1:
		j.first = s
		return
	case 2:
		j.rest.WriteString(j.first)
	}
	j.rest.WriteString(sep)
	j.rest.WriteString(s)
}

func (j *joiner) String() string {
	if j.n < 2 {
		return j.first
	}
	return j.rest.String()
}
