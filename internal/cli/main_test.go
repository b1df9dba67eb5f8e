package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// command runs one command line to its end.
func command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var out, errs buffer
	code = Main(ctx, args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestMainExitCodes(t *testing.T) {
	f := func(wantCode int, wantOut, wantErr string, args ...string) {
		t.Helper()
		code, stdout, stderr := command(t, args...)
		if code != wantCode {
			t.Errorf("%q exits with %d; want %d\n%s%s", args, code, wantCode, stdout, stderr)
		}
		mustContain(t, fmt.Sprintf("stdout of %q", args), stdout, wantOut)
		mustContain(t, fmt.Sprintf("stderr of %q", args), stderr, wantErr)
	}
	good := tempFile(t, "good.yml", onePool)
	bad := tempFile(t, "bad.yml", "server: {grace: 30}\nrouting: {polcy: cost}\n"+onePool)
	f(ExitOK, "warmroute ", "", "version")
	f(ExitOK, "Usage: warmroute <command>", "", "--help")
	f(ExitOK, "Quick start", "", "serve", "--help")
	f(ExitUsage, "", "unexpected argument", "srve")
	f(ExitUsage, "", `--log-level must be one of`, "serve", "--log-level", "trace")
	f(ExitUsage, "", "", "")
	f(ExitOK, good+": ok", "", "config", "check", good)
	f(ExitFault, "", bad+":1: server.grace: 30 has no unit", "config", "check", bad)
	f(ExitFault, "", bad+`:2: routing: unknown key "polcy"; did you mean policy?`, "config", "check", bad)
	f(ExitFault, "", "2 faults", "config", "check", bad)
	f(ExitFault, "", "no such file", "config", "check", filepath.Join(t.TempDir(), "none.yml"))
	f(ExitOK, "url: http://a:80", "", "config", "print", good)
	f(ExitOK, "block_bytes: 256", "", "config", "print")
	f(ExitOK, `"$schema"`, "", "config", "schema")
	f(ExitFault, "", bad+":1: server.grace", "serve", "--config", bad)
	f(ExitFault, "", "nothing to serve", "serve")
	f(ExitFault, "", "exclude each other", "serve", "--config", good, "--upstream", "http://a:80")
	f(ExitFault, "", "--upstream: want an http:// or https:// URL", "serve", "--upstream", "ftp://a:80")
	f(ExitFault, "", `pools[0].policy: "fastest"; want one of cost`, "serve", "--upstream", "a:80", "--policy", "fastest")
	f(ExitFault, "", "environment variable WARMROUTE_NO_SUCH_KEY is not set", "serve", "--upstream", "a:80", "--api-key-env", "WARMROUTE_NO_SUCH_KEY")
	f(ExitFault, "", "--engine: ", "sim", "--engine", "cray-1")
	f(ExitFault, "", "--replicas: 0; want 1 to 1000", "sim", "--replicas", "0")
	f(ExitFault, "", "--speed: 0; want more than 0", "sim", "--speed", "0")
	f(ExitFault, "", "--listen: ", "sim", "--listen", "nowhere")
}

// A refused configuration lists all of its faults before anything is started.
func TestServeListsAllFaults(t *testing.T) {
	const many = "../config/testdata/many.bad.yml"
	code, _, stderr := command(t, "serve", "-c", many)
	if code != ExitFault {
		t.Errorf("exit code %d; want %d", code, ExitFault)
	}
	if got, want := strings.Count(stderr, many+":"), 13; got != want {
		t.Errorf("%d faults; want %d:\n%s", got, want, stderr)
	}
}

func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	code, _, stderr := command(t, "serve", "-u", "127.0.0.1:1", "--listen", l.Addr().String(), "--admin-listen", "127.0.0.1:0")
	if code != ExitFault {
		t.Errorf("exit code %d; want %d", code, ExitFault)
	}
	mustContain(t, "stderr", stderr, "listen for clients: ", "address already in use")
}

// process is Main running on real sockets.
type process struct {
	t    *testing.T
	log  *buffer
	stop context.CancelFunc
	code chan int
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	p := &process{t: t, log: new(buffer), stop: stop, code: make(chan int, 1)}
	go func() { p.code <- Main(ctx, args, new(buffer), p.log) }()
	t.Cleanup(func() { stop(); p.wait() })
	return p
}

func (p *process) wait() int {
	code := <-p.code
	p.code <- code
	return code
}

// value returns the value of an attribute in the first line of the log that has
// the text, once there is one.
func (p *process) value(text, key string) string {
	p.t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		for line := range strings.Lines(p.log.String()) {
			if _, after, ok := strings.Cut(line, " "+key+"="); ok && strings.Contains(line, text) {
				value, _, _ := strings.Cut(after, " ")
				return strings.TrimSpace(value)
			}
		}
		select {
		case <-tick.C:
		case code := <-p.code:
			p.code <- code
			p.t.Fatalf("the process ended with %d:\n%s", code, p.log.String())
		case <-deadline:
			p.t.Fatalf("no line with %q and %s=:\n%s", text, key, p.log.String())
		}
	}
}

// The two commands of a quick start, over real sockets: simulated engines, and a
// gateway that finds out what they serve.
func TestQuickStart(t *testing.T) {
	engines := start(t, "sim", "--listen", "127.0.0.1:0", "--model", "llama", "--speed", "100", "--log-level", "info")
	url := engines.value("simulating", "url")
	gateway := start(t, "serve", "--upstream", url, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
	address := "http://" + gateway.value("msg=serving", "listen")
	admin := "http://" + gateway.value("msg=serving", "admin")
	gateway.value("models read", "models")

	body := `{"model":"llama","max_tokens":3,"messages":[{"role":"user","content":"hello"}]}`
	resp, err := http.Post(address+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Choices []struct{ Message struct{ Content string } }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		t.Error(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK || len(answer.Choices) != 1 || answer.Choices[0].Message.Content == "" {
		t.Errorf("status %d, answer %+v", resp.StatusCode, answer)
	}
	resp, err = http.Post(admin+"/-/reload", "", nil) // from this machine, so without a token
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("reload: status %d", resp.StatusCode)
	}
	http.DefaultClient.CloseIdleConnections()
	gateway.stop()
	if code := gateway.wait(); code != ExitOK {
		t.Errorf("exit code %d; want %d", code, ExitOK)
	}
}

// A change of the configuration file, or of a file that it refers to, is put
// into force without a word from anybody.
func TestFilesAreWatched(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		tmp := filepath.Join(dir, "."+name+".new") // as editors do
		if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	file := func(grace string) string {
		return "server: {listen: '127.0.0.1:0', drain_delay: 0, grace: " + grace + "}\nadmin: {listen: ''}\n" +
			"pools: [{model: m, instances: [{url: 'http://127.0.0.1:1', api_key: '${file:key}'}]}]\n"
	}
	write("key", "planted-first\n")
	write("w.yml", file("1m"))
	p := start(t, "serve", "-c", filepath.Join(dir, "w.yml"))
	p.value("msg=serving", "listen")

	seen := p.log.expect("server.grace: 1m -> 2m")
	write("w.yml", file("2m"))
	await(t, seen, "the reload of a changed file")

	seen = p.log.expect("its value changed")
	write("key", "planted-second\n")
	await(t, seen, "the reload of a changed secret")

	seen = p.log.expect("server.grace: 30 has no unit")
	write("w.yml", file("30"))
	await(t, seen, "the refusal of a bad file")

	seen = p.log.expect("nothing has changed")
	write("w.yml", file("2m"))
	await(t, seen, "the return of the old file")

	elsewhere := tempFile(t, "key", "planted-third") // its folder is not watched yet
	seen = p.log.expect("api_key: ${file:key} -> ${file:" + elsewhere)
	write("w.yml", strings.Replace(file("2m"), "${file:key}", "${file:"+elsewhere+"}", 1))
	await(t, seen, "the reload with another secret")
	seen = p.log.expect("its value changed")
	if err := os.WriteFile(elsewhere, []byte("planted-fourth"), 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, seen, "the reload of a secret that was named by a reload")
	mustNotContain(t, "log", p.log.String(), "planted")
}

// On an address that others can reach the admin side makes up a token, and
// prints it once.
func TestOneTimeToken(t *testing.T) {
	p := start(t, "serve", "-u", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--admin-listen", "0.0.0.0:0")
	_, port, err := net.SplitHostPort(p.value("msg=serving", "admin"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, ok := strings.Cut(p.log.String(), "This one holds until the process ends:")
	if !ok {
		t.Fatalf("no token was printed:\n%s", p.log.String())
	}
	token := strings.Fields(after)[0]
	reload := func(authorization string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:"+port+"/-/reload", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", authorization)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer http.DefaultClient.CloseIdleConnections()
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	if got := reload(""); got != http.StatusUnauthorized {
		t.Errorf("without the token: status %d; want 401", got)
	}
	if got := reload("Bearer " + token); got != http.StatusOK {
		t.Errorf("with the token: status %d; want 200", got)
	}
	if n := strings.Count(p.log.String(), token); n != 1 {
		t.Errorf("the token was printed %d times; want once", n)
	}
}

func TestSieve(t *testing.T) {
	var out bytes.Buffer
	s := newSieve(&out)
	write := func(text string) {
		t.Helper()
		if n, err := s.Write([]byte(text)); n != len(text) || err != nil {
			t.Errorf("Write = %d, %v; want %d, nil", n, err, len(text))
		}
	}
	write("a first-secret b\n")
	s.learn("first-secret")
	write("a first-secret b\n")
	s.learn("second-secret", "")
	write("first-secret second-secret\n")
	if got, want := out.String(), "a first-secret b\na ******** b\n******** ********\n"; got != want {
		t.Errorf("written: %q; want %q", got, want)
	}
}

// What net/http writes to the standard logger must not carry an answer past the
// log's format.
func TestStandardLogger(t *testing.T) {
	p := start(t, "serve", "-u", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
	p.value("msg=serving", "admin")
	log.Printf("Unsolicited response received on idle HTTP channel starting with %q; err=%v", "the answer", io.EOF)
	if !strings.Contains(p.log.String(), "starting with") {
		t.Error("the line of the standard logger is lost")
	}
	mustNotContain(t, "log", p.log.String(), "the answer")
	for line := range strings.Lines(p.log.String()) {
		if !strings.HasPrefix(line, "time=") {
			t.Errorf("no line of the log: %s", line)
		}
	}
}
