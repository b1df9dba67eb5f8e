package prompt

import (
	"io"
	"strconv"
	"strings"

	"github.com/warmroute/warmroute/prefix"
)

// Writer takes the canonical stream. [prefix.Hasher] and bytes.Buffer are two;
// errors of the writer are ignored, so it should be one that never fails.
type Writer interface {
	io.Writer
	io.StringWriter
	io.ByteWriter
}

// The stream frames its pieces by marks of two bytes: mark, then one of the
// letters below. 0xFF occurs in no valid UTF-8; where broken text holds one it
// is written twice. So the stream can be read back without doubt, no text can
// pose as framing, and no length stands before a text: prompts that begin
// alike have streams that begin alike, however they go on.
const mark = 0xFF

const (
	markModel      = 'M' // scope, always these five, in this order
	markAdapter    = 'A'
	markTenant     = 'N'
	markSalt       = 'S'
	markTemplate   = 'K'
	markTool       = 'T' // a tool: its type
	markToolName   = 'U'
	markToolText   = 'V'
	markToolSchema = 'W'
	markToolExtra  = 'X' // a further member: name, ':' and its JSON
	markMessage    = 'm' // a message: its role
	markName       = 'n'
	markText       = 't'
	markReasoning  = 'r'
	markImage      = 'i'
	markAudio      = 'a'
	markVideo      = 'v'
	markFile       = 'f'
	markCall       = 'c' // a tool call: the function's name
	markArguments  = 'g'
	markUnknown    = 'u'
	markEnd        = 'e' // end of a message
	markRaw        = 'p' // an untemplated prompt
	markTokens     = 'k' // a prompt of token ids
)

// Write writes the canonical stream of r into h: scope, tools, messages and
// the generation marker, which is the start of the assistant's message. Reset
// h before.
func Write(h *prefix.Hasher, r *Request) { Stream(h, r) }

// Stream is Write for any [Writer].
func Stream(w Writer, r *Request) {
	writeScope(w, &r.Scope)
	for i := range r.Tools {
		writeTool(w, &r.Tools[i])
	}
	for i := range r.Messages {
		open := r.Continue && i == len(r.Messages)-1
		writeMessage(w, &r.Messages[i], open)
	}
	if len(r.Messages) > 0 && !r.Continue {
		frame(w, markMessage, assistant)
	}
	for _, s := range r.Raw {
		frame(w, markRaw, s)
	}
	for _, ids := range r.Tokens {
		writeTokens(w, ids)
	}
}

// assistant is the role that answers.
const assistant = "assistant"

// WriteAnswer writes the answer m behind the stream of the request that it
// answers. Afterwards the chain is the one with which the conversation's next
// turn begins. A message without a role continues an untemplated prompt.
func WriteAnswer(h *prefix.Hasher, m Message) { StreamAnswer(h, m) }

// StreamAnswer is WriteAnswer for any [Writer].
func StreamAnswer(w Writer, m Message) {
	if m.Role == "" {
		text(w, m.Text())
		return
	}
	writeParts(w, m.Parts)
	end(w)
}

func writeScope(w Writer, s *Scope) {
	frame(w, markModel, s.Model)
	frame(w, markAdapter, s.Adapter)
	frame(w, markTenant, s.Tenant)
	frame(w, markSalt, s.CacheSalt)
	put(w, markTemplate)
	compact(w, string(s.Template))
}

func writeTool(w Writer, t *Tool) {
	kind := t.Type
	if kind == "" {
		kind = "function"
	}
	frame(w, markTool, kind)
	frame(w, markToolName, t.Name)
	frame(w, markToolText, t.Description)
	put(w, markToolSchema)
	compact(w, t.Parameters)
	for _, f := range t.Extra {
		frame(w, markToolExtra, f.Name)
		_ = w.WriteByte(':')
		compact(w, f.Raw)
	}
}

func writeMessage(w Writer, m *Message, open bool) {
	frame(w, markMessage, m.Role)
	if m.Name != "" {
		frame(w, markName, m.Name)
	}
	writeParts(w, m.Parts)
	if !open {
		end(w)
	}
}

// writeParts writes the parts in order. Neighbouring texts become one, joined
// by a line end as vLLM joins them, so that a string and a list of one text
// part are the same. An empty text alone is nothing: clients write the content
// of a message that only calls tools as null, as "" or not at all.
func writeParts(w Writer, parts []Part) {
	for i := range parts {
		p := &parts[i]
		switch p.Kind {
		case Text, ToolResult:
			writeText(w, parts, i)
		case Reasoning:
			if p.Text != "" {
				frame(w, markReasoning, p.Text)
			}
		case Image:
			writeMedia(w, markImage, p.Text)
		case Audio:
			writeMedia(w, markAudio, p.Text)
		case Video:
			writeMedia(w, markVideo, p.Text)
		case File:
			writeMedia(w, markFile, p.Text)
		case ToolCall:
			frame(w, markCall, p.Name)
			put(w, markArguments)
			writeArguments(w, p.Text)
		case Unknown:
			put(w, markUnknown)
			compact(w, p.Text)
		}
	}
}

// writeArguments writes what a call gives its tool: JSON, or of a custom tool
// any text.
func writeArguments(w Writer, s string) {
	if bare := strings.TrimLeft(s, " \n\t\r"); bare != "" && (bare[0] == '{' || bare[0] == '[') {
		compact(w, s)
		return
	}
	text(w, s)
}

func writeText(w Writer, parts []Part, i int) {
	joined := i > 0 && isText(parts[i-1].Kind)
	switch {
	case joined:
		_ = w.WriteByte('\n')
		text(w, parts[i].Text)
	case parts[i].Text != "" || i+1 < len(parts) && isText(parts[i+1].Kind):
		frame(w, markText, parts[i].Text)
	}
}

func isText(k PartKind) bool { return k == Text || k == ToolResult }

// writeTokens writes ids as four bytes each, about what a token of text takes,
// so that one learned ratio of bytes to tokens serves both.
func writeTokens(w Writer, ids []int) {
	put(w, markTokens)
	for _, id := range ids {
		if id < 0 || id >= 1<<28 {
			frame(w, markTokens, strconv.Itoa(id))
			put(w, markTokens)
			continue
		}
		// Seven bits a byte: no byte can be a mark.
		for shift := 0; shift < 28; shift += 7 {
			_ = w.WriteByte(byte(id >> shift & 0x7F))
		}
	}
}

func put(w Writer, kind byte) {
	_ = w.WriteByte(mark)
	_ = w.WriteByte(kind)
}

func end(w Writer) { put(w, markEnd) }

func frame(w Writer, kind byte, s string) {
	put(w, kind)
	text(w, s)
}

// text writes s with every mark byte in it doubled.
func text(w Writer, s string) {
	for {
		i := strings.IndexByte(s, mark)
		if i < 0 {
			_, _ = w.WriteString(s)
			return
		}
		_, _ = w.WriteString(s[:i+1])
		_ = w.WriteByte(mark)
		s = s[i+1:]
	}
}
