package proxy

import (
	"sync"

	"github.com/warmroute/warmroute/internal/dialect"
	"github.com/warmroute/warmroute/internal/prompt"
	"github.com/warmroute/warmroute/prefix"
)

// lessons is what answers have taught about one model.
type lessons struct {
	mu      sync.Mutex // guards below; nothing is locked under it
	ratio   prompt.Ratio
	output  float64                    // tokens of an answer, faded
	reports map[prefix.InstanceID]int  // answers without a count until it counts as one that gives none
	muted   map[prefix.InstanceID]bool // refuse to be asked for usage in streams
}

// outputShare is the weight of one answer in the expected length of the next.
const outputShare = 0.05

// silentReports is how many answers without a count of cached tokens make an
// instance one that does not report: it may have been started again without the
// option. Fewer are full misses, which vLLM reports as null.
const silentReports = 16

// tokens estimates the tokens of a prompt of the given canonical bytes.
func (l *lessons) tokens(bytes int64) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ratio.Tokens(bytes)
}

// outputPrior is the length of an answer that is expected of a model that has
// not answered yet, where the client's limit makes it worth guessing at all.
const outputPrior = 256

// expect is how many tokens an answer is likely to have, at most limit, which is
// zero when the client sets none. Zero means that nothing is known.
func (l *lessons) expect(limit int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := int(l.output)
	if limit <= 0 {
		return n
	}
	if n == 0 {
		n = outputPrior
	}
	return min(n, limit)
}

// learnRatio takes a prompt that the engine has counted.
func (l *lessons) learnRatio(bytes int64, tokens int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ratio.Observe(bytes, tokens)
}

// learnOutput takes the length of an answer that ended by itself.
func (l *lessons) learnOutput(tokens int) {
	if tokens <= 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.output == 0 {
		l.output = float64(tokens)
		return
	}
	l.output += outputShare * (float64(tokens) - l.output)
}

// cached settles what an answer of an instance says about cached tokens. Engines
// that report them leave them out on a full miss, so after a first report silence
// means none, until it has lasted.
func (l *lessons) cached(id prefix.InstanceID, u dialect.Usage) (tokens int, known bool) {
	if !u.HasUsage {
		return 0, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if u.HasCached {
		if l.reports == nil {
			l.reports = make(map[prefix.InstanceID]int)
		}
		l.reports[id] = silentReports
		return u.Cached, true
	}
	left := l.reports[id]
	if left == 0 {
		return 0, false
	}
	if left--; left == 0 {
		delete(l.reports, id)
		return 0, false
	}
	l.reports[id] = left
	return 0, true
}

// forget drops what was learned about an instance that has left or begun anew.
func (l *lessons) forget(id prefix.InstanceID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.reports, id)
	delete(l.muted, id)
}

// media reports whether the prompt holds pictures and the like, whose bytes in
// the canonical prompt say little about the tokens that they take.
func media(r *prompt.Request) bool {
	for i := range r.Messages {
		for j := range r.Messages[i].Parts {
			switch r.Messages[i].Parts[j].Kind {
			case prompt.Image, prompt.Audio, prompt.Video, prompt.File:
				return true
			default:
			}
		}
	}
	return false
}

// mute notes that the instance refuses to be asked for usage in streams.
func (l *lessons) mute(id prefix.InstanceID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.muted == nil {
		l.muted = make(map[prefix.InstanceID]bool)
	}
	l.muted[id] = true
}

// isMute reports whether the instance refuses to be asked for usage in streams.
func (l *lessons) isMute(id prefix.InstanceID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.muted[id]
}
