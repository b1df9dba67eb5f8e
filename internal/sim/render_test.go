package sim

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func rendered(t *testing.T, body string) []TokenID {
	t.Helper()
	var c conversation
	if err := json.Unmarshal([]byte(body), &c); err != nil {
		t.Fatal(err)
	}
	tokens, err := c.render()
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

func TestRender(t *testing.T) {
	const head = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: "
	f := func(body, want string) {
		t.Helper()
		if got := string(AppendText(nil, rendered(t, body))); got != head+want {
			t.Errorf("%s renders as\n%q; want\n%q", body, got, head+want)
		}
	}
	const asks = "<|start_header_id|>assistant<|end_header_id|>\n\n"
	f(`{"messages":[{"role":"user","content":"Hi"}]}`,
		"26 Jul 2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"+asks)
	f(`{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}`,
		"26 Jul 2024\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\na\nb<|eot_id|>"+asks)
	f(`{"messages":[],"chat_template_kwargs":{"date_string":"1 Jan 2030","enable_thinking":false}}`,
		"1 Jan 2030\n\n<|eot_id|>"+asks+"<think>\n\n</think>\n\n")
	f(`{"messages":[{"role":"assistant","content":"So"}],"continue_final_message":true}`,
		"26 Jul 2024\n\n<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nSo")
	f(`{"messages":[{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{\"b\":1,\"a\":[2,3]}"}}]},
		{"role":"tool","content":"ok"}],"add_generation_prompt":false}`,
		"26 Jul 2024\n\n<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"+`{"name": "f", "parameters": {"b": 1, "a": [2, 3]}}`+
			"<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\nok<|eot_id|>")
	f(`{"messages":[],"tools":[{"function":{"parameters":{"z":true,"a":"<é>"},"name":"get"},"type":"function"}],"add_generation_prompt":false}`,
		"26 Jul 2024\n\nYou have access to the following functions. To call a function, respond with JSON for a function call.\n\n"+
			`{"type": "function", "function": {"name": "get", "description": "", "parameters": {"z": true, "a": "<é>"}}}`+"\n\n<|eot_id|>")
}

func TestRender_Errors(t *testing.T) {
	f := func(body, want string) {
		t.Helper()
		var c conversation
		if err := json.Unmarshal([]byte(body), &c); err != nil {
			t.Fatal(err)
		}
		if _, err := c.render(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", body, err, want)
		}
	}
	f(`{"messages":[{"content":"x"}]}`, "messages[0]: role is missing")
	f(`{"messages":[{"role":"user","content":[{"type":"text","text":"x"},{"type":"hologram"}]}]}`, "messages[0]: content[1]: unknown part type: hologram")
	f(`{"messages":[{"role":"user","content":7}]}`, "content must be")
}

// A turn's tokens do not depend on what follows: the next turn's prompt begins with this one's and the answer.
func TestRender_TurnsAreStable(t *testing.T) {
	const turn1 = `{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"What is cached?"}]}`
	prompt := rendered(t, turn1)
	a := newAnswer(1, limits{max: 1000, mean: 50})
	text, _ := json.Marshal(a.text)
	turn2 := `{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"What is cached?"},{"role":"assistant","content":` +
		string(text) + `},{"role":"user","content":"And now?"}]}`
	want := slices.Concat(prompt, a.tokens)
	if got := rendered(t, turn2); len(got) <= len(want) || !slices.Equal(got[:len(want)], want) {
		t.Error("turn 2 does not begin with turn 1 and its answer")
	}
}

func TestRender_MediaByContent(t *testing.T) {
	f := func(url string) []TokenID {
		return rendered(t, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"`+url+`"}}]}]}`)
	}
	a, b := f("data:a"), f("data:b")
	if !slices.Equal(a, f("data:a")) || slices.Equal(a, b) || len(a) != len(b) || len(a) < mediaTokens {
		t.Errorf("%d and %d tokens", len(a), len(b))
	}
}
