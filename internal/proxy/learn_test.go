package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/dialect"
	"github.com/warmroute/warmroute/internal/fleet"
	"github.com/warmroute/warmroute/internal/index"
	"github.com/warmroute/warmroute/internal/route"
	"github.com/warmroute/warmroute/internal/testkit"
)

// matched is how many tokens the gateway believed to be cached.
func (a answer) matched(t testing.TB) int {
	t.Helper()
	n, err := strconv.Atoi(a.header.Get(matchHeader))
	if err != nil {
		t.Errorf("%s: %v", matchHeader, err)
	}
	return n
}

// conversation is a chat body of alternating messages, the user's first.
func conversation(stream bool, texts ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `{"model":"m","stream":%t,"messages":[`, stream)
	for i, text := range texts {
		role := "user"
		if i%2 == 1 {
			role = "assistant"
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"role":%q,"content":%q}`, role, text)
	}
	b.WriteString("]}")
	return b.String()
}

func TestFirstRequestSeeds(t *testing.T) { // A37
	for _, stream := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 2)
			body := chat(long("document", 1000), stream)
			if n := r.post(chatPath, body).matched(t); n != 0 {
				t.Errorf("the first matched %d tokens", n)
			}
			if n := r.post(chatPath, body).matched(t); n < 950 {
				t.Errorf("the second matched %d tokens of about 1000", n)
			}
			r.idle()
		})
	}
}

// TestEveryPolicySeeds has thresholds that only a whole match reaches: the first
// request enters the index all the same.
func TestEveryPolicySeeds(t *testing.T) { // A37
	for _, name := range route.Policies() {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 1, func(s *setup) {
				s.policy, s.headChars = name, 100
				s.route.GateMatch, s.route.StickyMatch = 1, 1
			})
			body := chat(long("document", 1000), true)
			r.post(chatPath, body)
			if n := r.post(chatPath, body).matched(t); n < 950 {
				t.Errorf("%s: the second request matched %d tokens of about 1000", name, n)
			}
		})
	}
}

// TestEveryShapeOfPromptIsMatched sends one text in each shape that a prompt may
// have: all are matched, and all are hashed alike.
func TestEveryShapeOfPromptIsMatched(t *testing.T) { // A36
	ids := strings.TrimSuffix(strings.Repeat("1234567,", 1000), ",")
	shapes := []struct{ name, path, body string }{
		{"chat", chatPath, `{"model":"m","messages":[{"role":"user","content":%q}]}`},
		{"chat in parts", chatPath, `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":%q}]}]}`},
		{"completion", "/v1/completions", `{"model":"m","prompt":%q}`},
		{"completions", "/v1/completions", `{"model":"m","prompt":[%q]}`},
		{"response", "/v1/responses", `{"model":"m","input":%q}`},
		{"response in items", "/v1/responses", `{"model":"m","input":[{"role":"user","content":%q}]}`},
		{"token ids", "/v1/completions", `{"model":"m","prompt":[` + ids + `],"user":%q}`},
	}
	for _, s := range shapes {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 1)
			body := fmt.Sprintf(s.body, long("document", 1000))
			r.post(s.path, body)
			if n := r.post(s.path, body).matched(t); n < 900 || r.last().UnknownParts != 0 {
				t.Errorf("%s: the second request matched %d tokens of about 1000, %d parts unknown", s.name, n, r.last().UnknownParts)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, func(s *setup) { s.policy, s.headChars = route.PrefixHash, 100 })
		for i := range 8 {
			homes := map[string]string{}
			for _, s := range shapes[:6] {
				homes[r.post(s.path, fmt.Sprintf(s.body, fmt.Sprint("text ", i))).header.Get(instanceHeader)] = s.name
			}
			if len(homes) != 1 {
				t.Errorf("text %d went to %v; want one instance whatever its shape", i, homes)
			}
		}
	})
}

func TestAnswerJoinsTheChain(t *testing.T) { // A37, A32
	f := func(name string, act testkit.Act, handler http.Handler, stream bool, answer string, replay string, want bool) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 1, always(act), func(s *setup) {
				if handler != nil {
					s.handlers = map[int]http.Handler{0: handler}
				}
			})
			question := long("question", 1000)
			r.post(chatPath, conversation(stream, question))
			known := r.post(chatPath, fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q},%s,{"role":"user","content":"go on"}]}`, question, replay)).matched(t)
			rec := r.last()
			all := rec.PromptTokens
			if got := known > all*9/10; got != want {
				t.Errorf("%s: turn 2 matched %d of %d tokens; want all but the last message: %t", name, known, all, want)
			}
		})
	}
	text := testkit.Answer(500)
	said := fmt.Sprintf(`{"role":"assistant","content":%q}`, text)
	f("stream", testkit.Act{Tokens: 500}, nil, true, text, said, true)
	f("whole", testkit.Act{Tokens: 500}, nil, false, text, said, true)
	f("another answer", testkit.Act{Tokens: 500}, nil, true, text, fmt.Sprintf(`{"role":"assistant","content":%q}`, strings.Repeat("no ", 600)), false)

	thought := strings.Repeat("hmm ", 400)
	chunks := script(
		fmt.Sprintf(`data: {"choices":[{"index":0,"delta":{"role":"assistant","reasoning_content":%q}}]}`+"\n\n", thought),
		fmt.Sprintf(`data: {"choices":[{"index":0,"delta":{"content":%q}}]}`+"\n\n", text),
		stopChunk, doneChunk)
	f("reasoning replayed", testkit.Act{}, chunks, true, text,
		fmt.Sprintf(`{"role":"assistant","reasoning_content":%q,"content":%q}`, thought, text), true)
	f("reasoning dropped", testkit.Act{}, chunks, true, text, said, false)
}

func TestStoppedAnswerJoinsToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, always(testkit.Act{Tokens: 2000, Gap: 10 * time.Millisecond}))
		question := long("question", 300)
		r.leave(conversation(true, question), 5005*time.Millisecond)
		r.last()
		n := r.post(chatPath, conversation(true, question, testkit.Answer(500), "go on")).matched(t)
		if rec := r.last(); n < rec.PromptTokens*8/10 {
			t.Errorf("matched %d of %d tokens; want the part of the answer that was seen, too", n, rec.PromptTokens)
		}
	})
}

func TestWhatMakesAnotherChain(t *testing.T) { // A29, A30, A34, A35
	doc := long("document", 1000)
	base := fmt.Sprintf(`"model":"m","messages":[{"role":"user","content":%q}]`, doc)
	image := func(url string) string {
		return fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":%q}},{"type":"text","text":%q}]}]}`, url, doc)
	}
	tools := func(params string) string {
		return `{"tools":[{"type":"function","function":{"name":"f","parameters":` + params + `}}],` + base + `}`
	}
	f := func(name, first, second string, same bool) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 1)
			r.post(chatPath, first)
			n := r.post(chatPath, second).matched(t)
			if same != (n > 950) || !same && n > 100 {
				t.Errorf("%s: matched %d tokens; want the same chain: %t", name, n, same)
			}
		})
	}
	f("same", "{"+base+"}", "{"+base+"}", true)
	f("other members in another order", "{"+base+`,"temperature":0}`, `{"top_p":1,`+base+"}", true)
	f("tools", "{"+base+"}", tools(`{"type":"object"}`), false)
	f("other tools", tools(`{"a":1}`), tools(`{"b":1}`), false)
	f("tools with other white space", tools(`{"a":1,"b":2}`), tools(`{ "a": 1, "b": 2 }`), true)
	f("tools with members in another order", tools(`{"a":1}`),
		`{`+base+`,"tools":[{"function":{"parameters":{"a":1},"name":"f"},"type":"function"}]}`, true)
	f("cache_salt", "{"+base+`,"cache_salt":"s1"}`, "{"+base+`,"cache_salt":"s2"}`, false)
	f("images", image("data:image/png;base64,AAAA"), image("data:image/png;base64,BBBB"), false)
	f("same image", image("data:image/png;base64,AAAA"), image("data:image/png;base64,AAAA"), true)
	f("a nonce in front", fmt.Sprintf(`{"model":"m","messages":[{"role":"system","content":"id 1"},{"role":"user","content":%q}]}`, doc),
		fmt.Sprintf(`{"model":"m","messages":[{"role":"system","content":"id 2"},{"role":"user","content":%q}]}`, doc), false)

	synctest.Test(t, func(t *testing.T) { // the whole conversation counts
		r := newRig(t, 1)
		r.post(chatPath, conversation(true, doc, long("yes", 1000), "a"))
		n := r.post(chatPath, conversation(true, doc, long("no", 1000), "a")).matched(t)
		if n < 900 || n > 1100 {
			t.Errorf("matched %d tokens; want the first message's 1000", n)
		}
	})
}

func TestTenantsShareNothing(t *testing.T) { // A48
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, func(s *setup) {
			s.deps = func(d *Deps) {
				d.Admit = func(r *http.Request) (string, *dialect.Error) { return r.Header.Get("Authorization"), nil }
			}
		})
		body := chat(long("document", 1000), true)
		r.post(chatPath, body, "Authorization", "a")
		if n := r.post(chatPath, body, "Authorization", "b").matched(t); n != 0 {
			t.Errorf("another tenant matched %d tokens", n)
		}
		if n := r.post(chatPath, body, "Authorization", "a").matched(t); n < 950 {
			t.Errorf("the same tenant matched %d tokens", n)
		}
	})
}

func TestAliasesShareTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, func(s *setup) { s.pool = func(p *fleet.PoolConfig) { p.Aliases = []string{"alias"} } })
		body := chat(long("document", 1000), true)
		r.post(chatPath, body)
		if n := r.post(chatPath, strings.Replace(body, `"model":"m"`, `"model":"alias"`, 1)).matched(t); n < 950 {
			t.Errorf("the alias matched %d tokens", n)
		}
	})
}

func TestRestartIsSeenInReports(t *testing.T) { // A20
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		body := chat(long("document", 2000), true)
		tokens := len(body) / 4
		say := func(cached int) testkit.Act {
			return testkit.Act{Usage: fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":%d}}`, tokens, cached)}
		}
		r.engines[0].Play(say(0), say(tokens-10), say(0))
		r.post(chatPath, chat(long("another", 2000), true))
		r.engines[0].Play(say(0), say(tokens-10), say(0))
		for range 3 {
			r.post(chatPath, body)
			time.Sleep(time.Second)
		}
		rec := r.last()
		if rec.PredictedTokens < 1900 || rec.CachedTokens != 0 || !rec.CachedKnown {
			t.Errorf("recorded %+v; want a prediction that the report contradicts", rec)
		}
		if n := r.post(chatPath, chat(long("another", 2000), true)).matched(t); n > 100 {
			t.Errorf("after a report that contradicts everything, %d tokens of an older prompt are believed to be there", n)
		}
	})
}

func TestSilenceAfterReportsIsAMiss(t *testing.T) {
	f := func(name string, usages []string, cached int, known bool) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 1)
			for _, u := range usages {
				r.engines[0].Play(testkit.Act{Usage: u})
				r.post(chatPath, chat("x", true))
			}
			if rec := r.last(); rec.CachedTokens != cached || rec.CachedKnown != known {
				t.Errorf("%s: recorded %d, known %t; want %d, %t", name, rec.CachedTokens, rec.CachedKnown, cached, known)
			}
		})
	}
	const (
		silent = `{"prompt_tokens":100,"completion_tokens":3}`
		null   = `{"prompt_tokens":100,"completion_tokens":3,"prompt_tokens_details":null}`
		some   = `{"prompt_tokens":100,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":64}}`
	)
	f("never said", []string{silent, null}, 0, false)
	f("said", []string{some}, 64, true)
	f("said, then null", []string{some, null}, 0, true)
	f("said, then nothing", []string{null, some, silent}, 0, true)
	long := []string{some}
	for range silentReports {
		long = append(long, null)
	}
	f("silent for long", long, 0, false)
}

func TestLessons(t *testing.T) {
	var l lessons
	if n := l.expect(0); n != 0 {
		t.Errorf("expects %d tokens before anything was learned", n)
	}
	if n := l.expect(50); n != 50 {
		t.Errorf("expects %d tokens; want the limit, 50", n)
	}
	if n := l.expect(32_000); n != outputPrior {
		t.Errorf("expects %d tokens of an unknown model; want %d", n, outputPrior)
	}
	for range 200 {
		l.learnOutput(300)
	}
	if n := l.expect(0); n != 300 {
		t.Errorf("expects %d tokens; want 300", n)
	}
	if n := l.expect(100); n != 100 {
		t.Errorf("expects %d tokens; want the limit, 100", n)
	}
	l.learnOutput(0)
	if n := l.expect(0); n != 300 {
		t.Errorf("an answer without tokens taught %d", n)
	}
	for range 100 {
		l.learnRatio(3000, 1000)
	}
	if n := l.tokens(3000); n < 950 || n > 1050 {
		t.Errorf("3000 bytes are %d tokens; want about 1000", n)
	}
	l.cached(3, dialect.Usage{HasUsage: true, HasCached: true, Cached: 5})
	l.mute(3)
	l.forget(3)
	if _, known := l.cached(3, dialect.Usage{HasUsage: true}); known || l.isMute(3) {
		t.Error("something is known of a forgotten instance")
	}
}

func TestRatioIsLearned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		body := chat(strings.Repeat("语言模型", 2000), true) // 24,000 bytes
		for range 20 {
			r.engines[0].Play(testkit.Act{Usage: `{"prompt_tokens":6000,"completion_tokens":3}`})
			r.post(chatPath, body)
		}
		if n := r.gateway.desk(mustPool(t, r)).lessons.tokens(24_000); n < 5800 || n > 6200 {
			t.Errorf("24,000 bytes of Chinese are %d tokens; want about 6000", n)
		}
		// Token ids are counted, not estimated.
		r.post("/v1/completions", `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9,10],"stream":true}`)
		if rec := r.last(); rec.Kind != dialect.Completions {
			t.Errorf("recorded %+v", rec)
		}
		if got := r.books.records[len(r.books.records)-1]; got.UsageKnown && got.PromptTokens <= 0 {
			t.Errorf("recorded %+v", got)
		}
	})
}

func mustPool(t testing.TB, r *rig) *fleet.Pool {
	t.Helper()
	p, ok := r.fleet.Pool("m")
	if !ok {
		t.Fatal("no pool")
	}
	return p
}

func TestFailureTakesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, always(testkit.Broken()))
		r.post(chatPath, chat(long("document", 1000), true))
		if s := r.index.Stats(); s.Blocks != 0 {
			t.Errorf("the index keeps %d blocks of a prompt that was never prefilled", s.Blocks)
		}
		r.engines[0].Then = status(400)
		r.post(chatPath, chat(long("document", 1000), true))
		if s := r.index.Stats(); s.Blocks != 0 {
			t.Errorf("the index keeps %d blocks of a prompt that was refused", s.Blocks)
		}
	})
}

func TestOtherKindsLeaveTheIndexAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		text := long("document", 1000)
		r.post("/v1/embeddings", fmt.Sprintf(`{"model":"m","input":%q}`, text))
		r.post("/v1/score", fmt.Sprintf(`{"model":"m","text_1":%q,"text_2":"x"}`, text))
		r.post("/tokenize", fmt.Sprintf(`{"model":"m","prompt":%q}`, text))
		if s := r.index.Stats(); s.Blocks != 0 {
			t.Errorf("the index keeps %d blocks", s.Blocks)
		}
		r.idle()
	})
}

func TestManyPromptsStayUnderTheCap(t *testing.T) { // A17, as far as the gateway is concerned
	g, _ := direct(t, Default(), answering("text/event-stream", helloChunk+stopChunk+doneChunk, 4096, io.EOF))
	x := index.New(index.Config{Memory: 4 << 20})
	for v := range g.deps.Fleet.All() {
		x.Join(v.ID, v.Name, 0)
	}
	g.deps.Index = x
	for i := range 300 {
		w := httptest.NewRecorder()
		g.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, chatPath, strings.NewReader(chat(long(fmt.Sprint("prompt ", i), 20_000), true))))
		if s := x.Stats(); s.Bytes > s.Limit || w.Code != 200 {
			t.Fatalf("%d bytes after %d prompts; the limit is %d; status %d", s.Bytes, i, s.Limit, w.Code)
		}
	}
	if s := x.Stats(); s.Blocks == 0 {
		t.Error("the index is empty")
	}
}
