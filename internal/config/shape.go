package config

import (
	"path"
	"reflect"
	"strconv"
	"strings"
	"time"
)

var durationType = reflect.TypeFor[time.Duration]()

// note says of a key what its Go type cannot.
type note struct {
	bytes   bool     // a size: takes units
	secret  bool     // never shown, be it written in the file or referred to
	allowed []string // the only values; empty: any
}

// field is one key of a section. The loader, the dump, the difference, the JSON
// Schema and the reference page all walk a configuration by its fields, so they
// cannot disagree on what there is.
type field struct {
	key   string // in the file
	name  string // in Go
	index []int  // for reflect.Value.FieldByIndex
	typ   reflect.Type
	note  note
}

// fieldsOf lists the keys of a section in the order of declaration, those of
// inlined structs in their place.
func fieldsOf(t reflect.Type) []field {
	var fields []field
	for i := range t.NumField() {
		sf := t.Field(i)
		key, options, _ := strings.Cut(sf.Tag.Get("yaml"), ",")
		if !sf.IsExported() || key == "-" {
			continue
		}
		if options == "inline" {
			for _, f := range fieldsOf(sf.Type) {
				f.index = append([]int{i}, f.index...)
				fields = append(fields, f)
			}
			continue
		}
		if key == "" {
			key = strings.ToLower(sf.Name)
		}
		fields = append(fields, field{key: key, name: sf.Name, index: sf.Index, typ: sf.Type, note: noteOf(t, sf, key)})
	}
	return fields
}

// noteOf reads the field's tags (unit:"bytes", secret:"true", enum:"a,b") and the
// table of notes, which serves packages that need no tags otherwise.
func noteOf(owner reflect.Type, sf reflect.StructField, key string) note {
	n := notes[typeName(owner)+"."+key]
	if sf.Tag.Get("unit") == "bytes" || strings.HasSuffix(key, "_bytes") {
		n.bytes = true
	}
	if sf.Tag.Get("secret") == "true" {
		n.secret = true
	}
	if list := sf.Tag.Get("enum"); list != "" {
		n.allowed = strings.Split(list, ",")
	}
	return n
}

// typeName is the name of a type with the last element of its package's path.
func typeName(t reflect.Type) string {
	return path.Base(t.PkgPath()) + "." + t.Name()
}

// keysOf lists the keys of a section.
func keysOf(t reflect.Type) []string {
	var keys []string
	for _, f := range fieldsOf(t) {
		keys = append(keys, f.key)
	}
	return keys
}

// indirect is the type below pointers.
func indirect(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// sectionsWith lists where in the file the key is known: the paths of the
// sections, with [] for the entries of a list.
func sectionsWith(root reflect.Type, key string) []string {
	var found []string
	var visit func(t reflect.Type, at string)
	visit = func(t reflect.Type, at string) {
		switch t = indirect(t); {
		case t.Kind() == reflect.Slice:
			visit(t.Elem(), at+"[]")
		case t.Kind() == reflect.Struct:
			for _, f := range fieldsOf(t) {
				if f.key == key {
					found = append(found, at)
				}
				visit(f.typ, join(at, f.key))
			}
		}
	}
	visit(root, "")
	return found
}

// join extends the path of a section by a key.
func join(section, key string) string {
	if section == "" {
		return key
	}
	return section + "." + key
}

// element is the text of one element of a list in a path.
func element(list string, i int) string {
	return list + "[" + strconv.Itoa(i) + "]"
}
