package proxy

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/warmroute/warmroute/internal/testkit"
)

// TestOfficialClient has OpenAI's own client read what the gateway writes:
// explanations, heartbeats and errors must not disturb it.
func TestOfficialClient(t *testing.T) {
	beating := func(s *setup) { s.proxy.Heartbeat = time.Second }
	params := openai.ChatCompletionNewParams{Model: "m", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hi")}}
	client := func(r *rig) openai.Client {
		return openai.NewClient(option.WithBaseURL("http://gateway/v1"), option.WithAPIKey("k"), option.WithHTTPClient(r.client),
			option.WithHeader(explainHeader, "1"), option.WithMaxRetries(0))
	}
	read := func(r *rig) (string, error) {
		c := client(r)
		stream := c.Chat.Completions.NewStreaming(r.t.Context(), params)
		defer stream.Close()
		var text strings.Builder
		for stream.Next() {
			for _, choice := range stream.Current().Choices {
				text.WriteString(choice.Delta.Content)
			}
		}
		return text.String(), stream.Err()
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, beating)
		r.engines[0].Play(testkit.Act{Before: 5 * time.Second})
		if text, err := read(r); text != testkit.Answer(3) || err != nil {
			t.Errorf("stream: %q, %v", text, err)
		}
		c := client(r)
		whole, err := c.Chat.Completions.New(t.Context(), params)
		if err != nil || whole.Choices[0].Message.Content != testkit.Answer(3) || whole.Usage.CompletionTokens != 3 {
			t.Errorf("whole: %+v, %v", whole, err)
		}
		models, err := c.Models.List(t.Context())
		if err != nil || len(models.Data) != 1 || models.Data[0].ID != "m" {
			t.Errorf("models: %+v, %v", models, err)
		}
		_, err = c.Models.Get(t.Context(), "nope")
		if e, ok := errors.AsType[*openai.Error](err); !ok || e.StatusCode != 404 || e.Code != "model_not_found" || e.Type != invalidRequest {
			t.Errorf("unknown model: %v", err)
		}
		r.engines[0].Play(testkit.Act{Fate: testkit.NoMarker})
		if text, err := read(r); text != testkit.Answer(3) || err == nil || !strings.Contains(err.Error(), "stream_incomplete") {
			t.Errorf("truncated: %q, %v", text, err)
		}
		late := testkit.Broken()
		late.Before = 5 * time.Second
		r.engines[0].Play(late)
		if text, err := read(r); text != "" || err == nil || !strings.Contains(err.Error(), "upstream_error") {
			t.Errorf("failed after heartbeats: %q, %v", text, err)
		}
		r.idle()
	})
}
