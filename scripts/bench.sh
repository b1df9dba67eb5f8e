#!/usr/bin/env bash
# Runs every benchmark six times and prints one benchstat table.
set -euo pipefail
cd "$(dirname "$0")/.."
make --no-print-directory .tools/benchstat >/dev/null
out=$(mktemp)
trap 'rm -f "$out"' EXIT
go test -run='^$' -bench=. -benchmem -count="${COUNT:-6}" -timeout 60m ./... >"$out"
.tools/benchstat "$out"
