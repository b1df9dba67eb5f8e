package cli

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/testkit"
)

// What is no file is neither read nor replaced.
func TestSnapshotReplacesOnlyFiles(t *testing.T) {
	f := func(path string) {
		t.Helper()
		before, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Test(t, func(t *testing.T) {
			n := testkit.NewNetwork()
			n.Serve(t, "a:80", testkit.NewEngine())
			r := newRig(t, n, onePool+"cache: {snapshot: "+path+", snapshot_every: 1s}\n")
			time.Sleep(3 * time.Second)
			r.stop()
			if err := r.wait(); err != nil {
				t.Error(err)
			}
			mustContain(t, "log", r.log.String(), "no regular file")
			mustNotContain(t, "log", r.log.String(), "was not saved", "snapshot saved")
		})
		after, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if !os.SameFile(before, after) || before.Mode() != after.Mode() {
			t.Errorf("%s was %s; it is %s, or another one", path, before.Mode(), after.Mode())
		}
		if left, _ := filepath.Glob(path + ".*"); len(left) > 0 {
			t.Errorf("temporary files are left: %v", left)
		}
	}
	dir, err := os.MkdirTemp("", "wr") // names of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f(socket)
	f(t.TempDir())
}
