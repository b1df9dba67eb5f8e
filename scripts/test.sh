#!/usr/bin/env bash
# Runs every test with the race detector. Installs prerequisites first, lists what was skipped, and under CI=true a missing prerequisite fails.
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p .tools
# shellcheck source=prerequisites.sh
. scripts/prerequisites.sh

log=.tools/test.log
go test -race -shuffle=on -timeout 25m -v ./... >"$log" 2>&1
rc=$?
grep -E '^(ok|FAIL|\?|panic:)[[:space:]]' "$log" | grep -v 'no test files'
if [ $rc -ne 0 ]; then
	echo; echo "failures (whole log: $log):"
	grep -nE -A40 '^[[:space:]]*--- FAIL|^panic:|WARNING: DATA RACE|\[build failed\]|^# ' "$log" | head -300
fi
echo; echo "skipped:"
grep -E -B1 '^[[:space:]]*--- SKIP' "$log" | grep -vE '^(--$|=== )' || echo "  nothing"
exit $rc
