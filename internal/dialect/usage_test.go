package dialect

import (
	"testing"
)

func TestParseUsage(t *testing.T) {
	f := func(body string, want Usage) {
		t.Helper()
		if got := ParseUsage([]byte(body)); got != want {
			t.Errorf("%s:\n got %+v\nwant %+v", body, got, want)
		}
	}
	// OpenAI, vLLM and SGLang: the prompt includes what was cached.
	f(`{"usage":{"prompt_tokens":100,"completion_tokens":20,"total_tokens":120,"prompt_tokens_details":{"cached_tokens":64,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":5}}}`,
		Usage{Prompt: 100, Cached: 64, Output: 20, Reasoning: 5, HasUsage: true, HasCached: true})
	f(`{"usage":{"prompt_tokens":100,"completion_tokens":20,"prompt_tokens_details":{"cached_tokens":0}}}`,
		Usage{Prompt: 100, Output: 20, HasUsage: true, HasCached: true})
	// vLLM without --enable-prompt-tokens-details, and with it on a full miss.
	f(`{"usage":{"prompt_tokens":100,"completion_tokens":20,"prompt_tokens_details":null}}`, Usage{Prompt: 100, Output: 20, HasUsage: true})
	f(`{"usage":{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":null}}}`, Usage{Prompt: 100, HasUsage: true})
	f(`{"usage":{"prompt_tokens":7,"total_tokens":7}}`, Usage{Prompt: 7, HasUsage: true}) // embeddings
	f(`{"usage":{"total_tokens":7}}`, Usage{Prompt: 7, HasUsage: true})                   // rerank
	// Responses, whole and as an event.
	f(`{"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":64},"output_tokens":9,"output_tokens_details":{"reasoning_tokens":4}}}`,
		Usage{Prompt: 100, Cached: 64, Output: 9, Reasoning: 4, HasUsage: true, HasCached: true})
	f(`{"type":"response.completed","response":{"id":"r","usage":{"input_tokens":3,"output_tokens":4}}}`, Usage{Prompt: 3, Output: 4, HasUsage: true})
	// DeepSeek, with and without the sum.
	f(`{"usage":{"prompt_tokens":100,"completion_tokens":2,"prompt_cache_hit_tokens":64,"prompt_cache_miss_tokens":36}}`,
		Usage{Prompt: 100, Cached: 64, Output: 2, HasUsage: true, HasCached: true})
	f(`{"usage":{"prompt_cache_hit_tokens":0,"prompt_cache_miss_tokens":36}}`, Usage{Prompt: 36, HasUsage: true, HasCached: true})
	// Anthropic: what was cached is not included, neither read nor written.
	f(`{"type":"message","usage":{"input_tokens":10,"cache_read_input_tokens":64,"cache_creation_input_tokens":26,"output_tokens":5}}`,
		Usage{Prompt: 100, Cached: 64, CacheWrite: 26, Output: 5, HasUsage: true, HasCached: true})
	f(`{"type":"message_start","message":{"usage":{"input_tokens":10,"cache_read_input_tokens":0,"output_tokens":1}}}`,
		Usage{Prompt: 10, Output: 1, HasUsage: true, HasCached: true})
	f(`{"type":"message_delta","usage":{"output_tokens":15}}`, Usage{Output: 15, HasUsage: true})
	// A gateway that gives both spellings.
	f(`{"usage":{"prompt_tokens":100,"completion_tokens":5,"cache_read_input_tokens":64,"cache_creation_input_tokens":0}}`,
		Usage{Prompt: 100, Cached: 64, Output: 5, HasUsage: true, HasCached: true})
	// llama.cpp.
	f(`{"usage":{"prompt_tokens":100,"completion_tokens":5},"timings":{"cache_n":90,"prompt_n":10,"predicted_n":5,"prompt_ms":3.5}}`,
		Usage{Prompt: 100, Cached: 90, Output: 5, HasUsage: true, HasCached: true})
	f(`{"timings":{"cache_n":0,"prompt_n":10,"predicted_n":5}}`, Usage{Prompt: 10, Output: 5, HasUsage: true, HasCached: true})
	f(`{"tokens_evaluated":50,"tokens_predicted":8,"tokens_cached":57}`, Usage{Prompt: 50, Output: 8, HasUsage: true})
	// Gemini: thoughts are not included in the output.
	f(`{"usageMetadata":{"promptTokenCount":100,"cachedContentTokenCount":64,"candidatesTokenCount":5,"thoughtsTokenCount":7,"totalTokenCount":112}}`,
		Usage{Prompt: 100, Cached: 64, Output: 12, Reasoning: 7, HasUsage: true, HasCached: true})
	f(`{"usageMetadata":{"promptTokenCount":100}}`, Usage{Prompt: 100, HasUsage: true})
	// SGLang's own API, Moonshot, Groq, Ollama.
	f(`{"text":"a","meta_info":{"prompt_tokens":10,"completion_tokens":2,"cached_tokens":4,"id":"x"}}`, Usage{Prompt: 10, Cached: 4, Output: 2, HasUsage: true, HasCached: true})
	f(`{"choices":[{"usage":{"prompt_tokens":10,"completion_tokens":2,"cached_tokens":4}}]}`, Usage{Prompt: 10, Cached: 4, Output: 2, HasUsage: true, HasCached: true})
	f(`{"x_groq":{"usage":{"prompt_tokens":10,"completion_tokens":2}}}`, Usage{Prompt: 10, Output: 2, HasUsage: true})
	f(`{"done":true,"prompt_eval_count":10,"eval_count":2}`, Usage{Prompt: 10, Output: 2, HasUsage: true})
	// Nothing, or nothing sane.
	f(``, Usage{})
	f(`{}`, Usage{})
	f(`[]`, Usage{})
	f(`{"usage":null}`, Usage{})
	f(`{"usage":{}}`, Usage{})
	f(`{"usage":{"prompt_tokens":"100","completion_tokens":-3,"prompt_tokens_details":[1]}}`, Usage{})
	f(`{"usage":{"prompt_tokens":100`, Usage{})
	f(`{"usage":{"prompt_tokens":1e30}}`, Usage{})
	f(`{"usage":{"prompt_tokens":10,"prompt_tokens_details":{"cached_tokens":99}}}`, Usage{Prompt: 10, Cached: 10, HasUsage: true, HasCached: true})
	f(`{"choices":[{"message":{"content":"\"usage\":{\"prompt_tokens\":5}"}}]}`, Usage{})
}

func TestUsageMerge(t *testing.T) {
	var u Usage
	for _, body := range []string{
		`{"type":"message_start","message":{"usage":{"input_tokens":10,"cache_read_input_tokens":90,"output_tokens":1}}}`,
		`{"usage":null}`,
		`{"type":"message_delta","usage":{"output_tokens":15}}`,
	} {
		u.merge(ParseUsage([]byte(body)))
	}
	if want := (Usage{Prompt: 100, Cached: 90, Output: 15, HasUsage: true, HasCached: true}); u != want {
		t.Errorf("got %+v; want %+v", u, want)
	}
}

// Counts are never negative, and never more is cached than there was.
func FuzzUsage(f *testing.F) {
	f.Add([]byte(`{"usage":{"prompt_tokens":100,"completion_tokens":20,"prompt_tokens_details":{"cached_tokens":64}}}`))
	f.Add([]byte(`{"usage":{"input_tokens":10,"cache_read_input_tokens":64,"cache_creation_input_tokens":26}}`))
	f.Add([]byte(`{"timings":{"cache_n":0,"prompt_n":10}}`))
	f.Add([]byte(`{"choices":[{"usage":{"cached_tokens":4}}],"usageMetadata":{"thoughtsTokenCount":9}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		u := ParseUsage(body)
		if u.Prompt < 0 || u.Cached < 0 || u.Output < 0 || u.Reasoning < 0 || u.CacheWrite < 0 {
			t.Fatalf("%s: negative counts %+v", body, u)
		}
		if u.Prompt > 0 && u.Cached > u.Prompt {
			t.Fatalf("%s: more cached than there was: %+v", body, u)
		}
		if !u.HasUsage && u != (Usage{}) || u.Cached > 0 && !u.HasCached {
			t.Fatalf("%s: counts out of nothing: %+v", body, u)
		}
	})
}
