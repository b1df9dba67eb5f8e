package route

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

func TestExplain(t *testing.T) {
	cs := candidates(Load{Queued: 1200, Decoding: 4, Arrivals: .5, InFlight: 6}, Load{InFlight: 1}, Load{})
	cs[0].Match, cs[0].Known = 400, 450
	cs[2].Excluded = Open
	r := Request{Now: epoch, Tokens: 500, Output: 100, Waited: 250 * time.Millisecond, MaxHold: -1}
	p := mustNew(t, Cost, Default())
	e := Explain(p, &r, cs, p.Choose(&r, cs))
	got, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	const golden = "testdata/explain.json"
	if *update {
		if err := os.WriteFile(golden, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("explanation (-want +got):\n%s", cmp.Diff(string(want), string(got)))
	}
}

// Whatever the policy, the explanation agrees with the decision.
func TestExplain_AgreesWithDecision(t *testing.T) {
	cs := candidates(Load{Queued: 900, InFlight: 9}, Load{}, Load{Queued: 100, InFlight: 2})
	cs[2].Match = 300
	for _, name := range Policies() {
		p := mustNew(t, name, Default())
		r := Request{Now: epoch, Tokens: 500, Session: 3, Draw: 4, Simple: 5}
		d := p.Choose(&r, cs)
		e := Explain(p, &r, cs, d)
		if e.Policy != name || e.Reason != d.Reason.String() || e.Chosen != cs[d.Index].Name || !e.Candidates[d.Index].Chosen {
			t.Errorf("%s: decision %+v, explanation %+v", name, d, e)
		}
		if d.Cost != 0 && e.Candidates[d.Index].Cost != d.Cost {
			t.Errorf("%s: cost %v, explained as %v", name, d.Cost, e.Candidates[d.Index].Cost)
		}
	}
	refused := Explain(newCost(Default()), &Request{}, cs, Decision{Index: -1, Reason: Overload, RetryAfter: time.Second})
	if refused.Chosen != "" || refused.RetryAfter != 1 || refused.Reason != "overload" {
		t.Errorf("a refusal is explained as %+v", refused)
	}
}
