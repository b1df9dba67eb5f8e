package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/tidwall/gjson"

	"github.com/warmroute/warmroute/internal/dialect"
	"github.com/warmroute/warmroute/internal/prompt"
	"github.com/warmroute/warmroute/internal/sim"
	"github.com/warmroute/warmroute/prefix"
)

// RequestLog is the requests of a log as replay needs them: lengths and the
// identity of blocks, no text.
type RequestLog struct {
	Name        string
	Requests    int
	BlockTokens int            // of a block of the log
	Timed       bool           // the log tells when requests came
	Models      map[string]int // requests by model
	Formats     map[string]int // lines by what they were taken for
	Faults      []LineFault    // the first of the lines that were left out
	Bad         int            // lines that were left out
	Estimated   int            // requests whose prompt tokens were counted here, not by an engine

	records []prefix.Record
}

// LineFault is a line that could not be used.
type LineFault struct {
	Line int
	Err  error
}

// String is the fault as an operator reads it.
func (f LineFault) String() string { return fmt.Sprintf("line %d: %v", f.Line, f.Err) }

// LogOptions says how a log is read.
type LogOptions struct {
	Model       string // keep only requests for this model; empty keeps all
	BlockTokens int    // of hash_ids where the log does not say; zero means [MooncakeBlockTokens]
	Output      int    // answer tokens where the log does not say; zero means [DefaultAnswer]
}

// DefaultAnswer is the length of answers that a log does not tell, in tokens.
const DefaultAnswer = 200

// maxFaults bounds the faults that are kept; all are counted.
const maxFaults = 20

// textBlockBytes is the size of blocks that prompts with text are cut into:
// about one block of an engine.
const textBlockBytes = 64

// Formats of lines.
const (
	formatTrace   = "mooncake"
	formatGateway = "warmroute"
	formatBatch   = "openai batch"
	formatPrompts = "prompts"
)

// ReadLog reads a log, one JSON object a line; each line may have any of the
// formats that docs/guides/replay.md lists. Lines that cannot be used are noted
// in the log and left out. The error is of reading itself, or says that no line
// can be used.
func ReadLog(r io.Reader, o LogOptions) (*RequestLog, error) {
	l := &logReader{
		options: o,
		log:     &RequestLog{Models: map[string]int{}, Formats: map[string]int{}, Timed: true},
	}
	lines := bufio.NewReaderSize(r, 1<<20)
	for n := 1; ; n++ {
		line, err := readLine(lines)
		end := errors.Is(err, io.EOF)
		switch {
		case errors.Is(err, prefix.ErrRecordTooLong):
			l.fault(n, err)
			continue
		case err != nil && !end:
			return nil, fmt.Errorf("read line %d: %w", n, err)
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			if err := l.line(n, line); err != nil {
				l.fault(n, err)
			}
		}
		if end {
			break
		}
	}
	return l.finish()
}

// readLine returns the next line and io.EOF with the last. A line that is too
// long is skipped to its end.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	tooLong := false
	for {
		part, err := r.ReadSlice('\n')
		if !tooLong {
			line = append(line, part...)
		}
		if len(line) > prefix.MaxRecordBytes {
			tooLong, line = true, nil
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if tooLong && (err == nil || errors.Is(err, io.EOF)) {
			return nil, errors.Join(prefix.ErrRecordTooLong, err)
		}
		return line, err
	}
}

// logReader turns lines into requests.
type logReader struct {
	options LogOptions
	log     *RequestLog
	hasher  prefix.Hasher
	tokens  []sim.TokenID
	entries []logEntry
}

// logEntry is a request before the size of a block is known in tokens.
type logEntry struct {
	prefix.Record
	line       int
	timed      bool
	blockBytes int   // 0: blocks are counted in tokens
	bytes      int64 // of the prompt, with blockBytes
}

func (l *logReader) fault(line int, err error) {
	l.log.Bad++
	if len(l.log.Faults) < maxFaults {
		l.log.Faults = append(l.log.Faults, LineFault{line, err})
	}
}

var (
	errNoJSON    = errors.New("is no JSON object")
	errNoPrompt  = errors.New("has neither hash_ids nor messages, prompt, input or text_input")
	errNoTokens  = errors.New("the prompt is empty")
	errTooMany   = errors.New("input_length is larger than any prompt")
	errNoRequest = errors.New("no line can be used")
)

// maxPromptTokens is more than any model takes; what is larger is a fault of the
// log and would take the memory of the machine.
const maxPromptTokens = 100_000_000

func (l *logReader) line(number int, line []byte) error {
	if line[0] != '{' || !gjson.ValidBytes(line) {
		return errNoJSON
	}
	doc := gjson.ParseBytes(line)
	var e logEntry
	var model, format string
	var err error
	if doc.Get("hash_ids").IsArray() {
		e, model, format, err = l.hashed(line, doc)
	} else {
		e, model, format, err = l.prompted(doc)
	}
	switch {
	case err != nil:
		return err
	case e.InputLength <= 0:
		return errNoTokens
	case e.InputLength > maxPromptTokens:
		return errTooMany
	case l.options.Model != "" && model != l.options.Model:
		l.log.Models[model]++
		return nil
	}
	l.log.Models[model]++
	l.log.Formats[format]++
	if e.OutputLength == 0 {
		e.OutputLength = cmp.Or(l.options.Output, DefaultAnswer)
	}
	l.log.Timed = l.log.Timed && e.timed
	e.line = number
	l.entries = append(l.entries, e)
	return nil
}

// hashed reads a line of a trace, or of Warmroute's own log.
func (l *logReader) hashed(line []byte, doc gjson.Result) (e logEntry, model, format string, err error) {
	for record, err := range prefix.ReadRecords(bytes.NewReader(line)) {
		if err != nil {
			return e, "", "", cmp.Or(errors.Unwrap(err), err) // without the number of the only line there is
		}
		e.Record = record
	}
	e.timed = doc.Get("timestamp").Exists()
	model = doc.Get("model").String()
	size, length := doc.Get("block_bytes").Int(), doc.Get("input_bytes").Int()
	if size <= 0 || length <= 0 {
		return e, model, formatTrace, nil
	}
	if size > math.MaxInt32 || length > math.MaxInt32*size {
		return e, "", "", errTooMany
	}
	e.blockBytes, e.bytes = int(size), length
	return e, model, formatGateway, nil
}

// bodyPaths are where request bodies lie in logs.
var bodyPaths = []string{
	"body", "request.body", "request", "request_body", "proxy_server_request.body", "kwargs", "@this",
}

// prompted reads a line that has the prompt itself.
func (l *logReader) prompted(doc gjson.Result) (e logEntry, model, format string, err error) {
	for _, path := range bodyPaths {
		body := doc.Get(path)
		if !body.IsObject() {
			continue
		}
		kind := kindOf(doc.Get("url").String(), body)
		if kind == 0 {
			continue
		}
		format = formatPrompts
		if path == "body" && doc.Get("custom_id").Exists() {
			format = formatBatch
		}
		e, model, err = l.body(kind, body, doc)
		return e, cmp.Or(model, doc.Get("model").String()), format, err
	}
	return e, "", "", errNoPrompt
}

// kindOf tells an API by its path, else by its members; zero when there is no
// prompt.
func kindOf(path string, body gjson.Result) dialect.Kind {
	has := func(key string) bool { return body.Get(key).Exists() && body.Get(key).Type != gjson.Null }
	switch {
	case has("messages"):
		return dialect.Chat
	case has("prompt"), has("text_input"):
		return dialect.Completions
	case has("input") && (has("instructions") || has("max_output_tokens") || path == "/v1/responses"):
		return dialect.Responses
	case has("input"):
		return dialect.Embeddings
	}
	return 0
}

// body hashes a prompt and finds what is known about the request.
func (l *logReader) body(kind dialect.Kind, body, doc gjson.Result) (e logEntry, model string, err error) {
	text := []byte(body.Raw)
	if t := body.Get("text_input"); kind == dialect.Completions && !body.Get("prompt").Exists() && t.Type == gjson.String {
		text, err = json.Marshal(map[string]string{"prompt": t.String(), "model": body.Get("model").String()})
		if err != nil {
			return e, "", fmt.Errorf("read text_input: %w", err)
		}
	}
	if m := body.Get("messages"); kind == dialect.Chat && m.Type == gjson.String {
		// Some logs hold the list as a string of JSON.
		text = fmt.Appendf(nil, `{"model":%q,"messages":%s}`, body.Get("model").String(), m.String())
	}
	call, err := dialect.Decode(kind, text)
	if err != nil {
		return e, "", err
	}
	var stream bytes.Buffer
	prompt.Stream(&stream, &call.Prompt)
	l.hasher.Reset(textBlockBytes)
	if _, err := l.hasher.Write(stream.Bytes()); err != nil {
		return e, "", fmt.Errorf("hash prompt: %w", err)
	}
	e.blockBytes, e.bytes = textBlockBytes, l.hasher.Bytes()
	for _, b := range l.hasher.Chain() {
		e.HashIDs = append(e.HashIDs, int64(b)) //nolint:gosec // an identity, not a number
	}
	usage := firstOf(doc, isNumber, "usage.prompt_tokens", "response.usage.prompt_tokens", "response.body.usage.prompt_tokens", "prompt_tokens", "input_tokens")
	if e.InputLength = bounded(usage); e.InputLength == 0 {
		l.tokens = sim.AppendTokens(l.tokens[:0], stream.String())
		e.InputLength = len(l.tokens)
		l.log.Estimated++
	}
	output := firstOf(doc, isNumber, "usage.completion_tokens", "response.usage.completion_tokens", "response.body.usage.completion_tokens",
		"completion_tokens", "output_tokens", "output_length")
	if e.OutputLength = bounded(output); e.OutputLength == 0 {
		e.OutputLength = min(call.MaxTokens, cmp.Or(l.options.Output, DefaultAnswer))
	}
	e.SessionID = cmp.Or(firstOf(doc, isText, "session_id", "metadata.session_id", "conversation_id", "litellm_session_id").String(), call.Session)
	e.Timestamp, e.timed = logTime(doc)
	return e, call.Model, nil
}

func isNumber(r gjson.Result) bool { return r.Type == gjson.Number }
func isText(r gjson.Result) bool   { return r.Type == gjson.String }

// firstOf is the first member that is there and of the right type.
func firstOf(doc gjson.Result, fits func(gjson.Result) bool, paths ...string) gjson.Result {
	for _, path := range paths {
		if v := doc.Get(path); fits(v) {
			return v
		}
	}
	return gjson.Result{}
}

// bounded is a count of tokens, 0 when it makes no sense.
func bounded(r gjson.Result) int {
	if n := r.Float(); n > 0 && n <= maxPromptTokens {
		return int(n)
	}
	return 0
}

// finish makes records of one size of block.
func (l *logReader) finish() (*RequestLog, error) {
	out := l.log
	if len(l.entries) == 0 {
		if out.Bad > 0 {
			return out, fmt.Errorf("%w; %s", errNoRequest, out.Faults[0])
		}
		return out, errNoRequest
	}
	out.BlockTokens = cmp.Or(l.options.BlockTokens, MooncakeBlockTokens)
	first := l.entries[0].blockBytes
	bytes, tokens := 0.0, 0.0
	kept := l.entries[:0]
	for _, e := range l.entries {
		if e.blockBytes != first { // blocks of two sizes cannot be compared
			l.fault(e.line, fmt.Errorf("has blocks of %d bytes, where the first request has %d", e.blockBytes, first))
			continue
		}
		bytes += float64(e.bytes)
		tokens += float64(e.InputLength)
		kept = append(kept, e)
	}
	if first > 0 {
		out.BlockTokens = max(int(math.Round(float64(first)*tokens/bytes)), 1)
	}
	for _, e := range kept {
		out.records = append(out.records, e.Record)
	}
	if out.Timed {
		slices.SortStableFunc(out.records, func(a, b prefix.Record) int { return cmp.Compare(a.Timestamp, b.Timestamp) })
	}
	out.Requests = len(out.records)
	return out, nil
}
