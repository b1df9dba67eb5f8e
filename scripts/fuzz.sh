#!/usr/bin/env bash
# Runs every fuzz target of the tree for the given time each.
set -euo pipefail
cd "$(dirname "$0")/.."
for file in $(git ls-files '*_test.go' | xargs grep -lE '^func Fuzz[A-Z]' | sort); do
	dir=./$(dirname "$file")
	for target in $(grep -oE '^func Fuzz[A-Za-z0-9_]+' "$file" | awk '{print $2}'); do
		echo "fuzz $dir $target"
		if out=$(go test -run='^$' -fuzz="^${target}\$" -fuzztime="${1:-30s}" "$dir" 2>&1); then continue; fi
		# At the end of its time the fuzzer sometimes reports its own deadline as a failure. A finding names its input.
		if grep -q 'context deadline exceeded' <<<"$out" && ! grep -qE 'Failing input written|panic:|_test\.go:[0-9]+:' <<<"$out"; then
			echo "  its time ended while an input was running; no finding"
			continue
		fi
		echo "$out" | tail -40
		exit 1
	done
done
