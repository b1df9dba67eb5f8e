package dialect

// Usage is the token counts of one call, evened out over the vendors.
type Usage struct {
	Prompt     int  // all prompt tokens, those read from a cache included
	Cached     int  // prompt tokens read from a cache; says something only with HasCached
	CacheWrite int  // prompt tokens that a vendor bills as written to its cache
	Output     int  // generated tokens, reasoning included
	Reasoning  int  // generated tokens spent on reasoning
	HasUsage   bool // there were counts at all
	HasCached  bool // the cached count was reported, be it zero
}

// merge takes what a later report of the same call says. Reports may be
// partial: some vendors count the prompt at the start of a stream and the
// output at its end.
func (u *Usage) merge(v Usage) {
	if !v.HasUsage {
		return
	}
	u.HasUsage = true
	u.Prompt = max(u.Prompt, v.Prompt)
	u.Output = max(u.Output, v.Output)
	u.Reasoning = max(u.Reasoning, v.Reasoning)
	u.CacheWrite = max(u.CacheWrite, v.CacheWrite)
	if v.HasCached {
		u.HasCached = true
		u.Cached = max(u.Cached, v.Cached)
	}
}

// ParseUsage finds the token counts in a JSON answer or stream event, of
// whatever vendor. Without any, or of a body that is no JSON, the result's
// HasUsage is false. A cached count of null is no report: vLLM writes null on
// a full miss as well as when it does not count.
func ParseUsage(body []byte) Usage {
	c := cursor{b: body}
	var n counts
	for key := range c.members {
		c.usageMember(key, &n)
	}
	if c.fault.set {
		return Usage{}
	}
	return n.usage()
}

// counts gathers the counts of one document under their vendors' names.
type counts struct {
	prompt, output       count // OpenAI: prompt_tokens, completion_tokens; Gemini and Ollama alike
	input, generated     count // Responses and Anthropic: input_tokens, output_tokens
	cached, reasoning    count // in the details; SGLang has cached beside the counts
	thoughts             count // Gemini: reasoning, not included in its output
	hit, miss            count // DeepSeek
	cacheRead, cacheMade count // Anthropic, not included in its input_tokens
	evaluated, predicted count // llama.cpp's own API
	cacheN, promptN      count // llama.cpp's timings: prompt tokens reused and computed
	predictedN           count
	total                count // rerank and score count nothing else
}

// count is a number that may be missing.
type count struct {
	n  int
	ok bool
}

// usageMember reads a member of an answer or event in which counts may be.
func (c *cursor) usageMember(key string, n *counts) {
	switch key {
	case "usage", "timings", "usageMetadata", "usage_metadata", "meta_info":
		for key := range c.members {
			c.count(key, n)
		}
	case "response", "message", "x_groq": // Responses events, Anthropic's message_start, Groq
		for key := range c.members {
			if key == "usage" {
				c.usageMember(key, n)
			}
		}
	case "choices": // Moonshot
		for range c.elements {
			for key := range c.members {
				if key == "usage" {
					c.usageMember(key, n)
				}
			}
		}
	case "tokens_evaluated", "tokens_predicted", "prompt_eval_count", "eval_count":
		// The own APIs of llama.cpp and Ollama have no object around them. The
		// tokens_cached beside them is no cached count: it is what the slot holds
		// after the answer, prompt and output together.
		c.count(key, n)
	}
}

// count reads one count, or an object of details.
func (c *cursor) count(key string, n *counts) {
	if dst := n.member(key); dst != nil {
		if v, ok := c.integer(); ok && v >= 0 {
			*dst = count{v, true}
		}
		return
	}
	switch key {
	case "prompt_tokens_details", "input_tokens_details", "completion_tokens_details", "output_tokens_details":
		for key := range c.members {
			if key == "cached_tokens" || key == "reasoning_tokens" {
				c.count(key, n)
			}
		}
	}
}

func (n *counts) member(key string) *count {
	switch key {
	case "prompt_tokens", "promptTokenCount", "prompt_eval_count":
		return &n.prompt
	case "completion_tokens", "candidatesTokenCount", "eval_count":
		return &n.output
	case "input_tokens":
		return &n.input
	case "output_tokens":
		return &n.generated
	case "cached_tokens", "cachedContentTokenCount":
		return &n.cached
	case "reasoning_tokens":
		return &n.reasoning
	case "thoughtsTokenCount":
		return &n.thoughts
	case "prompt_cache_hit_tokens":
		return &n.hit
	case "prompt_cache_miss_tokens":
		return &n.miss
	case "cache_read_input_tokens":
		return &n.cacheRead
	case "cache_creation_input_tokens":
		return &n.cacheMade
	case "tokens_evaluated":
		return &n.evaluated
	case "tokens_predicted":
		return &n.predicted
	case "cache_n":
		return &n.cacheN
	case "prompt_n":
		return &n.promptN
	case "predicted_n":
		return &n.predictedN
	case "total_tokens":
		return &n.total
	}
	return nil
}

// usage evens the counts out.
func (n *counts) usage() Usage {
	var u Usage
	switch {
	case n.prompt.ok:
		u.Prompt = n.prompt.n
	case n.input.ok:
		u.Prompt = n.input.n + n.cacheRead.n + n.cacheMade.n
	case n.hit.ok || n.miss.ok:
		u.Prompt = n.hit.n + n.miss.n
	case n.evaluated.ok:
		u.Prompt = n.evaluated.n
	case n.promptN.ok:
		u.Prompt = n.cacheN.n + n.promptN.n
	default:
		u.Prompt = n.total.n
	}
	cached := first(n.cached, n.hit, n.cacheRead, n.cacheN)
	u.Cached, u.HasCached = cached.n, cached.ok
	if u.Prompt > 0 {
		u.Cached = min(u.Cached, u.Prompt)
	}
	u.CacheWrite = n.cacheMade.n
	output := first(n.output, n.generated, n.predicted, n.predictedN)
	u.Output = output.n + n.thoughts.n
	u.Reasoning = first(n.reasoning, n.thoughts).n
	u.HasUsage = first(output, cached, n.thoughts, n.reasoning, n.prompt, n.input, n.miss, n.cacheMade, n.evaluated, n.promptN, n.total).ok
	return u
}

// first returns the first count that is there.
func first(counts ...count) count {
	for _, c := range counts {
		if c.ok {
			return c
		}
	}
	return count{}
}
