package sim

import (
	"math"
	"math/rand/v2"
	"strings"
)

// words are the answers' vocabulary. Each is so short that with its leading space it is one token, and stays that token
// when the answer comes back as part of the next prompt.
var words = strings.Fields(`a able about above after again all along also and any apart are area as aside at away back base be
been below best big block both build but by cache call can care case cause check clear close code cold come cost could cut data
day deep do done down draft each early edge else end equal even event ever exact fact fair far fast few file final find fine first
five fix flow for form found four free from front full gain gap get give go goal good great group grow half hand hard has have
head heat held help here high hold home hour how idea if in index into is issue it its item join just keep key kind know large
last late lead least left less level light like limit line link list live load local long look lot low made main make many map
mark match may mean merge might mind miss mode model month more most move much must name near need never new next night no node
not note now of off often old on once one only open or order other our out over own pace pair part pass past path peak per place
plan point pool price print proof pure queue quick quite range rate raw read ready real rest right rise role room root route
rule run safe same save scale seen self send sense serve set share short show side sign since size slow small so some soon sort
space speed spot stage start state stay step still stop store such sum sure table take task team tell ten term test text than
that the their them then there these they thing think this those three time to token too top total touch trace track trade tree
true try turn two type under unit until up upon us use used user value very view wait walk want warm was way week well went were
what when where which while whole whose why wide will with word work world worth would write year yes yet you your zero zone`)

// answer is what the model says: it depends on nothing but the prompt's tokens and the request's seed, so every replica gives the same.
type answer struct {
	tokens []TokenID // with the closing control token when the model ended by itself
	text   string
	reason string // finish_reason
	stop   string // the stop string that ended it
}

// limits is what a request says about the length of its answer.
type limits struct {
	max, min  int
	ignoreEOS bool
	stops     []string
	keepStop  bool // include_stop_str_in_output
	mean      int  // of the length that the model would choose
}

// newAnswer draws an answer of at most l.max tokens. The length that the model chooses is the mean of two exponential draws around
// l.mean.
func newAnswer(seed uint64, l limits) answer {
	rng := rand.New(rand.NewPCG(seed, 0x5eed))
	own := 1 + int(-float64(l.mean)*(math.Log(1-rng.Float64())+math.Log(1-rng.Float64()))/2)
	own = max(own, l.min)
	n := l.max
	ended := !l.ignoreEOS && own < l.max
	if ended {
		n = own
	}
	a := answer{tokens: make([]TokenID, 0, n+1), reason: "length"}
	var text []byte
	a.tokens, text = speak(a.tokens, rng, n)
	a.text = string(text)
	if ended {
		a.tokens = append(a.tokens, tokenEndOfTurn)
		a.reason = "stop"
	}
	a.cutAtStop(l)
	return a
}

// speak appends n tokens of sentences and returns their text too.
func speak(tokens []TokenID, rng *rand.Rand, n int) ([]TokenID, []byte) {
	text := make([]byte, 0, 6*n)
	left, first := 0, true
	for range n {
		from := len(text)
		switch {
		case left > 0:
			text = append(text, ' ')
			text = append(text, words[rng.IntN(len(words))]...)
			left--
		case !first && text[len(text)-1] != '.':
			text = append(text, '.')
		default:
			if !first {
				text = append(text, ' ')
			}
			at := len(text)
			text = append(text, words[rng.IntN(len(words))]...)
			text[at] -= 'a' - 'A'
			left = 5 + rng.IntN(12)
		}
		first = false
		tokens = AppendTokens(tokens, string(text[from:]))
	}
	return tokens, text
}

// cutAtStop ends the answer with the token that completes the first stop string.
func (a *answer) cutAtStop(l limits) {
	at, stop := len(a.text)+1, ""
	for _, s := range l.stops {
		if i := strings.Index(a.text, s); s != "" && i >= 0 && i+len(s) < at+len(stop) {
			at, stop = i, s
		}
	}
	if stop == "" {
		return
	}
	end := 0
	for i, t := range a.tokens {
		if t < controlTokens {
			break
		}
		end += len(AppendText(nil, []TokenID{t}))
		if end >= at+len(stop) {
			a.tokens = a.tokens[:i+1]
			break
		}
	}
	a.reason, a.stop = "stop", stop
	if l.keepStop {
		at += len(stop)
	}
	a.text = a.text[:at]
}
