package dialect

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/warmroute/warmroute/internal/prompt"
	"github.com/warmroute/warmroute/prefix"
)

// chatBody returns a chat of about size bytes as an agent sends it: a system
// prompt, tools, and turns of text with quotes and line ends.
func chatBody(size int) []byte {
	line := "Ein \"Satz\" mit Anführung, ein Pfad /usr/lib,\n\tund 一些中文 to end it. "
	quoted := func(s string) string {
		q, err := json.Marshal(s)
		if err != nil {
			panic(err)
		}
		return string(q)
	}
	var b strings.Builder
	b.WriteString(`{"model":"llama","stream":true,"temperature":0.5,"messages":[{"role":"system","content":`)
	b.WriteString(quoted(strings.Repeat("You are careful. ", size/100)) + "}")
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, `,{"role":"user","content":%s}`, quoted(fmt.Sprint(i)+strings.Repeat(line, 20)))
		fmt.Fprintf(&b, `,{"role":"assistant","content":[{"type":"text","text":%s}]}`, quoted(strings.Repeat(line, 5)))
	}
	b.WriteString(`],"tools":[{"type":"function","function":{"name":"weather","description":"Weather of a city","parameters":`)
	b.WriteString(`{"type":"object","properties":{"city":{"type":"string"}}}}}]}`)
	return []byte(b.String())
}

// The whole hot path of a request before the match: decode, canonical stream,
// chain.
func BenchmarkDecodeToChain(b *testing.B) {
	for _, size := range []int{10 << 10, 200 << 10, 2 << 20} {
		body := chatBody(size)
		b.Run(fmt.Sprintf("%dKB", size>>10), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			var h prefix.Hasher
			for b.Loop() {
				c, err := Decode(Chat, body)
				if err != nil {
					b.Fatal(err)
				}
				h.Reset(0)
				prompt.Write(&h, &c.Prompt)
			}
		})
	}
}
