// Package warmroute holds the test that keeps the architecture: docs/ARCHITECTURE.md says why each edge is or is not there.
package warmroute

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/warmroute/warmroute"

// edges lists, for each package, which packages of this module its non-test files may import.
// A package that is missing here fails the test: a new package states its place first.
var edges = map[string][]string{
	"prefix":             {},
	"internal/prompt":    {"prefix"},
	"internal/index":     {"prefix"},
	"internal/route":     {"prefix"},
	"internal/lint":      {"prefix", "internal/prompt"},
	"internal/dialect":   {"prefix", "internal/prompt"},
	"internal/kvevent":   {"prefix"},
	"internal/fleet":     {"prefix", "internal/route"},
	"internal/upstream":  {"internal/dialect", "internal/prompt"},
	"internal/ledger":    {},
	"internal/telemetry": {},
	"internal/sim":       {"prefix", "internal/dialect", "internal/prompt", "internal/kvevent"},
	"internal/proxy": {
		"prefix", "internal/dialect", "internal/prompt", "internal/index", "internal/route",
		"internal/fleet", "internal/upstream", "internal/ledger", "internal/lint",
	},
	"internal/admin":   {"prefix", "internal/fleet", "internal/index", "internal/route", "internal/ledger", "internal/lint"},
	"internal/bench":   {"prefix", "internal/dialect", "internal/prompt", "internal/index", "internal/route", "internal/sim"},
	"internal/testkit": {},
}

// open lists the packages that compose the others and may import anything below them.
var open = []string{"internal/config", "internal/cli", "cmd/warmroute"}

// pure lists the packages of layers 0 and 1: values in, values out.
var pure = []string{"prefix", "internal/prompt", "internal/index", "internal/route", "internal/lint", "internal/dialect"}

// impure says, for each import that a pure package must not have, what it would break.
// dialect writes error answers, so net/http's types are allowed there and nowhere else in the pure layers.
var impure = map[string]string{
	"net":       "pure packages open no sockets",
	"net/http":  "pure packages speak no protocol; dialect alone may name http.ResponseWriter",
	"log":       "pure packages return what happened and log nothing",
	"log/slog":  "pure packages return what happened and log nothing",
	"os/signal": "only the composition root listens to signals",
}

// clock lists the calls of package time that read or wait for the wall clock.
var clock = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

// owners names the one package that may import each heavy dependency.
var owners = map[string][]string{
	"go.yaml.in/yaml":                     {"internal/config"},
	"github.com/prometheus/client_golang": {"internal/telemetry", "internal/sim", "internal/cli"},
	"github.com/alecthomas/kong":          {"internal/cli"},
	"github.com/aws/":                     {"internal/upstream", "internal/telemetry"},
	"github.com/go-zeromq/":               {"internal/kvevent"},
	"modernc.org/sqlite":                  {"internal/ledger"},
	"github.com/jackc/pgx":                {"internal/ledger"},
}

// ownImports are edges to parts of the standard library that a listed package may have although its layer is pure.
var ownImports = map[string][]string{
	"internal/dialect": {"net/http"},
	"internal/index":   {"os"},
}

type source struct {
	path, pkg string
	file      *ast.File
}

func sources(t *testing.T) []source {
	t.Helper()
	var out []source
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ParseComments)
		if err != nil {
			return err
		}
		out = append(out, source{path, filepath.ToSlash(filepath.Dir(path)), f})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) == 0 {
		t.Fatal("found no Go files")
	}
	return out
}

func imports(f *ast.File) []string {
	var out []string
	for _, spec := range f.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil {
			out = append(out, p)
		}
	}
	return out
}

func TestLayers(t *testing.T) {
	for _, s := range sources(t) {
		for _, imp := range imports(s.file) {
			checkEdge(t, s, imp)
			checkOwner(t, s, imp)
		}
	}
}

func checkEdge(t *testing.T, s source, imp string) {
	t.Helper()
	own, ours := strings.CutPrefix(imp, module+"/")
	if !ours {
		if why, bad := impure[imp]; bad && slices.Contains(pure, s.pkg) && !slices.Contains(ownImports[s.pkg], imp) {
			t.Errorf("%s imports %s: %s", s.path, imp, why)
		}
		return
	}
	if own == "internal/testkit" {
		t.Errorf("%s imports internal/testkit: it serves tests only", s.path)
	}
	if slices.Contains(open, s.pkg) {
		if s.pkg != "internal/cli" && s.pkg != "cmd/warmroute" && own == "internal/config" {
			t.Errorf("%s imports internal/config: only cli sees the file's schema", s.path)
		}
		return
	}
	allowed, known := edges[s.pkg]
	switch {
	case s.pkg == ".":
	case !known:
		t.Errorf("%s: package %s has no line in the layer table of arch_test.go", s.path, s.pkg)
	case !slices.Contains(allowed, own):
		t.Errorf("%s imports %s; %s may import %v", s.path, own, s.pkg, allowed)
	}
}

func checkOwner(t *testing.T, s source, imp string) {
	t.Helper()
	for dep, pkgs := range owners {
		if strings.HasPrefix(imp, dep) && !slices.Contains(pkgs, s.pkg) {
			t.Errorf("%s imports %s; it belongs to %v", s.path, imp, pkgs)
		}
	}
}

// TestPureLayersTakeTime proves that layers 0 and 1 get the time as a value, so that the same policy code runs on the wall clock and in
// virtual time, and that they start no goroutine.
func TestPureLayersTakeTime(t *testing.T) {
	for _, s := range sources(t) {
		if !slices.Contains(pure, s.pkg) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s starts a goroutine in a pure package", s.path)
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clock, n.Sel.Name) {
					t.Errorf("%s calls time.%s; pure packages take now as an argument", s.path, n.Sel.Name)
				}
			}
			return true
		})
	}
}

// TestPackagesAreDocumented asks each package for a package comment: it is the reading order that a newcomer gets.
func TestPackagesAreDocumented(t *testing.T) {
	documented := map[string]bool{}
	for _, s := range sources(t) {
		documented[s.pkg] = documented[s.pkg] || s.file.Doc != nil
	}
	for pkg, ok := range documented {
		if !ok {
			t.Errorf("package %s has no package comment", pkg)
		}
	}
}

// TestFilesStaySmall holds files to 500 lines and the names of packages to nouns; tables (files named table*.go) are exempt.
func TestFilesStaySmall(t *testing.T) {
	vague := []string{"util", "utils", "common", "helper", "helpers", "types", "manager", "misc"}
	for _, s := range sources(t) {
		if slices.Contains(vague, s.file.Name.Name) {
			t.Errorf("%s: package name %s says nothing", s.path, s.file.Name.Name)
		}
		text, err := os.ReadFile(s.path)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Count(string(text), "\n")
		if lines > 500 && !strings.HasPrefix(filepath.Base(s.path), "table") {
			t.Errorf("%s has %d lines; at most 500", s.path, lines)
		}
	}
}
