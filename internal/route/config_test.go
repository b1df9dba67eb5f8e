package route

import (
	"errors"
	"math"
	"strings"
	"testing"
)

func TestConfig_DefaultIsValid(t *testing.T) {
	if faults := Default().Validate(); len(faults) > 0 {
		t.Errorf("faults of the default: %v", faults)
	}
}

func TestConfig_ValidateListsAll(t *testing.T) {
	c := Default()
	c.Thrift, c.Memory, c.Congestion, c.Ghost = -1, .6, math.NaN(), 2
	c.MaxHold, c.TTFTBudget = -1, -1
	c.HashThreshold, c.HashLoad = 1025, .9
	c.Sessions, c.SessionLoad = 100, 0
	c.GateMatch, c.GateAbs, c.GateRel = 1.1, -1, .5
	c.QueueWeight, c.KVWeight, c.PrefixWeight, c.OverlapWeight = -1, -2, math.Inf(1), -3
	c.StickyMatch, c.StickyBacklog = -.1, -1
	got := errors.Join(c.Validate()...).Error()
	want := strings.Join([]string{
		"thrift -1: want 0 to 10",
		"congestion NaN: want 0 to 1000",
		"memory 0.6: want 0 to 0.5",
		"ghost 2: want 0 to 1",
		"max_hold -1ns: want 0 or more",
		"ttft_budget -1ns: want 0 or more",
		"hash_load 0.9: want 1 to 100",
		"hash_threshold 1025: want 0 to 1024",
		"sessions 100: want a power of two",
		"session_load 0: want 1 to 100",
		"gate_match 1.1: want 0 to 1",
		"gate_abs -1: want 0 to 1.048576e+06",
		"gate_rel 0.5: want 1 to 1000",
		"queue_weight -1: want 0 to 1000",
		"kv_weight -2: want 0 to 1000",
		"prefix_weight +Inf: want 0 to 1000",
		"overlap_weight -3: want 0 to 1000",
		"sticky_match -0.1: want 0 to 1",
		"sticky_backlog -1ns: want 0 or more",
	}, "\n")
	if got != want {
		t.Errorf("faults:\n%s\nwant:\n%s", got, want)
	}
}

func TestNew(t *testing.T) {
	for _, name := range Policies() {
		if p := mustNew(t, name, Default()); p.Name() != name {
			t.Errorf("policy %q calls itself %q", name, p.Name())
		}
	}
	_, err := New("magic", Default())
	want := `find policy "magic": want one of blocks, cost, gated_match, least_requests, lmetric, mooncake, power_of_two, ` +
		`prefix_hash, prefix_hash_bounded, random, round_robin, session, sticky, weighted_scores`
	if err == nil || err.Error() != want {
		t.Errorf("error %v; want %s", err, want)
	}
}

func TestNames(t *testing.T) {
	seen := make(map[string]bool)
	for r := NoReason; r <= NoneReady; r++ {
		if s := r.String(); s == "unknown" || s == "" || seen[s] {
			t.Errorf("reason %d is called %q", r, s)
		}
		seen[r.String()] = true
	}
	for e := Eligible; e <= Full; e++ {
		if s := e.String(); s == "unknown" || (s == "") != (e == Eligible) || s != "" && seen[s] {
			t.Errorf("exclusion %d is called %q", e, s)
		}
		seen[e.String()] = true
	}
	if NoneReady+1 != Reason(len(reasonNames)) || Exclusion(99).String() != "unknown" || Reason(99).String() != "unknown" {
		t.Error("names and values do not fit")
	}
}
