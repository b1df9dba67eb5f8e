package config

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// text is the text of a scalar and what YAML takes it for. A resolved reference
// has no tag: it may stand for any type.
type text struct {
	value string
	tag   string // !!str, !!int, ...; empty: came from a reference
}

func (t text) is(tags ...string) bool {
	return t.tag == "" || slices.Contains(tags, t.tag)
}

// shown is the value as faults quote it. What a reference stands for may be a
// secret that somebody put into the wrong field; it is never quoted.
func (t text) shown() string {
	switch t.tag {
	case "":
		return "the value that this reference stands for"
	case "!!str":
		return strconv.Quote(shorten(t.value))
	default:
		return shorten(t.value)
	}
}

func shorten(s string) string {
	const limit = 60
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "..."
}

// sizeUnits are the units of byte sizes, largest first within each family.
var sizeUnits = []struct {
	name  string
	bytes float64
}{
	{"TiB", 1 << 40},
	{"GiB", 1 << 30},
	{"MiB", 1 << 20},
	{"KiB", 1 << 10},
	{"TB", 1e12},
	{"GB", 1e9},
	{"MB", 1e6},
	{"KB", 1e3},
	{"B", 1},
}

var (
	errSize     = errors.New("want a size such as 512KiB, 256MiB or 1.5GiB (units: B, KB, KiB, MB, MiB, GB, GiB, TB, TiB)")
	errDuration = errors.New("want a duration such as 250ms, 30s or 1m30s (units: us, ms, s, m, h)")
)

// parseSize reads a byte size: a number with a unit, or a plain number of bytes.
func parseSize(t text) (int64, error) {
	if !t.is("!!str", "!!int") {
		return 0, fmt.Errorf("%s is not a size; %w", t.shown(), errSize)
	}
	number, factor := strings.TrimSpace(t.value), 1.0
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(number, u.name); ok {
			number, factor = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	if n, err := strconv.ParseInt(number, 10, 64); err == nil && factor == 1 {
		return n, nil
	}
	x, err := strconv.ParseFloat(number, 64)
	if err != nil || factor == 1 || strings.ContainsAny(number, "eExXpPiInN_") {
		return 0, fmt.Errorf("%s is not a size; %w", t.shown(), errSize)
	}
	if x *= factor; math.Abs(x) >= math.MaxInt64 {
		return 0, fmt.Errorf("%s is out of range; %w", t.shown(), errSize)
	}
	return int64(x), nil
}

// formatSize is the inverse of parseSize, in the largest binary unit that is
// exact.
func formatSize(n int64) string {
	for _, u := range sizeUnits[:4] {
		if unit := int64(u.bytes); n != 0 && n%unit == 0 {
			return strconv.FormatInt(n/unit, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// parseDuration reads a Go duration. A number without a unit is refused, except
// zero: 30 could be meant as seconds or as milliseconds.
func parseDuration(t text) (time.Duration, error) {
	if t.is("!!int") && t.value == "0" {
		return 0, nil
	}
	if d, err := time.ParseDuration(t.value); err == nil && t.is("!!str") {
		return d, nil
	}
	if t.is("!!int", "!!float") && t.tag != "" {
		return 0, fmt.Errorf("%s has no unit; %w", t.shown(), errDuration)
	}
	return 0, fmt.Errorf("%s is not a duration; %w", t.shown(), errDuration)
}

// formatDuration is the shortest text that parseDuration reads as d: 10m, not
// 10m0s.
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// parseInt reads a whole number. YAML takes 1e6 for a float; people do not.
func parseInt(t text) (int64, error) {
	if t.is("!!int", "!!float") {
		if n, err := strconv.ParseInt(t.value, 10, 64); err == nil {
			return n, nil
		}
		x, err := strconv.ParseFloat(t.value, 64)
		if err == nil && x == math.Trunc(x) && math.Abs(x) <= 1<<53 {
			return int64(x), nil
		}
	}
	return 0, fmt.Errorf("%s is not a whole number", t.shown())
}

// parseFloat reads a finite number.
func parseFloat(t text) (float64, error) {
	if t.is("!!int", "!!float") {
		x, err := strconv.ParseFloat(t.value, 64)
		if err == nil && !math.IsInf(x, 0) && !math.IsNaN(x) {
			return x, nil
		}
	}
	return 0, fmt.Errorf("%s is not a finite number", t.shown())
}

// parseBool reads true or false. The other spellings of YAML 1.1 are refused:
// readers disagree on them.
func parseBool(t text) (bool, error) {
	if t.is("!!bool") && t.value == "true" {
		return true, nil
	}
	if t.is("!!bool") && t.value == "false" {
		return false, nil
	}
	return false, fmt.Errorf("%s is not a switch; want true or false", t.shown())
}

// parseString refuses what YAML takes for a number or a switch, since such a
// value does not always survive as written (1.10, 0x1f, no).
func parseString(t text) (string, error) {
	if !t.is("!!str") {
		return "", fmt.Errorf("%s is not text for YAML; put it in quotes", t.shown())
	}
	return t.value, nil
}

// setScalar stores t in v, which is of a scalar kind, and reports whether the
// kind is known here.
func setScalar(v reflect.Value, t text, n note) error {
	switch {
	case v.Type() == durationType:
		d, err := parseDuration(t)
		v.SetInt(int64(d))
		return err
	case v.CanInt():
		parse := parseInt
		if n.bytes {
			parse = parseSize
		}
		x, err := parse(t)
		if err == nil && v.OverflowInt(x) {
			return fmt.Errorf("%s is out of range", t.shown())
		}
		v.SetInt(x)
		return err
	case v.CanUint():
		x, err := parseInt(t)
		if err == nil && (x < 0 || v.OverflowUint(uint64(x))) {
			return fmt.Errorf("%s is out of range; want 0 or more", t.shown())
		}
		v.SetUint(uint64(x))
		return err
	case v.CanFloat():
		x, err := parseFloat(t)
		v.SetFloat(x)
		return err
	case v.Kind() == reflect.Bool:
		x, err := parseBool(t)
		v.SetBool(x)
		return err
	case v.Kind() == reflect.String:
		s, err := parseString(t)
		if err == nil && len(n.allowed) > 0 && !slices.Contains(n.allowed, s) {
			return fmt.Errorf("%s is not known%s; want one of %s", t.shown(), didYouMean(s, n.allowed), strings.Join(n.allowed, ", "))
		}
		v.SetString(s)
		return err
	}
	return fmt.Errorf("BUG: config has no reader for %v", v.Type())
}
