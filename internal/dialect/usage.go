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

// ParseUsage finds the token counts in a JSON answer or stream event.
func ParseUsage(body []byte) Usage { return Usage{} }
