package config

import (
	"slices"
	"testing"
)

func TestNearest(t *testing.T) {
	keys := []string{"block_bytes", "memory", "snapshot", "snapshot_every", "url", "dns", "level", "max_inflight"}
	f := func(key string, want ...string) {
		t.Helper()
		if got := nearest(key, keys); !slices.Equal(got, want) {
			t.Errorf("nearest(%q) = %q; want %q", key, got, want)
		}
	}
	f("blockBytes", "block_bytes")
	f("block-bytes", "block_bytes")
	f("blok_byte", "block_bytes")
	f("levle", "level")
	f("memroy", "memory")
	f("max_in_flight", "max_inflight")
	f("snapshots", "snapshot")
	f("uri", "url")
	f("colour")
	f("")
	f("policy")
}

func TestDistance(t *testing.T) {
	f := func(a, b string, want int) {
		t.Helper()
		if got := distance(a, b); got != want {
			t.Errorf("distance(%q, %q) = %d; want %d", a, b, got, want)
		}
		if got := distance(b, a); got != want {
			t.Errorf("distance(%q, %q) = %d; want %d", b, a, got, want)
		}
	}
	f("", "", 0)
	f("abc", "", 3)
	f("kitten", "sitting", 3)
	f("flaw", "lawn", 2)
	f("same", "same", 0)
}
