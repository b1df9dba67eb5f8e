// Package config reads the configuration file: the sum of the Config types of
// the packages that it steers.
//
// Reading order: config.go (the schema, defaults, rules between sections),
// load.go (from a file to a Config or to all of its faults), decode.go (nodes
// into values), scalar.go and reference.go (units, ${env:NAME} and
// ${file:PATH}), judge.go (a validator's complaint finds its line), shape.go
// (the one list of keys that everything here walks), dump.go and diff.go (a
// configuration for people), schema.go (the JSON Schema for editors).
//
// YAML is parsed by a library into nodes; storing them in values is done here,
// because a file must be judged as a whole: every fault with its line in one
// run, and never a value that may be a secret.
//
// Only package cli sees this one. Everybody else gets the part that is theirs.
package config
