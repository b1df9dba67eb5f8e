package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// Dump writes c as the YAML that would give it, defaults included, without a
// secret: a reference is shown as it was written, and where a secret stands for
// itself there are asterisks.
func (c *Config) Dump() ([]byte, error) {
	dump := dumper{origins: c.origins}
	root := dump.node(reflect.ValueOf(c).Elem(), place{})
	return yaml.Dump(root, yaml.WithIndent(2))
}

// dumper turns values into nodes.
type dumper struct {
	origins map[string]string
}

func (d dumper) node(v reflect.Value, p place) *yaml.Node {
	if origin, ok := d.origins[p.path]; ok {
		return scalarNode("!!str", origin)
	}
	switch v = reflect.Indirect(v); {
	case v.Kind() == reflect.Struct:
		n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		for _, f := range fieldsOf(v.Type()) {
			x := v.FieldByIndex(f.index)
			if isAbsent(x, p) {
				continue
			}
			n.Content = append(n.Content, scalarNode("!!str", f.key), d.node(x, p.below(join(p.path, f.key), f.note)))
		}
		return n
	case v.Kind() == reflect.Slice:
		n := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		for i := range v.Len() {
			n.Content = append(n.Content, d.node(v.Index(i), p.below(element(p.path, i), p.note)))
		}
		return n
	}
	return scalarNode(show(v, p.note))
}

// isAbsent reports whether a key is left out: an optional value that is not
// given, and inside lists, whose entries have no defaults, every zero.
func isAbsent(v reflect.Value, p place) bool {
	if v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice {
		return v.IsZero()
	}
	return strings.Contains(p.path, "[") && v.IsZero()
}

func scalarNode(tag, value string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}
}

// show is the text of a scalar with its tag.
func show(v reflect.Value, n note) (tag, value string) {
	switch {
	case n.secret && !v.IsZero():
		return "!!str", masked
	case v.Type() == durationType:
		return "!!str", formatDuration(time.Duration(v.Int()))
	case v.CanInt() && n.bytes && formatSize(v.Int()) != strconv.FormatInt(v.Int(), 10):
		return "!!str", formatSize(v.Int())
	case v.CanInt():
		return "!!int", strconv.FormatInt(v.Int(), 10)
	case v.CanUint():
		return "!!int", strconv.FormatUint(v.Uint(), 10)
	case v.CanFloat():
		return "!!float", strconv.FormatFloat(v.Float(), 'g', -1, 64)
	case v.Kind() == reflect.Bool:
		return "!!bool", strconv.FormatBool(v.Bool())
	case v.Kind() == reflect.String:
		return "!!str", strings.ReplaceAll(v.String(), refOpen, refEscaped)
	}
	return "!!str", fmt.Sprintf("BUG: config cannot show %v", v.Type())
}
