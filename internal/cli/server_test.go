package cli

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/testkit"
)

// A body that does not come must not keep an answer, nor a connection.
func TestBodyThatDoesNotCome(t *testing.T) {
	f := func(address, line string, status int) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			n := testkit.NewNetwork()
			n.Serve(t, "a:80", testkit.NewEngine())
			newRig(t, n, onePool)
			conn, err := n.DialContext(t.Context(), "tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			began := time.Now()
			fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: g\r\nContent-Length: 1000\r\n\r\n", line)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			defer resp.Body.Close()
			if d := time.Since(began); resp.StatusCode != status || d > 2*time.Minute {
				t.Errorf("%s: status %d after %v; want %d after read_timeout", line, resp.StatusCode, d, status)
			}
		})
	}
	f(dataAddr, "GET /healthz", http.StatusOK)
	f(dataAddr, "POST /v1/chat/completions", http.StatusRequestTimeout)
	f(adminAddr, "GET /healthz", http.StatusOK)
	f(adminAddr, "POST /-/reload", http.StatusUnauthorized)
}

// What is no path gets its answer from the proxy, with its line in the log.
func TestUncleanPaths(t *testing.T) {
	f := func(method, path string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			n := testkit.NewNetwork()
			n.Serve(t, "a:80", testkit.NewEngine())
			r := newRig(t, n, onePool)
			status, body := r.do(method, "http://"+dataAddr+path, "{}")
			if status != http.StatusNotFound || !strings.Contains(body, `"code":"unknown_url"`) {
				t.Errorf("%s %s: %d %s; want 404, unknown_url", method, path, status, body)
			}
			if log := r.log.String(); !strings.Contains(log, `"cause":"unknown_url"`) {
				t.Errorf("%s %s: no access line in\n%s", method, path, log)
			}
		})
	}
	f(http.MethodPost, "//v1/chat/completions")
	f(http.MethodPost, "/v1/../v1/chat/completions")
	f(http.MethodGet, "/v1//models")
	f(http.MethodPost, "/healthz")
	f(http.MethodPost, "/metrics")
}
