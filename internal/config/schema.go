package config

import _ "embed"

// schema is written from the types and their comments by TestSchemaIsCurrent.
//
//go:embed schema.json
var schema []byte

// Schema is the JSON Schema of the file, for editors: put
//
//	# yaml-language-server: $schema=warmroute.schema.json
//
// in the first line. It is as strict as one file alone allows; the loader also
// checks what references stand for, ranges, and names that must be unique.
func Schema() []byte { return schema }
