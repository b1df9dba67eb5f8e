package sim

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const english = `The router keeps, for each engine, the chain of blocks which that engine is believed to hold. A request goes where the longest
part of its beginning is warm, unless waiting there would take longer than computing it elsewhere; "elsewhere" is priced in seconds.
Measured on 7 instances (H100) at 32 requests/s, the 50th percentile fell from 1.93 s to 0.41 s.`

const chinese = `黑豹队的防守只丢了分，在联赛中排名第六，同时也以次拦截领先国家橄榄球联盟，并且四次入选职业碗。职业碗防守截锋卡万肖特以领先于全队。`

func TestAppendTokens_Ratio(t *testing.T) {
	f := func(text string, units int, low, high float64) {
		t.Helper()
		got := float64(units) / float64(len(AppendTokens(nil, text)))
		if got < low || got > high {
			t.Errorf("%.2f units a token; want %v to %v in %q", got, low, high, text[:20])
		}
	}
	f(english, len(english), 3.6, 4.6)
	f(chinese, utf8.RuneCountInString(chinese), 1.05, 1.5)
}

func TestAppendTokens_Pieces(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		var got []string
		for _, tok := range AppendTokens(nil, text) {
			got = append(got, string(AppendText(nil, []TokenID{tok})))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q; want %q", text, got, want)
		}
	}
	f("")
	f("Hello world", "Hello", " world")
	f("information about", "informat", "ion", " about")
	f("Measure Measured of 7 letters", "Measure", " Measure", "d", " of", " ", "7", " letters")
	f("a 1234.5", "a", " ", "123", "4", ".", "5")
	f("x   y", "x", "  ", " y")
	f("end.\n\nNext", "end", ".", "\n\n", "Next")
	f(`{"a": [1]}`, `{"`, "a", `":`, " [", "1", "]}")
	f("мир и", "мир", " и")
	f("😀😀", "😀", "😀")
	f("\xff\xe4\xbd", "\xff", "\xe4", "\xbd")
	f("a<|eot_id|>b<|x", "a", "<|eot_id|>", "b", "<|", "x")
}

// Texts with the same beginning have the same tokens but for the last pieces before the difference, and every text comes back.
func FuzzAppendTokens(f *testing.F) {
	f.Add(english, "tail", "other")
	f.Add(chinese, "队", "x")
	f.Add("\xff\xfe  \n\n<|eot_id", "|>", "|")
	f.Fuzz(func(t *testing.T, head, a, b string) {
		ta, tb := AppendTokens(nil, head+a), AppendTokens(nil, head+b)
		if got := string(AppendText(nil, ta)); got != head+a {
			t.Errorf("%q comes back as %q", head+a, got)
		}
		same := 0
		for same < min(len(ta), len(tb)) && ta[same] == tb[same] {
			same++
		}
		common := len(AppendText(nil, ta[:same]))
		// A control token or a pair of characters may straddle the end of the head.
		if lost := len(head) - common; lost > len("<|start_header_id|>")+maxPiece {
			t.Errorf("%d bytes before the difference have other tokens", lost)
		}
		for _, tok := range ta {
			if tok >= 1<<53 {
				t.Errorf("token %d does not fit into a float", tok)
			}
		}
	})
}

func TestBlockChain(t *testing.T) {
	tokens := AppendTokens(nil, strings.Repeat(english, 3))
	chain := BlockChain(nil, tokens, 16, 0)
	if len(chain) != len(tokens)/16 {
		t.Fatalf("%d blocks of %d tokens", len(chain), len(tokens))
	}
	if got := BlockChain(nil, tokens[:100], 16, 0); !slices.Equal(got, chain[:6]) {
		t.Error("the beginning has another chain")
	}
	if got := BlockChain(nil, tokens, 16, 1); got[0] == chain[0] {
		t.Error("salt changes nothing")
	}
	tokens[3]++
	got := BlockChain(nil, tokens, 16, 0)
	for i := range got {
		if got[i] == chain[i] {
			t.Errorf("block %d does not depend on token 3", i)
		}
	}
	if slices.Contains(got, 0) {
		t.Error("hash 0")
	}
}

func TestAppendMedia(t *testing.T) {
	a, b := appendMedia(nil, 1<<63, 4), appendMedia(nil, 1<<62, 4)
	if len(a) != 4 || a[0] == b[0] || a[0] >= 1<<53 || string(AppendText(nil, a[:1])) != mediaText {
		t.Errorf("tokens %v and %v", a, b)
	}
}

// The answer's text gives exactly the generated tokens again, alone and as a part of a conversation.
func TestNewAnswer_Retokenises(t *testing.T) {
	for seed := range uint64(200) {
		a := newAnswer(seed, limits{max: 300, mean: 100})
		content := a.tokens
		if a.reason == "stop" {
			if content[len(content)-1] != tokenEndOfTurn {
				t.Fatal("stopped without its closing token")
			}
			content = content[:len(content)-1]
		}
		if got := AppendTokens(nil, a.text); !slices.Equal(got, content) {
			t.Fatalf("%q has %d tokens; generated were %d", a.text, len(got), len(content))
		}
	}
}

func TestNewAnswer_Length(t *testing.T) {
	f := func(l limits, wantTokens int, wantReason string) {
		t.Helper()
		a := newAnswer(7, l)
		if wantTokens > 0 && len(a.tokens) != wantTokens || a.reason != wantReason {
			t.Errorf("%+v: %d tokens, %s; want %d, %s", l, len(a.tokens), a.reason, wantTokens, wantReason)
		}
	}
	f(limits{max: 5, mean: 1000}, 5, "length")
	f(limits{max: 50, mean: 1, ignoreEOS: true}, 50, "length")
	f(limits{max: 5000, mean: 10, min: 400}, 401, "stop")
	f(limits{max: 5000, mean: 10}, 0, "stop")
	sum := 0
	for seed := range uint64(2000) {
		sum += len(newAnswer(seed, limits{max: 1 << 20, mean: 100}).tokens)
	}
	if mean := sum / 2000; mean < 95 || mean > 108 {
		t.Errorf("mean length %d; want about 102", mean)
	}
}

func TestNewAnswer_Stop(t *testing.T) {
	full := newAnswer(3, limits{max: 100, mean: 1, ignoreEOS: true})
	f := func(keep bool, wantSuffix string, stops ...string) {
		t.Helper()
		a := newAnswer(3, limits{max: 100, mean: 1, ignoreEOS: true, stops: stops, keepStop: keep})
		if a.reason != "stop" || a.stop == "" || !strings.HasPrefix(full.text, a.text) || !strings.HasSuffix(a.text, wantSuffix) {
			t.Errorf("stops %q: %q, %s, %q", stops, a.text, a.reason, a.stop)
		}
		if got := AppendText(nil, a.tokens); !strings.HasPrefix(string(got), a.text) || len(got)-len(a.text) > len(a.stop) {
			t.Errorf("stops %q: tokens say %q, text %q", stops, got, a.text)
		}
	}
	f(false, "", ".")
	f(true, ".", ".")
	f(true, ".", "nowhere", ". ", ".")
}

func BenchmarkAppendTokens(b *testing.B) {
	f := func(name, text string) {
		text = strings.Repeat(text, 1<<20/len(text))
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			var dst []TokenID
			for b.Loop() {
				dst = AppendTokens(dst[:0], text)
			}
		})
	}
	f("english", english)
	f("chinese", chinese)
}

func BenchmarkBlockChain(b *testing.B) {
	tokens := AppendTokens(nil, string(bytes.Repeat([]byte(english), 200)))
	var dst []uint64
	b.SetBytes(int64(200 * len(english)))
	for b.Loop() {
		dst = BlockChain(dst[:0], tokens, 16, 0)
	}
}

func TestAllocations(t *testing.T) {
	dst := make([]TokenID, 0, 4096)
	chain := make([]uint64, 0, 256)
	e := NewEngine(testProfile(), Options{})
	r := newRequest(1, 1000, 1)
	drive(t, e, r)
	f := func(name string, want float64, run func()) {
		t.Helper()
		if got := testing.AllocsPerRun(100, run); got > want {
			t.Errorf("%s allocates %v times; want %v", name, got, want)
		}
	}
	f("AppendTokens", 0, func() { dst = AppendTokens(dst[:0], english) })
	f("BlockChain", 0, func() { chain = BlockChain(chain[:0], dst, 16, 0) })
	f("Cached", 0, func() { _ = e.Cached(r.Prompt, 1000) })
	f("a whole request", 0, func() {
		if err := e.Submit(e.clockTime(), r); err != nil {
			t.Fatal(err)
		}
		for next, ok := e.NextEvent(); ok; next, ok = e.NextEvent() {
			e.Advance(next)
		}
	})
}
