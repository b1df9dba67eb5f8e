package config

import (
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// judge validates cfg and finds for each fault the line of the key that it
// names. Where the loader has a fault already, the validator's would only say
// that the default is fine or that the rest is missing.
func (d *decoder) judge(cfg *Config) {
	broken := make(map[string]bool)
	for _, f := range d.faults {
		broken[f.Path] = true
	}
	for _, err := range cfg.Validate() {
		path, message := d.locate(err.Error())
		if broken[path] {
			continue
		}
		d.faults = append(d.faults, Fault{File: d.file, Line: d.line(path), Path: path, Message: message})
	}
}

// pathForm is how validators begin their errors: the path of a key, then a
// colon or the value.
var pathForm = regexp.MustCompile(`^([a-z][a-z0-9_]*(?:\[\d+\])*(?:\.[a-z][a-z0-9_]*(?:\[\d+\])*)*)(:? )`)

// locate splits a validator's error into the path of the key and what is wrong
// with it. Without a path that exists, all of it is the message.
func (d *decoder) locate(message string) (path, rest string) {
	m := pathForm.FindStringSubmatch(message)
	if m == nil || !knows(d.root, m[1]) {
		return "", message
	}
	return m[1], strings.TrimPrefix(message, m[0])
}

// line is where the key stands, or, when the file leaves it out, the section in
// which it would.
func (d *decoder) line(path string) int {
	for path != "" {
		if line, ok := d.lines[path]; ok {
			return line
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return 0
}

// knows reports whether a path leads to a key of the type.
func knows(t reflect.Type, path string) bool {
	for step := range strings.SplitSeq(path, ".") {
		key, index, indexed := strings.Cut(step, "[")
		t = indirect(t)
		if t.Kind() != reflect.Struct {
			return false
		}
		fields := fieldsOf(t)
		i := slices.IndexFunc(fields, func(f field) bool { return f.key == key })
		if i < 0 {
			return false
		}
		t = indirect(fields[i].typ)
		if !indexed {
			continue
		}
		if _, err := strconv.Atoi(strings.TrimSuffix(index, "]")); err != nil || t.Kind() != reflect.Slice {
			return false
		}
		t = t.Elem()
	}
	return true
}
