package config

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/invopop/jsonschema"

	"github.com/warmroute/warmroute/internal/testkit"
)

const module = "github.com/warmroute/warmroute"

// comments are the doc comments of all packages whose types are in the file.
func comments(t *testing.T) map[string]string {
	t.Helper()
	t.Chdir("../..")
	defer t.Chdir("internal/config")
	var r jsonschema.Reflector
	for _, pkg := range []string{"config", "proxy", "route", "index", "fleet", "upstream"} {
		if err := r.AddGoComments(module, "internal/"+pkg, jsonschema.WithFullComment()); err != nil {
			t.Fatal(err)
		}
	}
	return r.CommentMap
}

// describer turns the comments of Go into those of the file.
type describer struct {
	comments map[string]string
	keys     *strings.Replacer // names of fields to their keys
}

func newDescriber(t *testing.T) describer {
	t.Helper()
	var pairs []string
	walkSections(func(section reflect.Type, _ string) {
		for _, f := range fieldsOf(section) {
			if strings.Contains(f.key, "_") { // Listen is a word of English, MaxHold is not
				pairs = append(pairs, f.name, f.key)
			}
		}
	})
	return describer{comments(t), strings.NewReplacer(pairs...)}
}

var (
	docLink = regexp.MustCompile(`\[([A-Za-z][A-Za-z0-9_.]*)\]`)
	verb    = regexp.MustCompile(`^[a-z]+s$`)
)

// say rewrites the comment of the Go name for a reader who knows the key: "Grace
// bounds how long" is "Bounds how long" beside the key grace.
func (d describer) say(name, comment string) string {
	comment, _, _ = strings.Cut(comment, "\n\n")
	comment = docLink.ReplaceAllString(strings.ReplaceAll(comment, "\n", " "), "$1")
	if rest, ok := strings.CutPrefix(comment, name+" "); ok {
		second, tail, _ := strings.Cut(rest, " ")
		switch {
		case second == "is" || second == "are":
			comment = tail
		case verb.MatchString(second):
			comment = rest
		}
	}
	comment = strings.ReplaceAll(comment, " The zero Config is not useful: start from Default.", "")
	comment = d.keys.Replace(comment)
	if comment == "" || strings.Contains(strings.SplitN(comment, " ", 2)[0], "_") {
		return comment
	}
	return strings.ToUpper(comment[:1]) + comment[1:]
}

// ofKey is what the file's reader is told of a key: the comment of the field;
// else that of a field above that names it too; else, of a section, its type's.
func (d describer) ofKey(section reflect.Type, f field) string {
	owner, i := f.owner(section)
	for j := i; j >= 0; j-- {
		comment := d.comments[owner.PkgPath()+"."+owner.Name()+"."+owner.Field(j).Name]
		if comment != "" && strings.Contains(comment, f.name) {
			return d.say(f.name, comment)
		}
		if comment != "" {
			break
		}
	}
	if indirect(f.typ).Kind() == reflect.Struct {
		return d.ofType(indirect(f.typ))
	}
	return ""
}

// ofType is what the file's reader is told of a section.
func (d describer) ofType(t reflect.Type) string {
	return d.say(t.Name(), d.comments[t.PkgPath()+"."+t.Name()])
}

// walkSections visits each section's type, with its path in the file.
func walkSections(visit func(section reflect.Type, path string)) {
	var walk func(t reflect.Type, path string)
	walk = func(t reflect.Type, path string) {
		visit(t, path)
		for _, f := range fieldsOf(t) {
			switch ft := indirect(f.typ); {
			case ft.Kind() == reflect.Struct:
				walk(ft, join(path, f.key))
			case ft.Kind() == reflect.Slice && ft.Elem().Kind() == reflect.Struct:
				walk(ft.Elem(), join(path, f.key)+"[]")
			}
		}
	}
	walk(reflect.TypeFor[Config](), "")
}

// owner is the struct that declares f, which an inlined one may be.
func (f field) owner(t reflect.Type) (reflect.Type, int) {
	for _, i := range f.index[:len(f.index)-1] {
		t = t.Field(i).Type
	}
	return t, f.index[len(f.index)-1]
}

const referencePattern = `\$\{(env|file):[^}]+\}`

// scalarSchema describes the values of a key: those of its type, or a reference
// that stands for one.
func scalarSchema(t reflect.Type, n note) *jsonschema.Schema {
	text := func(pattern string) *jsonschema.Schema { return &jsonschema.Schema{Type: "string", Pattern: pattern} }
	orReference := func(s *jsonschema.Schema) *jsonschema.Schema {
		return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{s, text(referencePattern)}}
	}
	switch {
	case n.secret:
		return text(referencePattern)
	case len(n.allowed) > 0:
		var values []any
		for _, v := range n.allowed {
			values = append(values, v)
		}
		return orReference(&jsonschema.Schema{Type: "string", Enum: values})
	case t == durationType:
		number := `[0-9]+(\.[0-9]*)?|\.[0-9]+`
		return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{
			text(`^[-+]?((` + number + `)(ns|us|µs|μs|ms|s|m|h))+$|^[-+]?0$|` + referencePattern),
			{Type: "integer", Enum: []any{0}},
		}}
	case n.bytes:
		return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{
			text(`^-?[0-9]+(\.[0-9]+)? *([KMGT]i?)?B$|^-?[0-9]+$|` + referencePattern),
			{Type: "integer"},
		}}
	case t.Kind() == reflect.Bool:
		return orReference(&jsonschema.Schema{Type: "boolean"})
	case t.Kind() == reflect.String:
		return &jsonschema.Schema{Type: "string"}
	case reflect.Zero(t).CanFloat():
		return orReference(&jsonschema.Schema{Type: "number"})
	}
	return orReference(&jsonschema.Schema{Type: "integer"})
}

// generateSchema reflects the types, then says of each key what reflection
// cannot know.
func generateSchema(t *testing.T, d describer) []byte {
	t.Helper()
	r := jsonschema.Reflector{
		FieldNameTag:               "yaml",
		RequiredFromJSONSchemaTags: true,
		Anonymous:                  true,
		Namer: func(t reflect.Type) string {
			if t.Name() == "" {
				return "" // a list: described in its place
			}
			return typeName(t)
		},
	}
	s := r.ReflectFromType(reflect.TypeFor[Config]())
	s.Title = "Warmroute configuration"
	done := make(map[reflect.Type]bool)
	var visit func(t reflect.Type)
	visit = func(owner reflect.Type) {
		if done[owner] {
			return
		}
		done[owner] = true
		def := s.Definitions[typeName(owner)]
		def.AdditionalProperties = jsonschema.FalseSchema
		def.Properties = jsonschema.NewProperties()
		for _, f := range fieldsOf(owner) {
			p := keySchema(f, visit)
			p.Description = d.ofKey(owner, f)
			def.Properties.Set(f.key, p)
		}
	}
	visit(reflect.TypeFor[Config]())
	root := s.Definitions["config.Config"]
	root.Required = []string{"pools"}
	pools, _ := root.Properties.Get("pools")
	pools.AnyOf[0].MinItems = new(uint64(1))
	pools.AnyOf = pools.AnyOf[:1]
	for name := range s.Definitions {
		if def := s.Definitions[name]; name != "config.Config" && def.AdditionalProperties != jsonschema.FalseSchema {
			delete(s.Definitions, name) // inlined elsewhere, or a scalar
		}
	}
	out, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(out, '\n')
}

// keySchema describes one key. Sections and lists may be left empty, as when
// all lines below them are commented out.
func keySchema(f field, visit func(reflect.Type)) *jsonschema.Schema {
	null := &jsonschema.Schema{Type: "null"}
	switch t := indirect(f.typ); {
	case t.Kind() == reflect.Struct:
		visit(t)
		return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Ref: "#/$defs/" + typeName(t)}, null}}
	case t.Kind() == reflect.Slice:
		items := scalarSchema(t.Elem(), f.note)
		if t.Elem().Kind() == reflect.Struct {
			visit(t.Elem())
			items = &jsonschema.Schema{Ref: "#/$defs/" + typeName(t.Elem())}
		}
		return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Type: "array", Items: items}, null}}
	default:
		return scalarSchema(t, f.note)
	}
}

// generateDocs writes the reference page.
func generateDocs(d describer) []byte {
	var sb strings.Builder
	sb.WriteString(strings.Replace(docsHead, "RESTART", "`"+strings.Join(restartKeys, "`, `")+"`", 1))
	described := make(map[reflect.Type]string)
	walkSections(func(t reflect.Type, path string) {
		if path != "" {
			fmt.Fprintf(&sb, "\n## `%s`\n\n", path)
		}
		if same, ok := described[t]; ok {
			fmt.Fprintf(&sb, "The keys of `%s`.\n", same)
			return
		}
		described[t] = path
		if about := d.ofType(t); path != "" && about != "" {
			sb.WriteString(about + "\n")
		}
		sb.WriteString("\n| key | value | default | what it does |\n| --- | --- | --- | --- |\n")
		defaults, ok := defaultsAt(path)
		for _, f := range fieldsOf(t) {
			var value reflect.Value
			if ok {
				value = defaults.FieldByIndex(f.index)
			}
			about := strings.ReplaceAll(d.ofKey(t, f), "|", `\|`)
			fmt.Fprintf(&sb, "| `%s` | %s | %s | %s |\n", f.key, valueDoc(f), defaultDoc(f, value), about)
		}
	})
	return []byte(sb.String())
}

// defaultsAt is the default of a section; entries of lists have none.
func defaultsAt(path string) (reflect.Value, bool) {
	v := reflect.ValueOf(Default())
	for key := range strings.SplitSeq(path, ".") {
		if strings.Contains(path, "[]") {
			return v, false
		}
		for _, f := range fieldsOf(v.Type()) {
			if f.key == key {
				v = v.FieldByIndex(f.index)
				break
			}
		}
	}
	return v, true
}

func valueDoc(f field) string {
	t := indirect(f.typ)
	switch {
	case f.note.secret:
		return "reference to a secret"
	case len(f.note.allowed) > 0:
		return "`" + strings.Join(f.note.allowed, "`, `") + "`"
	case t == durationType:
		return "duration"
	case f.note.bytes:
		return "size"
	case t.Kind() == reflect.Struct:
		return "section"
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		return "list of sections"
	case t.Kind() == reflect.Slice:
		return "list"
	case t.Kind() == reflect.Bool:
		return "`true`, `false`"
	case t.Kind() == reflect.String:
		return "text"
	case reflect.Zero(t).CanFloat():
		return "number"
	}
	return "whole number"
}

func defaultDoc(f field, v reflect.Value) string {
	if !v.IsValid() || v.Kind() == reflect.Struct || v.Kind() == reflect.Slice || v.Kind() == reflect.Pointer {
		return ""
	}
	if _, text := show(v, f.note); text != "" {
		return "`" + text + "`"
	}
	return ""
}

const docsHead = "<!-- Written by `go test ./internal/config -run TestDocs -update`; edit the code's comments instead. -->\n" + `
# Configuration

One YAML file, given to ` + "`warmroute serve --config FILE`" + `. Every key has a default except ` + "`pools`" + `:

` + "```yaml" + `
pools:
  - model: llama-3.1-70b
    instances:
      - url: http://10.0.0.1:8000
      - url: http://10.0.0.2:8000
` + "```" + `

- ` + "`warmroute config check FILE`" + ` lists every fault with its line; ` + "`warmroute config print FILE`" + ` shows what is in
  force, defaults included and secrets masked; ` + "`warmroute config schema`" + ` writes a JSON Schema for editors.
- **Unknown keys are errors.** So are duplicate keys, numbers without a unit where one is needed, and text that YAML takes for a
  number.
- **Durations** have a unit: ` + "`250ms`, `30s`, `1m30s`. **Sizes** too: `512KiB`, `256MiB`" + `; a plain number is bytes.
- **References**: any value may be ` + "`${env:NAME}` or `${file:PATH}`" + ` (relative to the configuration file), alone or inside other
  text; ` + "`$${`" + ` is a literal ` + "`${`" + `. Secrets must be references. Nothing that a reference stands for is ever shown.
- **Reloads**: ` + "`SIGHUP`, `POST /-/reload`" + ` or a change of the file or of a file that it refers to. A reload that has faults
  changes nothing and lists all of them in the log. Running requests and all counters go on. Changes of these wait for a
  restart, and the reload says so: RESTART.
`

func TestSchemaIsCurrent(t *testing.T) {
	testkit.Golden(t, "../schema.json", generateSchema(t, newDescriber(t)))
}

func TestDocs(t *testing.T) {
	testkit.Golden(t, "../../../docs/configuration.md", generateDocs(newDescriber(t)))
}

func TestKeysHaveComments(t *testing.T) {
	d := newDescriber(t)
	walkSections(func(section reflect.Type, path string) {
		for _, f := range fieldsOf(section) {
			if d.ofKey(section, f) == "" {
				t.Errorf("%s has no comment", join(path, f.key))
			}
		}
	})
}
