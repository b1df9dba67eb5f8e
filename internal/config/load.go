package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// maxFile bounds a configuration file.
const maxFile = 8 << 20

// Load reads the file at path over the defaults, resolves its references and
// validates it. The error is [Faults] with everything that is wrong, or says
// why the file cannot be read.
func Load(path string) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("read %s: longer than 8 MiB", path)
	}
	return Parse(path, data, process())
}

// Parse is [Load] with the content of the file and the world of its references
// given. Faults name the file, and references to files are relative to it.
func Parse(file string, data []byte, world World) (*Config, error) {
	cfg := Default()
	d := newDecoder(file, world, reflect.TypeFor[Config]())
	doc, err := compose(data)
	if err != nil {
		return nil, d.syntax(err)
	}
	if doc != nil {
		d.value(doc, reflect.ValueOf(&cfg).Elem(), place{})
	}
	d.sources[file] = sha256.Sum256(data)
	cfg.file, cfg.sources, cfg.origins, cfg.secrets = file, d.sources, d.origins, d.secrets
	d.judge(&cfg)
	if len(d.faults) > 0 {
		return nil, d.redacted()
	}
	return &cfg, nil
}

// errDocuments says that a file holds more than one YAML document.
var errDocuments = errors.New("a second document begins (---); want one")

// compose parses the one document of a file. It is nil when the file holds
// nothing but comments.
func compose(data []byte) (doc *yaml.Node, err error) {
	l, err := yaml.NewLoader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	var first, second yaml.Node
	switch err := l.Load(&first); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, err
	}
	switch err := l.Load(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		return nil, err
	default:
		return nil, &documentError{line: second.Line}
	}
	if first.Kind != yaml.DocumentNode || len(first.Content) != 1 {
		return nil, nil
	}
	return first.Content[0], nil
}

// documentError is errDocuments with its place.
type documentError struct{ line int }

func (e *documentError) Error() string { return errDocuments.Error() }

// syntax is the one fault of a file that is no YAML. Nothing in it can be
// trusted, so nothing else is reported.
func (d *decoder) syntax(err error) Faults {
	f := Fault{File: d.file, Message: err.Error()}
	if e, ok := errors.AsType[*yaml.LoadError](err); ok {
		f.Line, f.Message = e.Mark.Line, "not YAML: "+e.Message
		if e.ContextMsg != "" {
			f.Message += fmt.Sprintf(" (%s that begins in line %d)", e.ContextMsg, e.ContextMark.Line)
		}
	}
	if e, ok := errors.AsType[*documentError](err); ok {
		f.Line = e.line
	}
	return Faults{f}
}

// redacted is the faults in order, with each known secret masked: a validator
// may have quoted a value that holds one.
func (d *decoder) redacted() Faults {
	mask := Mask(d.secrets)
	for i := range d.faults {
		d.faults[i].Message = mask.Replace(d.faults[i].Message)
	}
	return d.faults.sorted()
}

// masked stands for a secret wherever a configuration is shown.
const masked = "********"

// minSecret is the shortest value that is masked. Shorter ones are numbers,
// switches and words such as "none" and "EMPTY", which engines without
// authentication are given for a key: masking them garbles and protects nothing.
const minSecret = 6

// Mask returns a replacer that puts asterisks for secrets, as they are and as
// quoting makes them. Longer ones come first, so that a secret that is part of
// another does not leave the rest of it behind.
func Mask(secrets []string) *strings.Replacer {
	var forms []string
	for _, s := range secrets {
		if len(s) < minSecret {
			continue
		}
		quoted := strconv.Quote(s)
		json, _ := json.Marshal(s) // text always marshals
		forms = append(forms, s, quoted[1:len(quoted)-1], string(json[1:len(json)-1]), url.QueryEscape(s))
	}
	slices.SortFunc(forms, func(a, b string) int { return len(b) - len(a) })
	var pairs []string
	for _, form := range forms {
		pairs = append(pairs, form, masked)
	}
	return strings.NewReplacer(pairs...)
}
