package sim

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// health serves GET /health and /ping.
func (s *Server) health(c *call) error {
	if err := s.delayProbe(c); err != nil {
		return err
	}
	if s.Faults().Unhealthy {
		c.w.WriteHeader(http.StatusServiceUnavailable)
	}
	return nil
}

// delayProbe waits as long as the faults want a probe to take.
func (s *Server) delayProbe(c *call) error {
	d := s.Faults().ProbeDelay
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-c.r.Context().Done():
		return errGone
	}
}

func (s *Server) version(c *call) error {
	c.json(http.StatusOK, map[string]string{"version": EngineVersion})
	return nil
}

// loadInfo serves GET /load: requests being served, this one left out.
func (s *Server) loadInfo(c *call) error {
	s.mu.Lock()
	n := s.serving - 1
	s.mu.Unlock()
	c.json(http.StatusOK, map[string]int{"server_load": n})
	return nil
}

// modelCard is an entry of GET /v1/models.
type modelCard struct {
	ID          string            `json:"id"`
	Object      string            `json:"object"`
	Created     int64             `json:"created"`
	OwnedBy     string            `json:"owned_by"`
	Root        string            `json:"root"`
	Parent      *string           `json:"parent"`
	MaxModelLen *int              `json:"max_model_len"`
	Permission  []json.RawMessage `json:"permission"`
}

func (s *Server) models(c *call) error {
	card := func(id string) modelCard {
		return modelCard{ID: id, Object: "model", Created: c.created, OwnedBy: "vllm", Root: id, Permission: []json.RawMessage{}}
	}
	base := card(s.o.Model)
	base.MaxModelLen = &s.maxLen
	cards := []modelCard{base}
	for _, a := range s.o.Adapters {
		lora := card(a)
		lora.Parent = &s.o.Model
		cards = append(cards, lora)
	}
	c.json(http.StatusOK, map[string]any{"object": "list", "data": cards})
	return nil
}

// tokenize serves POST /tokenize for a prompt or for messages.
func (s *Server) tokenize(c *call) error {
	var q struct {
		Model            string  `json:"model"`
		Prompt           *string `json:"prompt"`
		AddSpecialTokens *bool   `json:"add_special_tokens"`
		ReturnTokenStrs  bool    `json:"return_token_strs"`
		conversation
	}
	if err := c.decode(&q); err != nil {
		return err
	}
	if _, err := s.adapterOf(q.Model); err != nil {
		return err
	}
	var tokens []TokenID
	if q.Prompt != nil {
		if q.AddSpecialTokens == nil || *q.AddSpecialTokens {
			tokens = append(tokens, tokenBegin)
		}
		tokens = AppendTokens(tokens, *q.Prompt)
	} else {
		var err error
		if tokens, err = q.render(); err != nil {
			return badRequest("messages", "%s", err)
		}
	}
	var strs []string
	if q.ReturnTokenStrs {
		for _, t := range tokens {
			strs = append(strs, string(AppendText(nil, []TokenID{t})))
		}
	}
	c.json(http.StatusOK, struct {
		Count       int       `json:"count"`
		MaxModelLen int       `json:"max_model_len"`
		Tokens      []TokenID `json:"tokens"`
		TokenStrs   []string  `json:"token_strs"`
	}{len(tokens), s.maxLen, tokens, strs})
	return nil
}

func (s *Server) detokenize(c *call) error {
	var q struct {
		Model  string    `json:"model"`
		Tokens []TokenID `json:"tokens"`
	}
	if err := c.decode(&q); err != nil {
		return err
	}
	if _, err := s.adapterOf(q.Model); err != nil {
		return err
	}
	c.json(http.StatusOK, map[string]string{"prompt": string(AppendText(nil, q.Tokens))})
	return nil
}

// adminRestart serves POST /sim/restart?down=2s.
func (s *Server) adminRestart(c *call) error {
	down := time.Duration(0)
	if text := c.r.URL.Query().Get("down"); text != "" {
		var err error
		if down, err = time.ParseDuration(text); err != nil {
			return badRequest("down", "%s", err)
		}
	}
	s.Restart(down)
	c.json(http.StatusOK, map[string]string{"status": "restarted"})
	return nil
}

// adminKVTokens serves POST /sim/kv_tokens?tokens=100000.
func (s *Server) adminKVTokens(c *call) error {
	n, err := strconv.Atoi(c.r.URL.Query().Get("tokens"))
	if err != nil || n < 1 {
		return badRequest("tokens", "tokens must be a positive number")
	}
	s.SetKVTokens(n)
	c.json(http.StatusOK, map[string]int{"kv_tokens": n})
	return nil
}

// adminFaults serves POST /sim/faults with [Faults] as its body.
func (s *Server) adminFaults(c *call) error {
	var f Faults
	if err := c.decode(&f); err != nil {
		return err
	}
	s.SetFaults(f)
	c.json(http.StatusOK, f)
	return nil
}
