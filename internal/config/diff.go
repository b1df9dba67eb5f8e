package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Diff lists what differs between two configurations, a line for each key, in
// the order of the schema. Entries of lists are matched by name and not by
// position, so that an instance put first is one addition and not a change of
// all. Secrets are masked.
func Diff(before, after *Config) []string {
	d := differ{before: before, after: after}
	d.compare(reflect.ValueOf(before).Elem(), reflect.ValueOf(after).Elem(), side{}, side{}, note{})
	return d.changes
}

// restartKeys are the keys and sections that are read once, at start. All others
// take effect when a file is loaded again.
var restartKeys = []string{
	"log.trace",
	"server.listen", "server.header_timeout", "server.idle_timeout", "server.max_header_bytes",
	"admin.listen", "log.format", "proxy", "cache", "fleet", "upstream",
}

// Live reports whether a change, as Diff gives it, can take effect without a
// restart.
func Live(change string) bool {
	path, _, _ := strings.Cut(change, ": ")
	return !slices.ContainsFunc(restartKeys, func(key string) bool {
		return path == key || strings.HasPrefix(path, key+".")
	})
}

// differ collects changes.
type differ struct {
	before, after *Config
	changes       []string
}

// side is where a value stands: at, by position, as origins know it; label, by
// name, as people do.
type side struct{ at, label string }

func (s side) key(k string) side { return side{join(s.at, k), join(s.label, k)} }

func (d *differ) note(where side, format string, args ...any) {
	d.changes = append(d.changes, where.label+": "+fmt.Sprintf(format, args...))
}

func (d *differ) compare(a, b reflect.Value, sa, sb side, n note) {
	switch {
	case a.Kind() == reflect.Pointer && (a.IsNil() || b.IsNil()):
		if a.IsNil() != b.IsNil() {
			d.note(sb, "%s -> %s", d.text(d.before, a, sa, n), d.text(d.after, b, sb, n))
		}
	case a.Kind() == reflect.Pointer:
		d.compare(a.Elem(), b.Elem(), sa, sb, n)
	case a.Kind() == reflect.Struct:
		for _, f := range fieldsOf(a.Type()) {
			d.compare(a.FieldByIndex(f.index), b.FieldByIndex(f.index), sa.key(f.key), sb.key(f.key), f.note)
		}
	case a.Kind() == reflect.Slice && indirect(a.Type().Elem()).Kind() == reflect.Struct:
		d.list(a, b, sa, sb, n)
	default:
		d.scalar(a, b, sa, sb, n)
	}
}

func (d *differ) scalar(a, b reflect.Value, sa, sb side, n note) {
	if reflect.DeepEqual(a.Interface(), b.Interface()) {
		return
	}
	old, now := d.text(d.before, a, sa, n), d.text(d.after, b, sb, n)
	if old == now {
		now += " (its value changed)"
	}
	d.note(sb, "%s -> %s", old, now)
}

// text is a value as Diff shows it: what a dump of the file would say.
func (d *differ) text(c *Config, v reflect.Value, s side, n note) string {
	if v.Kind() == reflect.Pointer && v.IsNil() {
		return "unset"
	}
	node := dumper{origins: c.origins}.node(v, place{path: s.at, note: n})
	if len(node.Content) == 0 {
		return cmp.Or(node.Value, `""`)
	}
	var items []string
	for _, item := range node.Content {
		items = append(items, item.Value)
	}
	return "[" + strings.Join(items, ", ") + "]"
}

// list matches the entries of two lists by identity.
func (d *differ) list(a, b reflect.Value, sa, sb side, n note) {
	before, after := identify(d.before, a, sa.at), identify(d.after, b, sb.at)
	for i := range b.Len() {
		id := after.ids[i]
		sub := side{element(sb.at, i), sb.label + "[" + id + "]"}
		j, had := before.at[id]
		if !had {
			d.note(sub, "added")
			continue
		}
		d.compare(a.Index(j), b.Index(i), side{element(sa.at, j), sub.label}, sub, n)
	}
	for i := range a.Len() {
		if id := before.ids[i]; !has(after.at, id) {
			d.note(side{label: sa.label + "[" + id + "]"}, "removed")
		}
	}
}

func has(m map[string]int, key string) bool {
	_, ok := m[key]
	return ok
}

// byIdentity is a list with the identity of each entry.
type byIdentity struct {
	ids []string
	at  map[string]int
}

// identify gives each entry of the list at a path an identity: its name, url or
// model as a dump shows it; entries without one, and further ones with the same,
// are told apart by number.
func identify(c *Config, list reflect.Value, at string) byIdentity {
	x := byIdentity{at: make(map[string]int)}
	for i := range list.Len() {
		first := identity(c, list.Index(i), element(at, i))
		id := first
		for n := 2; id == "" || has(x.at, id); n++ {
			id = fmt.Sprintf("%s#%d", first, n)
		}
		x.ids, x.at[id] = append(x.ids, id), i
	}
	return x
}

func identity(c *Config, v reflect.Value, at string) string {
	dump := dumper{origins: c.origins}
	for _, key := range []string{"name", "url", "model"} {
		for _, f := range fieldsOf(v.Type()) {
			if f.key != key {
				continue
			}
			if id := dump.node(v.FieldByIndex(f.index), place{path: join(at, key)}).Value; id != "" {
				return id
			}
		}
	}
	return ""
}
