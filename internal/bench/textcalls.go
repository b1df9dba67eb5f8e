package bench

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/warmroute/warmroute/internal/sim"
)

// Texts turns the requests of a [RAG] workload into chat completions with real
// text: of every three documents two are English and one is Chinese.
type Texts struct {
	Model string
	// Speed is how many seconds of the workload a second of wall time holds.
	Speed float64
}

// Calls makes the calls of a whole workload, in order of arrival.
func (t Texts) Calls(w RAG, seed uint64) ([]Call, error) {
	writers := make([]writer, 0, 3)
	for _, language := range []Language{English, English, Chinese} {
		c, err := newWriter(language)
		if err != nil {
			return nil, err
		}
		writers = append(writers, c)
	}
	source := w.Source(seed)
	numbers := map[uint64]int{} // of documents, in order of their first request
	texts := map[uint64]string{}
	calls := make([]Call, 0, w.Requests)
	for r := (Request{}); ; {
		at, ok := source.Next()
		if !ok {
			return calls, nil
		}
		source.Take(&r)
		document := r.Prompt[len(r.Prompt)-2]
		n, known := numbers[document.ID]
		if !known {
			n = len(numbers)
			numbers[document.ID] = n
		}
		c := &writers[n%len(writers)]
		if !known {
			texts[document.ID] = c.Document(n, int(float64(document.Tokens)*c.bytesPerToken))
		}
		body, err := t.body(c.System(), texts[document.ID]+"\n\n"+c.Question(len(calls)), r.Answer.Tokens)
		if err != nil {
			return nil, err
		}
		calls = append(calls, Call{At: time.Duration(float64(at) / t.Speed), Body: body})
	}
}

func (t Texts) body(system, user string, output int) ([]byte, error) {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	type streamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	}
	body, err := json.Marshal(struct {
		Model         string        `json:"model"`
		Messages      []message     `json:"messages"`
		MaxTokens     int           `json:"max_tokens"`
		IgnoreEOS     bool          `json:"ignore_eos"`
		Stream        bool          `json:"stream"`
		StreamOptions streamOptions `json:"stream_options"`
	}{t.Model, []message{{"system", system}, {"user", user}}, output, true, true, streamOptions{true}})
	if err != nil {
		return nil, fmt.Errorf("compose call: %w", err)
	}
	return body, nil
}

// writer is a corpus that knows how long its text gets in an engine's tokens.
type writer struct {
	*Corpus
	bytesPerToken float64
}

// sampleBytes is enough of a corpus to count tokens by: about each passage once.
const sampleBytes = 16 << 10

func newWriter(l Language) (writer, error) {
	c, err := NewCorpus(l)
	if err != nil {
		return writer{}, err
	}
	sample := c.Document(0, sampleBytes)
	tokens := len(sim.AppendTokens(nil, sample))
	if tokens == 0 {
		return writer{}, fmt.Errorf("corpus %q: BUG: the tokenizer finds no token in it", l)
	}
	return writer{c, float64(len(sample)) / float64(tokens)}, nil
}
