package proxy

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"

	"github.com/warmroute/warmroute/internal/dialect"
	"github.com/warmroute/warmroute/internal/fleet"
)

// model is a model as OpenAI's list shows it, with the members that vLLM adds.
type model struct {
	ID        string  `json:"id"`
	Object    string  `json:"object"`
	Created   int64   `json:"created"`
	OwnedBy   string  `json:"owned_by"`
	Root      string  `json:"root"`
	Parent    *string `json:"parent"`
	MaxTokens int     `json:"max_model_len,omitzero"`
}

type modelList struct {
	Object string  `json:"object"`
	Data   []model `json:"data"`
}

// serveModels answers /v1/models and /v1/models/{id}, and what is no path at
// all.
func (x *exchange) serveModels() *refusal {
	id, ok := isModels(x.r.URL.Path)
	if !ok {
		return refuse(refusePath(x.r.Method, x.r.URL.Path))
	}
	if x.r.Method != http.MethodGet && x.r.Method != http.MethodHead {
		x.out.w.Header().Set("Allow", "GET, HEAD")
		return refuse(refuseMethod(x.r.Method, modelsPath))
	}
	if r := x.admit(); r != nil {
		return r
	}
	var answer any = modelList{Object: "list", Data: x.g.models()}
	if id != "" {
		all := x.g.models()
		i := slices.IndexFunc(all, func(m model) bool { return m.ID == id })
		if i < 0 {
			return x.g.refuseModel(id)
		}
		answer = all[i]
	}
	body, err := json.Marshal(answer)
	if err != nil {
		return &refusal{public: &dialect.Error{Status: http.StatusInternalServerError, Type: serverError, Code: "internal_error", Message: "The gateway failed."}, detail: err.Error()}
	}
	x.out.begin(http.StatusOK, func(h http.Header) {
		h.Set("Content-Type", "application/json")
		h.Set("Content-Length", strconv.Itoa(len(body)))
		h["X-Request-Id"] = []string{x.rec.ID}
	})
	_ = x.out.write(body) // a client that is gone needs no list
	x.ended(nil)
	return nil
}

// models is the union of all pools, with each alias as a model of its own.
func (g *Gateway) models() []model {
	list := []model{} // never null in JSON
	for _, m := range g.deps.Fleet.Models() {
		list = append(list, g.model(m.Name, m))
		for _, alias := range m.Aliases {
			list = append(list, g.model(alias, m))
		}
	}
	return list
}

func (g *Gateway) model(id string, m fleet.Model) model {
	out := model{ID: id, Object: "model", Created: g.start.Unix(), OwnedBy: "warmroute", Root: m.Name, MaxTokens: m.MaxTokens}
	if m.Base != "" {
		out.Parent = new(m.Base)
	}
	return out
}
