package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"

	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/testkit"
)

// testWorld is what references in testdata are resolved in.
func testWorld() World {
	env := map[string]string{
		"ADMIN_TOKEN": "planted-admin-token",
		"VENDOR_KEY":  "planted-vendor-key",
		"RATIO":       "0.75",
		"HOST":        "engine-two.example.org",
		"EMPTY":       "",
	}
	return World{
		Env:  func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		File: process().File,
	}
}

func parse(t *testing.T, path string) (*Config, error) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return Parse(path, data, testWorld())
}

func glob(t *testing.T, pattern string, least int) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) < least {
		t.Fatalf("%s matches %d files, err %v; want at least %d", pattern, len(paths), err, least)
	}
	return paths
}

// Each bad file has one mistake (many.bad.yml excepted), and its faults are in
// the file beside it.
func TestBadFiles(t *testing.T) {
	for _, path := range glob(t, "testdata/*.bad.yml", 50) {
		cfg, err := parse(t, path)
		if err == nil || cfg != nil {
			t.Errorf("%s: loads; want faults", path)
			continue
		}
		testkit.Golden(t, strings.TrimSuffix(filepath.Base(path), ".yml")+".txt", []byte(err.Error()+"\n"))
		faults, ok := errors.AsType[Faults](err)
		if !ok {
			t.Errorf("%s: error is %T; want Faults", path, err)
		}
		if want := 1; len(faults) != want && !strings.Contains(path, "many") {
			t.Errorf("%s: %d faults; want %d:\n%v", path, len(faults), want, err)
		}
		if strings.Contains(err.Error(), "planted") {
			t.Errorf("%s: a fault shows a secret:\n%v", path, err)
		}
	}
}

// What the goldens say is not the only check: they must name the line.
func TestFaultsNameTheirLines(t *testing.T) {
	_, err := parse(t, "testdata/many.bad.yml")
	faults, _ := errors.AsType[Faults](err)
	data, readErr := os.ReadFile("testdata/many.bad.yml")
	if readErr != nil {
		t.Fatal(readErr)
	}
	lines := strings.Split(string(data), "\n")
	for _, f := range faults {
		key := f.Path[strings.LastIndex(f.Path, ".")+1:]
		key, _, _ = strings.Cut(key, "[")
		if f.Line == 0 || !strings.Contains(lines[f.Line-1], key) && !strings.Contains(f.Message, "unknown key") {
			t.Errorf("%v: line is %q", f, lines[max(f.Line-1, 0)])
		}
	}
	if want := 13; len(faults) != want {
		t.Errorf("%d faults; want %d, one for each mistake", len(faults), want)
	}
}

func TestGoodFiles(t *testing.T) {
	for _, path := range glob(t, "testdata/*.good.yml", 5) {
		if _, err := parse(t, path); err != nil {
			t.Errorf("%s:\n%v", path, err)
		}
	}
}

// The schema and the loader agree on every file, except where the file's first
// line says that a schema cannot see its mistake.
func TestSchemaAgreesWithLoader(t *testing.T) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("warmroute.json", doc); err != nil {
		t.Fatal(err)
	}
	compiled, err := c.Compile("warmroute.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(glob(t, "testdata/*.good.yml", 5), glob(t, "testdata/*.bad.yml", 50)...) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		good := strings.HasSuffix(path, ".good.yml")
		blind := bytes.HasPrefix(data, []byte("# schema: blind"))
		value, ok := asJSON(data)
		if !ok {
			if good || !blind {
				t.Errorf("%s has no JSON form", path)
			}
			continue
		}
		switch err := compiled.Validate(value); {
		case err != nil && good:
			t.Errorf("%s: the schema refuses what the loader takes: %v", path, err)
		case err != nil && blind:
			t.Errorf("%s: the schema does see the mistake; drop the first line", path)
		case err == nil && !good && !blind:
			t.Errorf("%s: the schema takes what the loader refuses", path)
		}
	}
}

// asJSON is a YAML document as editors hand it to a schema.
func asJSON(data []byte) (any, bool) {
	var v any
	if err := yaml.Load(data, &v, yaml.WithV3Defaults()); err != nil {
		return nil, len(data) == 0
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, false
	}
	out, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	return out, err == nil
}

func TestLoadedValues(t *testing.T) {
	cfg, err := parse(t, "testdata/full.good.yml")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := cfg.Server, (Server{
		Listen: "0.0.0.0:8080", HeaderTimeout: 5 * time.Second, IdleTimeout: 90 * time.Second, MaxHeaderBytes: 128 << 10,
		DrainDelay: 0, Grace: 5 * time.Minute,
	}); got != want {
		t.Errorf("server = %+v; want %+v", got, want)
	}
	if got, want := cfg.Cache.Memory, int64(3<<29); got != want {
		t.Errorf("cache.memory = %d; want %d", got, want)
	}
	if got, want := cfg.Fleet.Breaker.FailureRatio, 0.75; got != want {
		t.Errorf("failure_ratio = %v; want %v, from a reference", got, want)
	}
	if got, want := cfg.Fleet.Breaker.Window, fleet.Default().Breaker.Window; got != want {
		t.Errorf("breaker.window = %v; want the default %v", got, want)
	}
	if got, want := cfg.Pools[0].Defaults.KVTokens, 1_000_000; got != want {
		t.Errorf("kv_tokens = %d; want %d", got, want)
	}
	second := cfg.Pools[0].Instances[1]
	want := fleet.InstanceConfig{
		URL: "http://engine-two.example.org:8000", Engine: fleet.VLLM, KVTokens: 487_000, APIKey: "planted-file-key", Rank: new(0),
	}
	if d := cmp.Diff(want, second); d != "" {
		t.Errorf("merged instance (-want +got):\n%s", d)
	}
	got := slices.Sorted(maps.Keys(cfg.Sources()))
	if want := []string{"testdata/full.good.yml", "testdata/secrets/key"}; !slices.Equal(got, want) {
		t.Errorf("sources = %v; want %v", got, want)
	}
	if got, want := cfg.Sources()["testdata/secrets/key"], sha256.Sum256([]byte("planted-file-key\n")); got != want {
		t.Errorf("digest of the key = %x; want %x", got, want)
	}
	literal, err := parse(t, "testdata/literal_reference.good.yml")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := literal.Pools[0].Model, "${env:NOT_A_REFERENCE}"; got != want {
		t.Errorf("model = %q; want %q", got, want)
	}
}

// A dump gives the configuration that it was made of, where nothing is masked.
func TestDumpRoundTrip(t *testing.T) {
	f := func(path string) {
		t.Helper()
		first, err := parse(t, path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := first.Dump()
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(text, []byte("planted")) {
			t.Errorf("%s: the dump shows a secret:\n%s", path, text)
		}
		second, err := Parse(path, text, testWorld())
		if err != nil {
			t.Fatalf("%s: its dump does not load: %v\n%s", path, err, text)
		}
		if changes := Diff(first, second); len(changes) > 0 {
			t.Errorf("%s: its dump differs: %q", path, changes)
		}
		if d := cmp.Diff(first, second, cmpopts.IgnoreUnexported(Config{}), cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s: its dump differs (-first +second):\n%s", path, d)
		}
	}
	f("testdata/minimal.good.yml")
	f("testdata/full.good.yml")
	f("testdata/json.good.yml")
}

// A dump has units, references as they were written, merged keys and defaults.
func TestDumpText(t *testing.T) {
	cfg, err := parse(t, "testdata/full.good.yml")
	if err != nil {
		t.Fatal(err)
	}
	text, err := cfg.Dump()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"idle_timeout: 1m30s\n", "max_header_bytes: 128KiB\n", "memory: 1536MiB\n", "block_bytes: 128\n", "drain_delay: 0s\n",
		"token: ${env:ADMIN_TOKEN}\n", "failure_ratio: ${env:RATIO}\n", "url: http://${env:HOST}:8000\n", "kv_tokens: 487000\n",
		"api_key: ${file:secrets/key}\n", "rank: 0\n", "window: 10s\n", "adaptive_limit: true\n", "- '7'\n",
	} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("the dump lacks %q:\n%s", want, text)
		}
	}
}

// A secret that stands for itself, as in a configuration made of flags, is
// masked.
func TestDumpMasksWithoutOrigins(t *testing.T) {
	cfg := Default()
	cfg.Pools = []fleet.PoolConfig{{Model: "m", Instances: []fleet.InstanceConfig{{URL: "http://a:1", APIKey: "planted-key"}}}}
	text, err := cfg.Dump()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(text, []byte("api_key: '********'")) || bytes.Contains(text, []byte("planted")) {
		t.Errorf("dump does not mask the key:\n%s", text)
	}
}

func TestDefaultValidates(t *testing.T) {
	cfg := Default()
	faults := cfg.Validate()
	if len(faults) != 1 || !strings.HasPrefix(faults[0].Error(), "pools: none") {
		t.Errorf("faults of the defaults = %v; want only that there are no pools", faults)
	}
	if ws := cfg.Warnings(); len(ws) != 0 {
		t.Errorf("warnings of the defaults = %v; want none", ws)
	}
}

func TestWarnings(t *testing.T) {
	cfg := Default()
	cfg.Cache.BlockBytes = 64 << 10
	cfg.Upstream.InsecureTLS = true
	cfg.Routing.Policy, cfg.Routing.Adaptive = "sticky", "on"
	got := strings.Join(cfg.Warnings(), "\n")
	for _, want := range []string{"routing.adaptive: on, but routing.shadow names no policy", "cache.block_bytes: 65536 bytes are about 16384 tokens", "upstream.insecure_tls"} {
		if !strings.Contains(got, want) {
			t.Errorf("warnings = %q; want one with %q", got, want)
		}
	}
}

func TestLive(t *testing.T) {
	f := func(change string, want bool) {
		t.Helper()
		if got := Live(change); got != want {
			t.Errorf("Live(%q) = %t; want %t", change, got, want)
		}
	}
	f("server.grace: 5m -> 6m", true)
	f("server.listen: :80 -> :81", false)
	f("pools[fleet.x]: added", true)
	f("pools[m].instances[a].url: http://a -> http://b", true)
	f("proxy.retries: 1 -> 2", false)
	f("fleet.health.interval: 1s -> 2s", false)
	f("routing.policy: cost -> random", true)
	for _, key := range restartKeys {
		if !knows(reflect.TypeFor[Config](), key) {
			t.Errorf("there is no key %s", key)
		}
	}
}

func TestMask(t *testing.T) {
	f := func(in, want string, secrets ...string) {
		t.Helper()
		if got := Mask(secrets).Replace(in); got != want {
			t.Errorf("Mask(%q).Replace(%q) = %q; want %q", secrets, in, got, want)
		}
	}
	f("a secret-1 b", "a ******** b", "secret-1")
	f("secret-10 secret-1", "******** ********", "secret-1", "secret-10")
	f(`{"v":"say \"hi\" \u003cnow\u003e"}`, `{"v":"********"}`, `say "hi" <now>`)
	f("?k=a%2Fb%2Bc%3D%3D", "?k=********", "a/b+c==")
	f("EMPTY none", "EMPTY none", "EMPTY", "none", "")
	f("nothing to do", "nothing to do")
}

func TestSecrets(t *testing.T) {
	cfg, err := parse(t, "testdata/full.good.yml")
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(cfg.Secrets(), " ")
	for _, want := range []string{"planted-admin-token", "planted-vendor-key", "planted-file-key"} {
		if !strings.Contains(got, want) {
			t.Errorf("secrets = %q; want %s among them", got, want)
		}
	}
}

func TestDiff(t *testing.T) {
	const before = `
server: {grace: 5m}
cache: {memory: 256MiB}
pools:
  - model: llama
    instances:
      - {name: a, url: "http://10.0.0.1:8000", weight: 1, api_key: "${env:K1}"}
      - {name: b, url: "http://10.0.0.2:8000"}
      - {name: c, url: "http://10.0.0.3:8000", api_key: "${env:K1}"}
  - model: old
    instances: [{url: "http://10.0.0.4:8000"}]
`
	const after = `
server: {grace: 6m}
cache: {memory: 1GiB}
pools:
  - model: new
    instances: [{url: "http://10.0.0.4:8000"}]
  - model: llama
    aliases: [l]
    instances:
      - {name: z, url: "http://10.0.0.9:8000"}
      - {name: a, url: "http://10.0.0.1:8000", weight: 2, api_key: "${env:K2}", rank: 1}
      - {name: c, url: "http://10.0.0.3:8000", api_key: "${env:K1}"}
`
	load := func(text, k1 string) *Config {
		t.Helper()
		env := map[string]string{"K1": k1, "K2": "planted-two"}
		cfg, err := Parse("f.yml", []byte(text), World{Env: func(n string) (string, bool) { v, ok := env[n]; return v, ok }})
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	want := []string{
		"server.grace: 5m -> 6m",
		"cache.memory: 256MiB -> 1GiB",
		"pools[new]: added",
		`pools[llama].aliases: "" -> [l]`,
		"pools[llama].instances[z]: added",
		"pools[llama].instances[a].weight: 1 -> 2",
		"pools[llama].instances[a].api_key: ${env:K1} -> ${env:K2}",
		"pools[llama].instances[a].rank: unset -> 1",
		"pools[llama].instances[c].api_key: ${env:K1} -> ${env:K1} (its value changed)",
		"pools[llama].instances[b]: removed",
		"pools[old]: removed",
	}
	got := Diff(load(before, "planted-one"), load(after, "planted-new"))
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("changes (-want +got):\n%s", d)
	}
	if got := Diff(load(after, "x"), load(after, "x")); len(got) != 0 {
		t.Errorf("a configuration differs from itself: %q", got)
	}
}

func TestLoadReadsTheWorld(t *testing.T) {
	t.Setenv("WARMROUTE_TEST_URL", "http://10.1.1.1:8000")
	path := filepath.Join(t.TempDir(), "w.yml")
	if err := os.WriteFile(path, []byte("pools: [{model: m, instances: [{url: '${env:WARMROUTE_TEST_URL}'}]}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := cfg.Pools[0].Instances[0].URL, "http://10.1.1.1:8000"; got != want {
		t.Errorf("url = %q; want %q", got, want)
	}
	if got := cfg.Path(); got != path {
		t.Errorf("path = %q; want %q", got, path)
	}
	if _, err := Load(path + ".not"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error = %v; want that the file does not exist", err)
	}
}

// The walkers cover every kind that a section may hold; a new one must be
// taught to them and is found here first.
func TestKindsAreCovered(t *testing.T) {
	walkSections(func(section reflect.Type, path string) {
		for _, f := range fieldsOf(section) {
			ft := indirect(f.typ)
			if ft.Kind() == reflect.Slice {
				ft = indirect(ft.Elem())
			}
			if ft.Kind() == reflect.Struct {
				continue
			}
			v := reflect.New(ft).Elem()
			if err := setScalar(v, text{value: "0"}, note{}); err != nil && strings.Contains(err.Error(), "BUG") {
				t.Errorf("%s: %v", join(path, f.key), err)
			}
			if _, shown := show(v, note{}); strings.Contains(shown, "BUG") {
				t.Errorf("%s: %s", join(path, f.key), shown)
			}
		}
	})
}

// The examples for operators load as they are.
func TestExamples(t *testing.T) {
	full := World{
		Env:  func(string) (string, bool) { return "a-value-of-some-kind", true },
		File: func(string) ([]byte, error) { return []byte("a-value-of-some-kind"), nil },
	}
	for _, path := range glob(t, "../../deploy/config/*.yml", 3) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := Parse(path, data, full)
		if err != nil {
			t.Errorf("%s:\n%v", path, err)
			continue
		}
		if ws := cfg.Warnings(); len(ws) > 0 {
			t.Errorf("%s: warnings %q", path, ws)
		}
	}
}
