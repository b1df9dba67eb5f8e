package config

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
)

// FuzzParse checks of any file: it loads or has faults, and never panics; every
// fault names a line that exists; what loads survives a dump; and what a
// reference stands for shows up nowhere.
func FuzzParse(f *testing.F) {
	for _, suffix := range []string{"good", "bad"} {
		dir, err := os.ReadDir("testdata")
		if err != nil {
			f.Fatal(err)
		}
		for _, e := range dir {
			if !strings.HasSuffix(e.Name(), "."+suffix+".yml") {
				continue
			}
			data, err := os.ReadFile("testdata/" + e.Name())
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	const secret = "Zq7!planted#Xw"
	world := World{
		Env:  func(string) (string, bool) { return secret, true },
		File: func(string) ([]byte, error) { return []byte(secret + "\n"), nil },
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.Contains(data, []byte("planted#")) {
			t.Skip("the input holds the secret itself")
		}
		cfg, err := Parse("f.yml", data, world)
		if err != nil {
			checkFaults(t, err, bytes.Count(data, []byte("\n"))+bytes.Count(data, []byte("\r"))+2)
			if strings.Contains(err.Error(), secret) {
				t.Fatalf("a fault shows a secret: %v", err)
			}
			return
		}
		text, err := cfg.Dump()
		if err != nil {
			t.Fatalf("dump: %v", err)
		}
		if bytes.Contains(text, []byte(secret)) {
			t.Fatalf("the dump shows a secret:\n%s", text)
		}
		again, err := Parse("f.yml", text, world)
		if err != nil {
			t.Fatalf("the dump does not load: %v\n%s", err, text)
		}
		if changes := Diff(cfg, again); len(changes) > 0 {
			t.Fatalf("the dump differs: %q\n%s", changes, text)
		}
	})
}

func checkFaults(t *testing.T, err error, lines int) {
	t.Helper()
	faults, ok := errors.AsType[Faults](err)
	if !ok || len(faults) == 0 {
		t.Fatalf("error is %T %v; want Faults", err, err)
	}
	for _, fault := range faults {
		if fault.Message == "" || fault.Line < 0 || fault.Line > lines {
			t.Fatalf("fault %+v in a file of %d lines", fault, lines)
		}
	}
}
