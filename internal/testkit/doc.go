// Package testkit is for tests only: a network of pipes that runs inside a
// synctest bubble (network.go), an engine that misbehaves as it is told
// (engine.go), and golden files (golden.go).
package testkit
