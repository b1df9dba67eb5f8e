package bench

import (
	stdcmp "cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMoreWorkloadsRepeat(t *testing.T) {
	busy := agents(20, 5)
	for _, w := range []Workload{
		Groups{Requests: 200, Rate: 10, Groups: 8, Prompts: 5, PrefixTokens: 600, QuestionTokens: Between(20, 90), Output: Between(5, 50)},
		Groups{Requests: 200, Rate: 10, Groups: 8, Prompts: 5, PrefixTokens: 600, QuestionTokens: Fixed(64), Output: Fixed(50), Fresh: true},
		busy,
		Mixed{busy, chat(20, 2), RAG{Requests: 50, Rate: 3, Prefixes: 4, PrefixTokens: 900, Tail: Fixed(9), Output: Fixed(9)}},
	} {
		first, second := drain(t, w.Source(7), time.Second), drain(t, w.Source(7), time.Second)
		if len(first) == 0 {
			t.Errorf("%s: no request", w.Name())
		}
		if diff := cmp.Diff(first, second); diff != "" {
			t.Errorf("%s: two runs of one seed differ:\n%s", w.Name(), diff)
		}
		if cmp.Equal(first, drain(t, w.Source(8), time.Second)) {
			t.Errorf("%s: two seeds agree", w.Name())
		}
	}
}

// Every pass asks each question of each group once; fresh questions never come again.
func TestGroupsPasses(t *testing.T) {
	w := Groups{Requests: 3 * 40, Rate: 10, Groups: 8, Prompts: 5, PrefixTokens: 600, QuestionTokens: Between(20, 90), Output: Between(5, 50)}
	all := drain(t, w.Source(3), 0)
	lengths := map[uint64]int{}
	for pass := range slices.Chunk(all, 40) {
		groups, questions := map[uint64]int{}, map[uint64]int{}
		for _, r := range pass {
			groups[r.Prompt[0].ID]++
			questions[r.Prompt[1].ID]++
			if n, known := lengths[r.Prompt[1].ID]; known && n != r.Prompt[1].Tokens {
				t.Fatalf("a question has %d tokens and then %d", n, r.Prompt[1].Tokens)
			}
			lengths[r.Prompt[1].ID] = r.Prompt[1].Tokens
		}
		if len(groups) != 8 || len(questions) != 40 {
			t.Fatalf("a pass has %d groups and %d questions; want 8 and 40", len(groups), len(questions))
		}
		for id, n := range groups {
			if n != 5 {
				t.Errorf("group %x comes %d times in a pass; want 5", id, n)
			}
		}
	}
	if len(lengths) != 40 {
		t.Errorf("%d questions in all passes; want the same 40", len(lengths))
	}
	w.Fresh = true
	fresh := map[uint64]bool{}
	for _, r := range drain(t, w.Source(3), 0) {
		fresh[r.Prompt[1].ID] = true
	}
	if len(fresh) != w.Requests {
		t.Errorf("%d fresh questions; want %d", len(fresh), w.Requests)
	}
}

// A step's prompt begins with the whole of the step before and its answer; branches begin with their parent's context, come at the
// same time, and their parent goes on when all are through.
func TestAgentsGrowAndFork(t *testing.T) {
	w := agents(40, 8)
	w.Fork, w.Branches = 0.3, 3
	const answer = 2 * time.Second
	all := drain(t, w.Source(5), answer)
	bySession := map[uint64][]Request{}
	for _, r := range all {
		bySession[r.Session] = append(bySession[r.Session], r)
	}
	heads := map[string][]Request{} // first steps of branches by their parent's context
	for id, steps := range bySession {
		for i, r := range steps {
			if r.Turn != i {
				t.Fatalf("session %x: step %d comes as number %d", id, r.Turn, i)
			}
			if i == 0 {
				continue
			}
			before := steps[i-1]
			want := append(slices.Clone(before.Prompt), before.Answer)
			if diff := cmp.Diff(want, r.Prompt[:len(want)]); diff != "" {
				t.Fatalf("session %x step %d does not begin with all before it:\n%s", id, i, diff)
			}
			if r.At < before.At+answer {
				t.Fatalf("session %x step %d is sent before the answer", id, i)
			}
		}
		if first := steps[0]; len(first.Prompt) > 2 {
			heads[fmt.Sprint(first.At, first.Prompt[:len(first.Prompt)-1])] = append(heads[fmt.Sprint(first.At, first.Prompt[:len(first.Prompt)-1])], first)
		}
	}
	if len(heads) == 0 {
		t.Fatal("no agent forks")
	}
	for _, branches := range heads {
		if len(branches) != 3 {
			t.Fatalf("%d branches begin with one context at one time; want 3", len(branches))
		}
	}
	if tasks := len(bySession) - 3*len(heads); tasks != w.Tasks {
		t.Errorf("%d agents besides branches; want %d", tasks, w.Tasks)
	}
	if most := mostOpen(bySession, answer); most != w.Users {
		t.Errorf("at most %d agents at work at a time; want %d", most, w.Users)
	}
}

// mostOpen is how many agents, branches apart, are at work at a time at most.
func mostOpen(bySession map[uint64][]Request, answer time.Duration) int {
	type change struct {
		at time.Duration
		by int
	}
	var changes []change
	for id, steps := range bySession {
		if id < 1<<32 {
			changes = append(changes, change{steps[0].At, 1}, change{steps[len(steps)-1].At + answer, -1})
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return stdcmp.Or(stdcmp.Compare(a.at, b.at), stdcmp.Compare(a.by, b.by)) })
	open, most := 0, 0
	for _, c := range changes {
		open += c.by
		most = max(most, open)
	}
	return most
}

// What is said does not depend on how fast the answers are.
func TestAgentsIgnoreLatency(t *testing.T) {
	contents := func(answer time.Duration) map[[2]uint64]Request {
		out := map[[2]uint64]Request{}
		for _, r := range drain(t, agents(20, 6).Source(9), answer) {
			at := [2]uint64{r.Session, uint64(r.Turn)}
			r.At = 0
			out[at] = r
		}
		return out
	}
	if diff := cmp.Diff(contents(10*time.Millisecond), contents(30*time.Second)); diff != "" {
		t.Errorf("contents differ (-fast +slow):\n%s", diff)
	}
}

// The parts of a mixed workload are what they are alone, with texts and sessions of their own.
func TestMixedKeepsPartsApart(t *testing.T) {
	part := chat(15, 2)
	all := drain(t, Mixed{part, part}.Source(4), time.Second)
	texts, sessions := [2]map[uint64]bool{{}, {}}, [2]map[uint64]bool{{}, {}}
	count := [2]int{}
	for _, r := range all {
		count[r.Part]++
		sessions[r.Part][r.Session] = true
		for _, s := range r.Prompt {
			texts[r.Part][s.ID] = true
		}
	}
	for i := range count {
		if alone := len(drain(t, part.Source(mix(5, uint64(i))), time.Second)); count[i] != alone {
			t.Errorf("part %d has %d requests; alone it has %d", i, count[i], alone)
		}
		if len(sessions[i]) != part.Sessions {
			t.Errorf("part %d has %d sessions; want %d", i, len(sessions[i]), part.Sessions)
		}
	}
	for s := range sessions[0] {
		if sessions[1][s] {
			t.Errorf("session %x is in both parts", s)
		}
	}
	for s := range texts[0] {
		if texts[1][s] {
			t.Errorf("text %x is in both parts", s)
		}
	}
}

func TestReadConversations(t *testing.T) {
	const lines = `{"session_id":"a","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hello there"},{"role":"assistant","content":"Hi"},` +
		`{"role":"user","content":"More"},{"role":"tool","content":"7"},{"role":"assistant","content":null,"tool_calls":[{"id":"x"}]},{"role":"user","content":"unanswered"}]}
{"id":1,"context":"A passage about bridges.","questions":["Which?","Why?"]}
{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Another"},{"role":"assistant","content":"Yes"}]}
`
	c, err := readConversations(strings.NewReader(lines))
	if err != nil {
		t.Fatal(err)
	}
	c.name, c.Rate, c.Think, c.Repeat = "test", 1, time.Second, 2
	all := drain(t, c.Source(1), time.Second)
	if len(all) != 2*(2+1+1+1) {
		t.Fatalf("%d requests; want 10", len(all))
	}
	long, system, passages := 0, map[uint64]int{}, map[uint64]int{}
	for _, r := range all {
		switch {
		case r.Turn == 1:
			long++
			if len(r.Prompt) != 5 { // system, user, answer, user, tool
				t.Errorf("the second turn has %d segments; want 5", len(r.Prompt))
			}
		case r.Answer.Tokens == answerTokens:
			passages[r.Prompt[0].ID]++
		default:
			system[r.Prompt[0].ID]++
		}
	}
	if long != 2 || len(system) != 1 || len(passages) != 1 {
		t.Errorf("%d second turns, %d system texts, %d passages; want 2, 1, 1", long, len(system), len(passages))
	}
	if _, err := readConversations(strings.NewReader("{}\n")); err == nil {
		t.Error("a file without a turn is no error")
	}
	if _, err := readConversations(strings.NewReader("{\n")); err == nil {
		t.Error("broken JSON is no error")
	}
}

func TestParseSpec(t *testing.T) {
	for _, name := range SpecNames() {
		s, err := ParseSpec(name)
		if err != nil {
			t.Fatal(err)
		}
		w := s.Workload(s.DefaultRate(4), 20*time.Second)
		if n := len(drain(t, w.Source(1), time.Second)); n < 3 {
			t.Errorf("%s: %d requests in 20 s", name, n)
		}
		if !strings.Contains(SpecHelp(name), "rate=") {
			t.Errorf("%s: help %q names no rate", name, SpecHelp(name))
		}
	}
	s, err := ParseSpec("rag:prefixes=30,zipf=2")
	if err != nil {
		t.Fatal(err)
	}
	if w := s.Workload(5, 10*time.Second).(RAG); w.Prefixes != 30 || w.Zipf != 2 || w.Requests != 50 || w.PrefixTokens != 8000 {
		t.Errorf("%+v", w)
	}
	f := func(text, want string) {
		t.Helper()
		if _, err := ParseSpec(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v; want one about %q", text, err, want)
		}
	}
	f("chess", "want one of agents, chat")
	f("rag:prefix=3", `no parameter "prefix"`)
	f("rag:zipf=much", "want a number")
	f("rag:prefixes=0", "at least 1")
	f("rag:zipf=-1", "from 0")
}
