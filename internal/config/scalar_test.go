package config

import (
	"math"
	"testing"
	"time"
)

func TestParseSize(t *testing.T) {
	f := func(value, tag string, want int64) {
		t.Helper()
		if got, err := parseSize(text{value, tag}); err != nil || got != want {
			t.Errorf("parseSize(%q) = %d, %v; want %d", value, got, err, want)
		}
	}
	f("0", "!!int", 0)
	f("4096", "!!int", 4096)
	f("4096", "!!str", 4096)
	f("1B", "!!str", 1)
	f("1KB", "!!str", 1000)
	f("1KiB", "!!str", 1024)
	f("256 MiB", "!!str", 256<<20)
	f("1.5GiB", "!!str", 3<<29)
	f("2TB", "!!str", 2e12)
	f("-1KiB", "!!str", -1024) // ranges are the validators'
	f("12MB", "", 12e6)        // from a reference

	bad := func(value, tag string) {
		t.Helper()
		if got, err := parseSize(text{value, tag}); err == nil {
			t.Errorf("parseSize(%q) = %d; want an error", value, got)
		}
	}
	bad("", "!!str")
	bad("MiB", "!!str")
	bad("256m", "!!str")
	bad("256mib", "!!str")
	bad("1e3KiB", "!!str")
	bad("0x10KiB", "!!str")
	bad("NaNKiB", "!!str")
	bad("InfGiB", "!!str")
	bad("1_0KiB", "!!str")
	bad("1.5", "!!float")
	bad("9999999999TiB", "!!str")
	bad("true", "!!bool")
}

// What is shown can be read back, for every size and duration.
func TestFormatsReadBack(t *testing.T) {
	for _, n := range []int64{0, 1, 1000, 1024, 1 << 20, 3 << 29, 1 << 40, 5<<40 + 1, math.MaxInt32, -1024} {
		if got, err := parseSize(text{formatSize(n), "!!str"}); err != nil || got != n {
			t.Errorf("size %d is shown as %s and read as %d, %v", n, formatSize(n), got, err)
		}
	}
	for _, d := range []time.Duration{0, 1, time.Microsecond, 250 * time.Millisecond, time.Second, 90 * time.Second, time.Minute, 10 * time.Minute, time.Hour, 36*time.Hour + time.Second, -time.Minute} {
		if got, err := parseDuration(text{formatDuration(d), "!!str"}); err != nil || got != d {
			t.Errorf("duration %v is shown as %s and read as %v, %v", d, formatDuration(d), got, err)
		}
	}
	if got, want := formatDuration(10*time.Minute), "10m"; got != want {
		t.Errorf("10 minutes are shown as %s; want %s", got, want)
	}
	if got, want := formatDuration(2*time.Hour), "2h"; got != want {
		t.Errorf("2 hours are shown as %s; want %s", got, want)
	}
}

func TestParseNumbers(t *testing.T) {
	whole := func(value, tag string, want int64) {
		t.Helper()
		if got, err := parseInt(text{value, tag}); err != nil || got != want {
			t.Errorf("parseInt(%q) = %d, %v; want %d", value, got, err, want)
		}
	}
	whole("12", "!!int", 12)
	whole("-3", "!!int", -3)
	whole("1e6", "!!float", 1_000_000)
	whole("1_000", "!!int", 1000)
	whole("12", "", 12)
	for _, bad := range []text{{"12", "!!str"}, {"1.5", "!!float"}, {"1e30", "!!float"}, {"x", ""}, {".inf", "!!float"}} {
		if got, err := parseInt(bad); err == nil {
			t.Errorf("parseInt(%q) = %d; want an error", bad.value, got)
		}
	}
	for _, bad := range []text{{"1", "!!str"}, {".nan", "!!float"}, {".inf", "!!float"}, {"nan", ""}, {"inf", ""}, {"1e999", "!!float"}} {
		if got, err := parseFloat(bad); err == nil {
			t.Errorf("parseFloat(%q) = %g; want an error", bad.value, got)
		}
	}
	for _, bad := range []text{{"yes", "!!str"}, {"on", "!!bool"}, {"True", "!!bool"}, {"1", "!!int"}, {"1", ""}} {
		if got, err := parseBool(bad); err == nil {
			t.Errorf("parseBool(%q) = %t; want an error", bad.value, got)
		}
	}
}

func TestExpand(t *testing.T) {
	w := World{
		Env: func(name string) (string, bool) {
			v, ok := map[string]string{"A": "one", "B": "two\n", "EMPTY": ""}[name]
			return v, ok
		},
		File: func(path string) ([]byte, error) { return []byte("content of " + path + "\r\n"), nil },
	}
	f := func(in, want string) {
		t.Helper()
		got, err := w.expand(in, "dir")
		if err != nil || got.text != want {
			t.Errorf("expand(%q) = %q, %v; want %q", in, got.text, err, want)
		}
	}
	f("", "")
	f("plain", "plain")
	f("${env:A}", "one")
	f("x${env:A}y${env:B}z", "xoneytwoz")
	f("${file:f}", "content of dir/f")
	f("${file:/f}", "content of /f")
	f("$${env:A}", "${env:A}")
	f("$$${env:A}", "$${env:A}")
	f("$${${env:A}", "${one")
	f("a$b}c{", "a$b}c{")

	bad := func(in string) {
		t.Helper()
		if got, err := w.expand(in, "dir"); err == nil {
			t.Errorf("expand(%q) = %q; want an error", in, got.text)
		}
	}
	bad("${env:NONE}")
	bad("${env:EMPTY}")
	bad("${env:}")
	bad("${file:}")
	bad("${A}")
	bad("${env:A")
	bad("${}")
	if got, err := (World{}).expand("${file:f}${env:A}", "."); err == nil {
		t.Errorf("the empty world has %q", got.text)
	}
}
