# One-line targets; `make help` lists them.
FUZZTIME ?= 30s
TOOLS := .tools

.PHONY: help build test test-short lint fmt fuzz bench bench-smoke overhead demo generate clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/warmroute, static
	CGO_ENABLED=0 go build -trimpath -o bin/warmroute ./cmd/warmroute

demo: ## the main job: a simulated fleet, three policies, one table
	go run ./cmd/warmroute demo

test: ## install what tests need beyond Go when possible, then run all tests with the race detector
	bash scripts/test.sh

test-short: ## quick tests only
	go test -short ./...

lint: $(TOOLS)/golangci-lint ## golangci-lint with the pinned version
	$(TOOLS)/golangci-lint run ./...

fmt: ## format the code
	gofmt -w $$(git ls-files '*.go')

fuzz: ## run each fuzz target for FUZZTIME
	bash scripts/fuzz.sh $(FUZZTIME)

bench: ## all benchmarks in one table
	bash scripts/bench.sh

bench-smoke: ## each benchmark once
	go test -run='^$$' -bench=. -benchtime=1x -timeout 20m ./... | grep -v '^ok .*no test files'

overhead: build ## gateway overhead, paired against direct, and against nginx where present
	bin/warmroute bench overhead

generate: ## rewrite the generated docs, the JSON Schema and golden files
	go test ./internal/config ./internal/telemetry ./internal/route ./internal/prompt ./internal/dialect ./internal/bench -update

clean: ## remove what the targets above made
	rm -rf bin $(TOOLS) dist

$(TOOLS)/%: tools.mod
	go build -modfile=tools.mod -o $(TOOLS)/ github.com/golangci/golangci-lint/v2/cmd/golangci-lint golang.org/x/perf/cmd/benchstat
