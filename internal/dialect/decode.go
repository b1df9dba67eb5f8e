package dialect

import (
	"fmt"
	"net/http"

	"github.com/warmroute/warmroute/internal/prompt"
)

// Decode reads the request body of an API. It looks at the body once; the
// Call aliases it, so the body must stay as it is.
//
// The error is an *Error with status 400: the body is no JSON object, nests
// too deep, names a member twice that routing reads, or gives model or stream a
// type that no engine accepts. Whatever else is strange, a prompt that is none
// included, passes, for the engine to decide, and is counted in [Call.Unknown].
func Decode(k Kind, body []byte) (*Call, error) {
	d := decoder{
		cursor: cursor{b: body},
		call:   &Call{Kind: k, Choices: 1, body: body},
	}
	if err := d.decode(); err != nil {
		return nil, err
	}
	return d.call, nil
}

type decoder struct {
	cursor

	call     *Call
	seen     uint64 // members read so far, a bit each
	err      *Error // first fault that is not one of JSON
	taken    int    // list elements taken so far
	ids      int    // token ids taken so far
	parts    []prompt.Part
	calls    []prompt.Part // tool calls of the message being read
	template template
	salt     string   // cache_salt
	extraKey string   // SGLang's further salt
	system   string   // Responses: instructions
	query    []string // rerank and score: what the documents are compared with
	docs     []string
}

func (d *decoder) decode() *Error {
	if len(d.b) == 0 {
		return badRequest("invalid_json", "", "The request body is empty; it must be a JSON object.")
	}
	body := d.b
	if d.peek() == '{' {
		for key := range d.members {
			d.call.layout.members++
			d.member(key)
		}
	} else {
		what := typeName(d.peek())
		d.skip()
		d.err = badRequest("invalid_type", "", "The request body must be a JSON object, but it is "+what+".")
	}
	d.call.layout.end = d.i - 1
	d.finish()
	if d.fault.set {
		return jsonError(body, d.fault)
	}
	if d.err != nil {
		return d.err
	}
	d.complete()
	return nil
}

// maxItems is how many list elements of a request are taken: messages, parts,
// calls, tools, texts. Real requests have some thousand at most; the bound keeps
// hostile bodies, in which each takes three bytes, from costing fifty times
// their size.
const maxItems = 1 << 16

// maxIDs is how many token ids of a request are taken: more than any engine has
// room for.
const maxIDs = 1 << 22

// spent counts one more list element and reports whether it is one too many. The
// engine gets it all the same, but routing leaves it out.
func (d *decoder) spent() bool {
	if d.taken == maxItems {
		d.call.Unknown++
		return true
	}
	d.taken++
	return false
}

// complete assembles what depends on more than one member.
func (d *decoder) complete() {
	c := d.call
	c.Prompt.Scope.Model = c.Model
	c.Prompt.Scope.CacheSalt = d.salt
	if d.extraKey != "" {
		c.Prompt.Scope.CacheSalt += "\x00" + d.extraKey
	}
	c.Prompt.Scope.Template = d.template.json()
	if d.system != "" {
		first := prompt.Message{Role: "system", Parts: []prompt.Part{{Kind: prompt.Text, Text: d.system}}}
		c.Prompt.Messages = append([]prompt.Message{first}, c.Prompt.Messages...)
	}
	if len(d.query)+len(d.docs) > 0 {
		c.Prompt.Raw = append(d.query, d.docs...)
	}
}

// field is a member of the request that routing reads.
type field uint8

const (
	fieldNone field = iota
	fieldModel
	fieldStream
	fieldStreamOptions
	fieldMessages
	fieldPrompt
	fieldInput
	fieldInstructions
	fieldTools
	fieldFunctions
	fieldMaxTokens
	fieldMaxCompletionTokens
	fieldMaxOutputTokens
	fieldN
	fieldCacheSalt
	fieldExtraKey
	fieldLoRAPath
	fieldPromptCacheKey
	fieldSessionID
	fieldPrevious
	fieldTemplateArgs
	fieldTemplate
	fieldEffort
	fieldReasoning
	fieldDocuments
	fieldQuery
	fieldQueries
	fieldText1
	fieldText2
	fieldItems
	fieldContinue
)

func fieldOf(key string) field {
	switch key {
	case "model":
		return fieldModel
	case "stream":
		return fieldStream
	case "stream_options":
		return fieldStreamOptions
	case "messages":
		return fieldMessages
	case "prompt":
		return fieldPrompt
	case "input":
		return fieldInput
	case "instructions":
		return fieldInstructions
	case "tools":
		return fieldTools
	case "functions":
		return fieldFunctions
	case "max_tokens":
		return fieldMaxTokens
	case "max_completion_tokens":
		return fieldMaxCompletionTokens
	case "max_output_tokens":
		return fieldMaxOutputTokens
	case "n":
		return fieldN
	case "cache_salt":
		return fieldCacheSalt
	case "extra_key":
		return fieldExtraKey
	case "lora_path":
		return fieldLoRAPath
	case "prompt_cache_key":
		return fieldPromptCacheKey
	case "session_id":
		return fieldSessionID
	case "previous_response_id":
		return fieldPrevious
	case "chat_template_kwargs":
		return fieldTemplateArgs
	case "chat_template":
		return fieldTemplate
	case "reasoning_effort":
		return fieldEffort
	case "reasoning":
		return fieldReasoning
	case "documents":
		return fieldDocuments
	case "query":
		return fieldQuery
	case "queries":
		return fieldQueries
	case "text_1":
		return fieldText1
	case "text_2":
		return fieldText2
	case "items":
		return fieldItems
	case "continue_final_message":
		return fieldContinue
	}
	return fieldNone
}

// member reads one member of the request. What it leaves is skipped.
func (d *decoder) member(key string) {
	f := fieldOf(key)
	if f == fieldNone {
		return
	}
	if d.seen>>f&1 == 1 {
		d.refuse(duplicate(key))
		return
	}
	d.seen |= 1 << f
	if d.null() && f != fieldStreamOptions && f != fieldModel {
		return
	}
	if f <= fieldStreamOptions {
		d.control(f)
		return
	}
	if f <= fieldFunctions {
		d.conversation(f)
		return
	}
	d.setting(f)
}

// control reads the members that an edit may change, and where they stand.
func (d *decoder) control(f field) {
	at := d.i
	switch f {
	case fieldModel:
		var ok bool
		if d.null() {
			d.skip()
		} else if d.call.Model, ok = d.text(); !ok {
			d.wrongType("model", "a string")
		}
		d.call.layout.model = span{at, d.i}
	case fieldStream:
		var ok bool
		if d.call.Stream, ok = d.boolean(); !ok {
			d.wrongType("stream", "true or false")
		}
	default:
		d.call.Usage = d.streamOptions(&d.call.layout)
	}
}

// conversation reads the members that hold what the engine is to read.
func (d *decoder) conversation(f field) {
	kind := d.call.Kind
	switch f {
	case fieldMessages:
		if d.peek() != '[' {
			d.call.Unknown++
		} else if kind == Chat || kind == Embeddings || kind == Tokenize {
			d.messages()
		}
	case fieldPrompt:
		d.prompts(kind == Completions || kind == Tokenize)
	case fieldInput:
		d.input(kind)
	case fieldInstructions:
		if s, ok := d.text(); ok && kind == Responses {
			d.system = s
		} else if kind == Responses {
			d.call.Unknown++
		}
	case fieldTools:
		d.tools()
	default: // functions, the older spelling of tools
		for range d.elements {
			d.function()
		}
	}
}

// setting reads the members that steer the request.
func (d *decoder) setting(f field) {
	c := d.call
	switch f {
	case fieldMaxTokens, fieldMaxCompletionTokens, fieldMaxOutputTokens:
		if n, ok := d.integer(); ok && n > 0 && (c.MaxTokens == 0 || f != fieldMaxTokens) {
			c.MaxTokens = n
		}
	case fieldN:
		if n, ok := d.integer(); ok && n > 0 {
			c.Choices = n
		}
	case fieldCacheSalt:
		d.salt, _ = d.text()
	case fieldExtraKey:
		d.extraKey, _ = d.text()
	case fieldLoRAPath:
		c.Prompt.Scope.Adapter, _ = d.text()
	case fieldPromptCacheKey:
		if s, ok := d.text(); ok && s != "" {
			c.Session = s
		}
	case fieldSessionID:
		if s, ok := d.text(); ok && c.Session == "" {
			c.Session = s
		}
	case fieldPrevious:
		c.Previous, _ = d.text()
	case fieldContinue:
		c.Prompt.Continue, _ = d.boolean()
	case fieldTemplateArgs, fieldTemplate, fieldEffort, fieldReasoning:
		d.steer(f)
	default:
		d.compared(f)
	}
}

// refuse keeps the first fault. The walk goes on, because a body that is no
// JSON at all is the more useful thing to say.
func (d *decoder) refuse(e *Error) {
	if d.err == nil {
		d.err = e
	}
}

func (d *decoder) wrongType(param, want string) {
	d.refuse(badRequest("invalid_type", param, fmt.Sprintf("Invalid type for '%s': expected %s, but got %s.", param, want, typeName(d.peek()))))
}

// typeName names the type of the JSON value that begins with ch.
func typeName(ch byte) string {
	switch ch {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

func duplicate(key string) *Error {
	return badRequest("duplicate_key", key, fmt.Sprintf("The request names '%s' twice; give it once.", key))
}

func badRequest(code, param, message string) *Error {
	return &Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Code: code, Param: param, Message: message}
}

// jsonError says where the request body stops being JSON.
func jsonError(body []byte, f fault) *Error {
	code := "invalid_json"
	if f.want == deeper {
		code = "json_too_deep"
	}
	return badRequest(code, "", "The request body "+f.describe(body)+".")
}
