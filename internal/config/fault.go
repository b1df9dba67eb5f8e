package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Fault is one thing wrong with a configuration file.
type Fault struct {
	File    string
	Line    int    // from 1; 0 when the fault has no place in the file
	Path    string // of the key, such as pools[0].instances[1].url; may be empty
	Message string // what is wrong, and what is allowed
}

// String formats the fault as compilers do, so that editors can jump to it.
func (f Fault) String() string {
	s := f.File
	if f.Line > 0 {
		s = fmt.Sprintf("%s:%d", s, f.Line)
	}
	if f.Path != "" {
		s += ": " + f.Path
	}
	return s + ": " + f.Message
}

// Faults is the error of [Load]: everything wrong with a file, in the order of
// its lines.
type Faults []Fault

// Error lists the faults, one a line.
func (fs Faults) Error() string {
	lines := make([]string, len(fs))
	for i, f := range fs {
		lines[i] = f.String()
	}
	return strings.Join(lines, "\n")
}

// sorted orders faults by line and drops those that say the same of the same
// place.
func (fs Faults) sorted() Faults {
	slices.SortStableFunc(fs, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), strings.Compare(a.Path, b.Path))
	})
	return slices.Compact(fs)
}
