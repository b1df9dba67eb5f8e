package config

import (
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Bounds on a file's shape. Aliases let a few lines stand for millions of
// nodes, or for themselves; a configuration for humans stays far below.
const (
	maxNodes = 200_000
	maxDepth = 32
)

// decoder stores the nodes of one file in Go values and notes every fault on
// the way instead of stopping at the first.
type decoder struct {
	file  string
	world World
	root  reflect.Type

	faults  Faults
	lines   map[string]int    // by path: where in the file
	origins map[string]string // by path: the text with references, for dumps
	secrets []string          // values that must not be shown
	sources Sources           // read by references
	nodes   int
	flooded bool
}

func newDecoder(file string, world World, root reflect.Type) *decoder {
	return &decoder{file: file, world: world, root: root, lines: make(map[string]int), origins: make(map[string]string), sources: make(Sources)}
}

func (d *decoder) fault(n *yaml.Node, path, format string, args ...any) {
	d.faults = append(d.faults, Fault{File: d.file, Line: n.Line, Path: path, Message: fmt.Sprintf(format, args...)})
}

// place is where a value goes and what is known of it.
type place struct {
	path  string
	note  note
	depth int
}

// below is the place of a part of p.
func (p place) below(path string, n note) place {
	return place{path: path, note: n, depth: p.depth + 1}
}

// value stores n in v. Keys that the file does not name keep what v holds, so a
// default shows through.
func (d *decoder) value(n *yaml.Node, v reflect.Value, p place) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if d.nodes++; d.nodes > maxNodes || p.depth > maxDepth {
		if !d.flooded {
			d.fault(n, p.path, "too large or too deep; aliases may refer to themselves")
		}
		d.flooded = true
		return
	}
	if _, ok := d.lines[p.path]; !ok {
		d.lines[p.path] = n.Line
	}
	if v.Kind() == reflect.Pointer {
		d.pointer(n, v, p)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.section(n, v, p)
	case reflect.Slice:
		d.list(n, v, p)
	default:
		d.scalar(n, v, p)
	}
}

// pointer makes an optional value present.
func (d *decoder) pointer(n *yaml.Node, v reflect.Value, p place) {
	if v.IsNil() {
		v.Set(reflect.New(v.Type().Elem()))
	}
	d.value(n, v.Elem(), p)
}

// isNull reports whether a key stands there without a value, as when all lines
// below it are commented out. For sections and lists that means the default.
func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// kinds names the kinds of nodes for people.
func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a section"
	case yaml.SequenceNode:
		return "a list"
	default:
		return "a single value"
	}
}

// entry is one key of a mapping with its value.
type entry struct{ key, value *yaml.Node }

// entries lists the keys of a mapping, each once: a second one is a fault.
// Merged mappings (<<: *base) come last and fill only what is not there.
func (d *decoder) entries(n *yaml.Node, p place) []entry {
	var list []entry
	var merged []*yaml.Node
	seen := make(map[string]int)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		for key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		switch line, twice := seen[key.Value]; {
		case key.Kind != yaml.ScalarNode:
			d.fault(key, p.path, "%s as a key; want a plain name", kindOf(key))
		case key.ShortTag() == "!!merge":
			merged = append(merged, value)
		case twice:
			d.fault(key, join(p.path, key.Value), "key given twice; the first is in line %d", line)
		default:
			seen[key.Value] = key.Line
			list = append(list, entry{key, value})
		}
	}
	for _, m := range merged {
		list = d.merge(list, m, place{path: p.path, depth: p.depth + 1})
	}
	return list
}

// merge appends the entries of a merged mapping, or of a list of them, whose
// keys are not in list yet.
func (d *decoder) merge(list []entry, n *yaml.Node, p place) []entry {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if d.nodes++; d.nodes > maxNodes || p.depth > maxDepth {
		d.flooded = true
		return list
	}
	if n.Kind == yaml.SequenceNode {
		for _, m := range n.Content {
			list = d.merge(list, m, place{path: p.path, depth: p.depth + 1})
		}
		return list
	}
	if n.Kind != yaml.MappingNode {
		d.fault(n, p.path, "<< merges %s; want a section", kindOf(n))
		return list
	}
	for _, e := range d.entries(n, p) {
		known := slices.ContainsFunc(list, func(have entry) bool { return have.key.Value == e.key.Value })
		if !known {
			list = append(list, e)
		}
	}
	return list
}

func (d *decoder) section(n *yaml.Node, v reflect.Value, p place) {
	if isNull(n) {
		return
	}
	if n.Kind != yaml.MappingNode {
		d.fault(n, p.path, "%s where a section belongs; want keys among %s", kindOf(n), strings.Join(keysOf(v.Type()), ", "))
		return
	}
	fields := fieldsOf(v.Type())
	for _, e := range d.entries(n, p) {
		i := slices.IndexFunc(fields, func(f field) bool { return f.key == e.key.Value })
		if i < 0 {
			d.unknown(e.key, v.Type(), p.path)
			continue
		}
		path := join(p.path, fields[i].key)
		d.lines[path] = e.key.Line
		d.value(e.value, v.FieldByIndex(fields[i].index), p.below(path, fields[i].note))
	}
}

// unknown explains a key that the section does not have: near keys, else the
// sections that have it, else all keys of this one.
func (d *decoder) unknown(key *yaml.Node, section reflect.Type, path string) {
	keys := keysOf(section)
	hint := didYouMean(key.Value, keys)
	if hint == "" {
		if elsewhere := sectionsWith(d.root, key.Value); len(elsewhere) > 0 {
			hint = "; it belongs to " + orTop(elsewhere[0])
		}
	}
	d.fault(key, path, "unknown key %q%s; allowed: %s", shorten(key.Value), hint, strings.Join(keys, ", "))
}

func orTop(section string) string {
	if section == "" {
		return "the top of the file"
	}
	return section
}

// didYouMean is the hint for a word that is near to allowed ones, or "".
func didYouMean(word string, allowed []string) string {
	if near := nearest(word, allowed); len(near) > 0 {
		return "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return ""
}

func (d *decoder) list(n *yaml.Node, v reflect.Value, p place) {
	if isNull(n) {
		return
	}
	if n.Kind != yaml.SequenceNode {
		d.fault(n, p.path, "%s where a list belongs; begin each entry with a dash", kindOf(n))
		return
	}
	list := reflect.MakeSlice(v.Type(), 0, len(n.Content))
	for i, item := range n.Content {
		if d.flooded {
			return
		}
		e := reflect.New(v.Type().Elem()).Elem()
		path := element(p.path, i)
		d.lines[path] = item.Line
		d.value(item, e, p.below(path, p.note))
		list = reflect.Append(list, e)
	}
	v.Set(list)
}

func (d *decoder) scalar(n *yaml.Node, v reflect.Value, p place) {
	switch {
	case n.Kind != yaml.ScalarNode:
		d.fault(n, p.path, "%s where a single value belongs", kindOf(n))
		return
	case isNull(n):
		d.fault(n, p.path, "no value; give one or remove the key to have the default")
		return
	case !slices.Contains([]string{"!!str", "!!int", "!!float", "!!bool", "!!timestamp"}, n.ShortTag()):
		d.fault(n, p.path, "tag %s is not known here", n.ShortTag())
		return
	}
	t, ok := d.resolved(n, p)
	if !ok {
		return
	}
	if p.note.secret {
		d.hide(t.value)
		if _, ok := d.origins[p.path]; !ok && t.value != "" {
			d.fault(n, p.path, "a secret in the file itself; write ${env:NAME} or ${file:PATH}")
			return
		}
	}
	if err := setScalar(v, t, p.note); err != nil {
		d.fault(n, p.path, "%v", err)
	}
}

// resolved is the text of a scalar with its references resolved. A dump shows
// the references instead.
func (d *decoder) resolved(n *yaml.Node, p place) (text, bool) {
	tag := n.ShortTag()
	if tag == "!!timestamp" {
		tag = "!!str" // nothing here is a date: 2024-07-18 is a version
	}
	if !referTo(n.Value) {
		return text{n.Value, tag}, true
	}
	out, err := d.world.expand(n.Value, filepath.Dir(d.file))
	if err != nil {
		d.fault(n, p.path, "%v", err)
		return text{}, false
	}
	if len(out.values) == 0 {
		return text{out.text, tag}, true
	}
	for _, v := range out.values {
		d.hide(v)
	}
	maps.Copy(d.sources, out.files)
	d.origins[p.path] = n.Value
	return text{value: out.text}, true
}

// hide keeps a value out of everything that is shown.
func (d *decoder) hide(secret string) {
	if len(secret) >= minSecret && !slices.Contains(d.secrets, secret) {
		d.secrets = append(d.secrets, secret)
	}
}
