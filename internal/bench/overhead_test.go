package bench

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
)

// The test binary is its own gateway, so that it runs in another process.
const proxyFor, proxyOn = "BENCH_TEST_UPSTREAM", "BENCH_TEST_LISTEN"

func TestMain(m *testing.M) {
	if upstream := os.Getenv(proxyFor); upstream != "" {
		target, err := url.Parse(upstream)
		if err != nil {
			os.Exit(2)
		}
		proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, FlushInterval: -1}
		mux := http.NewServeMux()
		mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
			// A body that is still being read when the answer begins is closed under the
			// transport's hands (net/http); so it is read first.
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			proxy.ServeHTTP(w, r)
		})
		mux.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
		http.ListenAndServe(os.Getenv(proxyOn), mux)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func testGateway(ctx context.Context, upstream, listen string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), proxyFor+"="+upstream, proxyOn+"="+listen)
	return cmd
}

func TestOverhead(t *testing.T) {
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		nginx = ""
	}
	report, err := Overhead{
		Gateway: testGateway, Nginx: nginx, Rate: 100, Bodies: []int{2000}, Duration: 400 * time.Millisecond, Concurrent: 4,
	}.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Cells) != 2 {
		t.Fatalf("%d cells; want 2", len(report.Cells))
	}
	for _, c := range report.Cells {
		if c.Failed != 0 || c.Pairs != 40 {
			t.Errorf("stream %v: %d pairs, %d failed; want 40 and 0", c.Stream, c.Pairs, c.Failed)
		}
		if !(c.Added.P50 > 0 && c.Added.P50 < c.Through.P50) {
			t.Errorf("stream %v: added %+v of %+v: a proxy costs something", c.Stream, c.Added, c.Through)
		}
	}
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("no /proc: ", report.Skipped)
	}
	if report.RSS < 1 || len(report.CPU) != 2 || report.CPU[0].Gateway.PerRequest <= 0 {
		t.Errorf("memory %v MiB, processor %+v", report.RSS, report.CPU)
	}
	if compared := report.CPU[0].Nginx.PerRequest > 0; compared != (nginx != "") || compared == slices.ContainsFunc(report.Skipped, isNginx) {
		t.Errorf("nginx %q: processor %+v, skipped %q", nginx, report.CPU[0], report.Skipped)
	}
}

func isNginx(s string) bool { return s == "comparison with nginx: "+errNoNginx.Error() }

func TestOverheadGatewayThatDies(t *testing.T) {
	_, err := Overhead{Gateway: func(ctx context.Context, _, _ string) *exec.Cmd {
		return exec.CommandContext(ctx, os.Args[0], "-no-such-flag")
	}}.Run(t.Context())
	if err == nil {
		t.Error("no error")
	}
}

func TestProbeBodies(t *testing.T) {
	for _, size := range []int{10_000, 200_000} {
		bodies := probeBodies(size, true)
		if len(bodies) != 4*probeDocuments {
			t.Fatalf("%d bodies", len(bodies))
		}
		for i, b := range bodies {
			// Line ends are escaped, so the body is a little longer than its texts.
			if len(b) < size*95/100 || len(b) > size*105/100 {
				t.Errorf("body %d has %d bytes; want about %d", i, len(b), size)
			}
		}
	}
}
