package config

import (
	"slices"
	"strings"
)

// nearest returns the candidates that key may have been meant to be, best
// first, at most three. Spelling the words apart differently (blockBytes,
// block-bytes) costs nothing; else one letter and a third of them may differ.
func nearest(key string, candidates []string) []string {
	type scored struct {
		name string
		cost int
	}
	var near []scored
	plain := fold(key)
	for _, c := range candidates {
		cost := distance(plain, fold(c))
		if cost <= 1+len(plain)/3 {
			near = append(near, scored{c, cost})
		}
	}
	slices.SortStableFunc(near, func(a, b scored) int { return a.cost - b.cost })
	names := make([]string, 0, 3)
	for _, s := range near[:min(3, len(near))] {
		names = append(names, s.name)
	}
	return names
}

// fold drops what separates words and the case of letters.
func fold(s string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(s))
}

// distance is the number of letters to insert, delete or replace to turn a into
// b (Levenshtein), counted in bytes: keys are ASCII.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j]+1, row[j+1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
