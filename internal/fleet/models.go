package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"
)

// modelsPath lists models in the API that all engines share.
const modelsPath = "/v1/models"

// modelsRetry is the pause after a failed look at the models.
const modelsRetry = 5 * time.Second

// servedModel is a model that an instance lists.
type servedModel struct {
	id        string
	parent    string // of a LoRA adapter: the model that it adapts
	maxTokens int
}

// served returns the models that the instance listed last.
func (in *Instance) served() []servedModel {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.models
}

// readModels asks the instance what it serves and returns the pause until the
// next time. A failed look changes nothing.
func (f *Fleet) readModels(ctx context.Context, in *Instance) time.Duration {
	var models []servedModel
	var owner Engine
	status, err := in.fetch(ctx, modelsPath, f.cfg.Health.Timeout, maxAnswer, func(status int, body io.Reader) (err error) {
		if status == 200 {
			models, owner, err = parseModels(body)
		}
		return err
	})
	if err != nil || status != 200 {
		if missing(status) {
			return f.cfg.Health.ModelsInterval
		}
		f.deps.Log.LogAttrs(ctx, slog.LevelDebug, "models not read", slog.String("instance", in.name), slog.Int("status", status), slog.Any("error", err))
		return min(modelsRetry, f.cfg.Health.ModelsInterval)
	}
	in.mu.Lock()
	if in.engine == Auto && owner != "" {
		in.engine = owner
	}
	same := slices.Equal(in.models, models)
	in.models = models
	in.mu.Unlock()
	if !same {
		f.mu.Lock()
		f.rebuildLocked()
		f.mu.Unlock()
		f.deps.Log.LogAttrs(ctx, slog.LevelInfo, "models read", slog.String("instance", in.name), slog.Any("models", modelIDs(models)))
		f.warnUnlisted(ctx, in)
	}
	return jitter(f.cfg.Health.ModelsInterval)
}

// warnUnlisted says when a pool counts on a model that the instance does not
// list: each request for it will fail with 404.
func (f *Fleet) warnUnlisted(ctx context.Context, in *Instance) {
	listed := modelIDs(in.served())
	for p := range f.Pools() {
		for _, m := range *p.members.Load() {
			if m.in == in && !slices.Contains(listed, m.model) {
				f.deps.Log.LogAttrs(ctx, slog.LevelWarn, "instance does not list the pool's model",
					slog.String("instance", in.name), slog.String("pool", p.name), slog.String("model", m.model))
			}
		}
	}
}

func modelIDs(models []servedModel) []string {
	ids := make([]string, len(models))
	for i, m := range models {
		ids[i] = m.id
	}
	return ids
}

// parseModels reads the answer of /v1/models, and what it gives away about the
// engine.
func parseModels(body io.Reader) ([]servedModel, Engine, error) {
	var answer struct {
		Data []struct {
			ID          string `json:"id"`
			Parent      string `json:"parent"`
			OwnedBy     string `json:"owned_by"`
			MaxModelLen int    `json:"max_model_len"` // vLLM, SGLang
			Meta        struct {
				Context int `json:"n_ctx"` // llama.cpp
			} `json:"meta"`
		} `json:"data"`
	}
	if err := json.NewDecoder(body).Decode(&answer); err != nil {
		return nil, "", fmt.Errorf("parse models: %w", err)
	}
	var models []servedModel
	var owner Engine
	for _, m := range answer.Data {
		if m.ID == "" {
			continue
		}
		models = append(models, servedModel{id: m.ID, parent: m.Parent, maxTokens: cmp.Or(m.MaxModelLen, m.Meta.Context)})
		switch strings.ToLower(m.OwnedBy) {
		case "vllm":
			owner = VLLM
		case "sglang":
			owner = SGLang
		case "llamacpp":
			owner = LlamaCPP
		}
	}
	slices.SortFunc(models, func(a, b servedModel) int { return strings.Compare(a.id, b.id) })
	return slices.CompactFunc(models, func(a, b servedModel) bool { return a.id == b.id }), owner, nil
}
