package cli

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestPythonSDK lets the official Python client talk to the gateway. scripts/prerequisites.sh installs it and says where.
func TestPythonSDK(t *testing.T) {
	python := os.Getenv("WARMROUTE_PYTHON")
	if python == "" {
		t.Skip("no Python client: WARMROUTE_PYTHON names no interpreter that has the openai package")
	}
	r := newRealRig(t, 2, 20)
	out, err := exec.CommandContext(t.Context(), python, "testdata/openai_sdk.py", r.base, realModel).CombinedOutput()
	t.Log(string(out))
	if err != nil {
		t.Fatalf("Python client: %v", err)
	}
	if !strings.Contains(string(out), "ok left in mid-stream") {
		t.Error("the script ended before its last check")
	}
}
