package prompt

import (
	"fmt"
	"strings"
)

// pieces names the marks of the stream.
var pieces = map[byte]string{
	markModel: "model", markAdapter: "adapter", markTenant: "tenant", markSalt: "salt", markTemplate: "template",
	markTool: "tool", markToolName: "tool name", markToolText: "tool description",
	markToolSchema: "tool parameters", markToolExtra: "tool member",
	markMessage: "message", markName: "name", markText: "text", markReasoning: "reasoning",
	markImage: "image", markAudio: "audio", markVideo: "video", markFile: "file",
	markCall: "call", markArguments: "arguments", markUnknown: "unknown", markEnd: "end",
	markRaw: "prompt", markTokens: "tokens",
}

// Dump returns a canonical stream in readable form: a line for each piece,
// with its byte offset, its name and its text in quotes. It holds the prompt
// itself, so it is for tools that the prompt's owner runs.
func Dump(stream []byte) string {
	var b strings.Builder
	for at := 0; at < len(stream); {
		end := at + 2
		for end < len(stream) && !isMark(stream, end) {
			if stream[end] == mark {
				end++ // a doubled mark byte is text
			}
			end++
		}
		end = min(end, len(stream))
		name := pieces[stream[min(at+1, len(stream)-1)]]
		text := strings.ReplaceAll(string(stream[min(at+2, end):end]), "\xff\xff", "\xff")
		if len(text) == mediaBytes && text == strings.Repeat(text[:64], mediaBytes/64) {
			text = text[:64] + " repeated"
		}
		fmt.Fprintf(&b, "%6d %s %q\n", at, name, text)
		at = end
	}
	return b.String()
}

func isMark(stream []byte, i int) bool {
	return stream[i] == mark && i+1 < len(stream) && stream[i+1] != mark
}
