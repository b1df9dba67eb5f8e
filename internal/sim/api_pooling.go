package sim

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"net/http"
	"slices"
)

// embeddingSize is the length of an embedding that the request does not shorten.
const embeddingSize = 128

// embed returns a unit vector that depends on the tokens alone: each adds or takes one at a place drawn by hash, so texts that share
// tokens are near each other.
func embed(tokens []TokenID, size int) []float32 {
	v := make([]float32, size)
	for _, t := range tokens {
		h := deriveBlock(uint64(t), 0x5eed, 0)
		sign := float32(1)
		if h&1 == 1 {
			sign = -1
		}
		v[h>>1%uint64(size)] += sign
	}
	var sum float64
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	if sum == 0 {
		v[0], sum = 1, 1
	}
	for i := range v {
		v[i] /= float32(math.Sqrt(sum))
	}
	return v
}

// relevance returns how near two vectors are, from 0 to 1.
func relevance(a, b []float32) float64 {
	var dot float64
	for i := range a {
		dot += float64(a[i]) * float64(b[i])
	}
	return 1 / (1 + math.Exp(-4*dot))
}

// encode adds a pooling sequence for a prompt after checking its length.
func (c *call) encode(tokens []TokenID, salt uint64) error {
	if len(tokens) == 0 {
		return badRequest("input", "The decoder prompt cannot be empty")
	}
	if len(tokens) > c.s.maxLen {
		return badRequest("input_tokens", "This model's maximum context length is %d tokens. However, you requested %d tokens in the input for "+
			"embedding generation. Please reduce the length of the input.", c.s.maxLen, len(tokens))
	}
	h := c.s.hash(tokens, salt)
	c.pool(&h)
	return nil
}

// embeddings serves POST /v1/embeddings.
func (s *Server) embeddings(c *call) error {
	var q struct {
		Model          string     `json:"model"`
		Input          promptList `json:"input"`
		EncodingFormat string     `json:"encoding_format"`
		Dimensions     *int       `json:"dimensions"`
		CacheSalt      string     `json:"cache_salt"`
	}
	if err := c.decode(&q); err != nil {
		return err
	}
	adapter, err := s.adapterOf(q.Model)
	if err != nil {
		return err
	}
	size := embeddingSize
	if q.Dimensions != nil {
		size = *q.Dimensions
	}
	switch {
	case len(q.Input) == 0:
		return badRequest("input", "input must be a non-empty string or array.")
	case size < 1 || size > 4096:
		return badRequest("dimensions", "dimensions must be between 1 and 4096, got %d.", size)
	case q.EncodingFormat != "" && q.EncodingFormat != "float" && q.EncodingFormat != "base64":
		return badRequest("encoding_format", "encoding_format must be float or base64.")
	}
	c.name("embd-", q.Model)
	data := make([]any, 0, len(q.Input))
	for i, p := range q.Input {
		tokens := p.tokens(true)
		if err := c.encode(tokens, saltOf(adapter, q.CacheSalt)); err != nil {
			return err
		}
		data = append(data, map[string]any{"index": i, "object": "embedding", "embedding": encoded(embed(tokens, size), q.EncodingFormat)})
	}
	if err := c.finish(); err != nil {
		return err
	}
	c.json(http.StatusOK, map[string]any{
		"id": c.id, "object": "list", "created": c.created, "model": c.model, "data": data, "usage": c.usage(1),
	})
	return nil
}

// encoded returns v as numbers or as the base64 of little-endian floats.
func encoded(v []float32, format string) any {
	if format != "base64" {
		return v
	}
	var raw []byte
	for _, x := range v {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
	}
	return base64.StdEncoding.EncodeToString(raw)
}

// textList is a string, an object with a text, or an array of either.
type textList []string

// UnmarshalJSON implements [json.Unmarshaler].
func (l *textList) UnmarshalJSON(raw []byte) error {
	*l = nil
	var parts []json.RawMessage
	if raw = bytes.TrimSpace(raw); len(raw) > 0 && raw[0] == '[' {
		if err := json.Unmarshal(raw, &parts); err != nil {
			return err
		}
	} else {
		parts = []json.RawMessage{raw}
	}
	for _, part := range parts {
		var text string
		var err error
		if len(part) > 0 && part[0] == '{' {
			var o struct {
				Text string `json:"text"`
			}
			err = json.Unmarshal(part, &o)
			text = o.Text
		} else {
			err = json.Unmarshal(part, &text)
		}
		if err != nil {
			return err
		}
		*l = append(*l, text)
	}
	return nil
}

// compare adds a sequence that reads a query and a document together and returns how well they go with each other.
func (c *call) compare(query, document string, salt uint64) (float64, error) {
	a, b := AppendTokens(nil, query), AppendTokens(nil, document)
	pair := append(append(append([]TokenID{tokenBegin}, a...), tokenEndOfTurn), b...)
	if err := c.encode(pair, salt); err != nil {
		return 0, err
	}
	return relevance(embed(a, embeddingSize), embed(b, embeddingSize)), nil
}

// rerankResult is an entry of the answer of POST /v1/rerank.
type rerankResult struct {
	Index    int `json:"index"`
	Document struct {
		Text string `json:"text"`
	} `json:"document"`
	Score float64 `json:"relevance_score"`
}

// rerank serves POST /v1/rerank.
func (s *Server) rerank(c *call) error {
	var q struct {
		Model     string   `json:"model"`
		Query     textList `json:"query"`
		Documents textList `json:"documents"`
		TopN      int      `json:"top_n"`
	}
	if err := c.decode(&q); err != nil {
		return err
	}
	adapter, err := s.adapterOf(q.Model)
	if err != nil {
		return err
	}
	if len(q.Query) != 1 || len(q.Documents) == 0 {
		return badRequest("documents", "one query and a non-empty array of documents are required.")
	}
	c.name("rerank-", q.Model)
	results := make([]rerankResult, len(q.Documents))
	for i, d := range q.Documents {
		results[i].Index, results[i].Document.Text = i, d
		if results[i].Score, err = c.compare(q.Query[0], d, saltOf(adapter, "")); err != nil {
			return err
		}
	}
	if err := c.finish(); err != nil {
		return err
	}
	slices.SortStableFunc(results, func(a, b rerankResult) int {
		switch {
		case a.Score > b.Score:
			return -1
		case a.Score < b.Score:
			return 1
		}
		return 0
	})
	if q.TopN > 0 {
		results = results[:min(q.TopN, len(results))]
	}
	c.json(http.StatusOK, map[string]any{"id": c.id, "model": c.model, "usage": c.usage(1), "results": results})
	return nil
}

// score serves POST /v1/score: one text against each of several, or pairs.
func (s *Server) score(c *call) error {
	var q struct {
		Model     string   `json:"model"`
		Text1     textList `json:"text_1"`
		Text2     textList `json:"text_2"`
		Queries   textList `json:"queries"`
		Documents textList `json:"documents"`
	}
	if err := c.decode(&q); err != nil {
		return err
	}
	adapter, err := s.adapterOf(q.Model)
	if err != nil {
		return err
	}
	left, right := append(q.Text1, q.Queries...), append(q.Text2, q.Documents...)
	if len(left) == 0 || len(right) == 0 || len(left) != 1 && len(left) != len(right) {
		return badRequest("text_1", "text_1 must be one text or as many as text_2, and neither may be empty.")
	}
	c.name("score-", q.Model)
	data := make([]any, 0, len(right))
	for i, text := range right {
		v, err := c.compare(left[min(i, len(left)-1)], text, saltOf(adapter, ""))
		if err != nil {
			return err
		}
		data = append(data, map[string]any{"index": i, "object": "score", "score": v})
	}
	if err := c.finish(); err != nil {
		return err
	}
	c.json(http.StatusOK, map[string]any{
		"id": c.id, "object": "list", "created": c.created, "model": c.model, "data": data, "usage": c.usage(1),
	})
	return nil
}
