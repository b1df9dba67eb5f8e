package sim

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// TokenID is a token of the simulated tokenizer. The number holds the token's own text, so the vocabulary needs no table and any
// text can be restored from its tokens. All numbers are below 2^53 and survive JSON in any language.
//
//	0..15          control tokens of the chat template
//	256 + value    pieces of up to 6 bytes, shorter ones first: the bytes as a big-endian number
//	2^49 + value   words of 7 or 8 letters, leading space included, at 6 bits a letter; those of 8 from 2^49 + 2^48
//	2^50 + hash    one placeholder token of an image, a sound or a file: equal contents give equal tokens
type TokenID uint64

// Control tokens, as in the template of Llama 3.
const (
	tokenBegin       TokenID = iota // <|begin_of_text|>
	tokenEndOfTurn                  // <|eot_id|>
	tokenStartHeader                // <|start_header_id|>
	tokenEndHeader                  // <|end_header_id|>
	controlTokens
)

// controlTexts are the texts of the control tokens. They are recognised in any text, as engines do.
var controlTexts = [controlTokens]string{"<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"}

const (
	maxPiece               = 6 // bytes of a token
	maxWord                = 8 // bytes of a token of ASCII letters and a leading space
	firstPiece     TokenID = 256
	firstWord      TokenID = 1 << 49
	eightLetters   TokenID = 1 << 48
	letterBits             = 6
	firstMedia     TokenID = 1 << 50
	mediaHashBits          = 48
	mediaText              = "<|media|>"
	charPairOneIn          = 4 // one in so many pairs of Chinese characters is one token
	maxDigits              = 3
	maxPunctuation         = 3
)

// pieceBase is the number of the first piece of each length.
var pieceBase = func() (b [maxPiece + 2]TokenID) {
	b[1] = firstPiece
	for n := 1; n <= maxPiece; n++ {
		b[n+1] = b[n] + 1<<(8*n)
	}
	return b
}()

// class sorts bytes by how the tokenizer treats them.
type class uint8

const (
	other  class = iota // control bytes and broken UTF-8
	letter              // ASCII
	digit
	blank // space
	feed  // tab, line feed, carriage return
	punct
	two   // first byte of a two-byte character
	three // of a three-byte character
	four  // of a four-byte character
)

var classes = func() (c [256]class) {
	for b := range 256 {
		switch {
		case b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z':
			c[b] = letter
		case b >= '0' && b <= '9':
			c[b] = digit
		case b == ' ':
			c[b] = blank
		case b == '\n', b == '\r', b == '\t':
			c[b] = feed
		case b > ' ' && b < 0x7f:
			c[b] = punct
		case b >= 0xc2 && b <= 0xdf:
			c[b] = two
		case b >= 0xe0 && b <= 0xef:
			c[b] = three
		case b >= 0xf0 && b <= 0xf4:
			c[b] = four
		}
	}
	return c
}()

// AppendTokens appends the tokens of text to dst: about 4 bytes of English or 1.25 Chinese characters each. It works from left to
// right and looks at most a few bytes ahead, so texts with the same beginning have the same tokens up to a piece before the first
// difference.
func AppendTokens(dst []TokenID, text string) []TokenID {
	for i := 0; i < len(text); {
		if text[i] == '<' {
			if t, n := control(text[i:]); n > 0 {
				dst = append(dst, t)
				i += n
				continue
			}
		}
		n := pieceLen(text[i:])
		dst = append(dst, pack(text[i:i+n]))
		i += n
	}
	return dst
}

// pack returns the number of a piece.
func pack(s string) TokenID {
	v := TokenID(0)
	if len(s) <= maxPiece {
		for i := range len(s) {
			v = v<<8 | TokenID(s[i])
		}
		return pieceBase[len(s)] + v
	}
	for i := range len(s) {
		v = v<<letterBits | TokenID(letterCode[s[i]])
	}
	if len(s) == maxWord {
		v += eightLetters
	}
	return firstWord + v
}

// letters are the characters of long words in the order of their codes.
const letters = " abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

var letterCode = func() (c [256]uint8) {
	for i := range len(letters) {
		c[letters[i]] = uint8(i)
	}
	return c
}()

// control returns the control token at the start of s and its length in bytes, or 0.
func control(s string) (TokenID, int) {
	if len(s) < 2 || s[1] != '|' {
		return 0, 0
	}
	for t, text := range controlTexts {
		if len(s) >= len(text) && s[:len(text)] == text {
			return TokenID(t), len(text)
		}
	}
	return 0, 0
}

// pieceLen returns how many bytes of s, which is not empty, make its first token: a word of up to eight bytes with its leading
// space, up to three digits, a run of white space or punctuation, one or two characters of other scripts.
func pieceLen(s string) int {
	start := 0
	if s[0] == ' ' && len(s) > 1 {
		if c := classes[s[1]]; c == letter || c == punct || c == two {
			start = 1
		}
	}
	switch classes[s[start]] {
	case letter:
		return run(s, start+1, maxWord, letter)
	case digit:
		return run(s, 1, maxDigits, digit)
	case punct:
		return run(s, start+1, start+maxPunctuation, punct)
	case feed:
		return run(s, 1, maxPiece, feed)
	case blank:
		return blanks(s)
	case two:
		return twos(s, start)
	case three:
		return threes(s)
	case four:
		return whole(s, 4)
	default:
		return 1
	}
}

// run returns the end of the run of class c that goes on at i, at most limit.
func run(s string, i, limit int, c class) int {
	limit = min(limit, len(s))
	for i < limit && classes[s[i]] == c {
		i++
	}
	return i
}

// blanks returns the length of a run of spaces without the last one, if a word follows to which it belongs.
func blanks(s string) int {
	n := run(s, 1, maxPiece, blank)
	if n > 1 && n < len(s) {
		if c := classes[s[n]]; c == letter || c == punct || c == two {
			return n - 1
		}
	}
	return n
}

// twos returns the end of a run of two-byte characters that begins at start.
func twos(s string, start int) int {
	i := start
	for i+2 <= min(len(s), maxPiece) && classes[s[i]] == two && s[i+1]&0xc0 == 0x80 {
		i += 2
	}
	return max(i, 1)
}

// threes returns the length of one three-byte character, or of two where the pair is frequent: which pairs are is drawn by hash.
func threes(s string) int {
	if whole(s, 3) < 3 {
		return 1
	}
	if len(s) < 6 || classes[s[3]] != three || whole(s[3:], 3) < 3 {
		return 3
	}
	v := uint32(s[1])<<24 | uint32(s[2])<<16 | uint32(s[4])<<8 | uint32(s[5])
	if v*0x9e3779b1>>16%charPairOneIn == 0 {
		return 6
	}
	return 3
}

// whole returns n when s begins with a complete character of n bytes, else 1.
func whole(s string, n int) int {
	if len(s) < n {
		return 1
	}
	for i := 1; i < n; i++ {
		if s[i]&0xc0 != 0x80 {
			return 1
		}
	}
	return n
}

// appendMedia appends n placeholder tokens for contents with that hash.
func appendMedia(dst []TokenID, hash uint64, n int) []TokenID {
	t := firstMedia + TokenID(hash>>(64-mediaHashBits))
	for range n {
		dst = append(dst, t)
	}
	return dst
}

// AppendText appends the text of tokens to dst. Numbers that are no token are skipped.
func AppendText(dst []byte, tokens []TokenID) []byte {
	for _, t := range tokens {
		switch {
		case t < controlTokens:
			dst = append(dst, controlTexts[t]...)
		case t >= firstMedia:
			dst = append(dst, mediaText...)
		case t >= firstWord:
			dst = appendWord(dst, t-firstWord)
		default:
			dst = appendPiece(dst, t)
		}
	}
	return dst
}

func appendWord(dst []byte, v TokenID) []byte {
	n := maxWord - 1
	if v >= eightLetters {
		n, v = maxWord, v-eightLetters
	}
	for i := n - 1; i >= 0; i-- {
		if code := v >> (letterBits * i) & (1<<letterBits - 1); int(code) < len(letters) {
			dst = append(dst, letters[code])
		}
	}
	return dst
}

func appendPiece(dst []byte, t TokenID) []byte {
	for n := 1; n <= maxPiece; n++ {
		if t < pieceBase[n] || t >= pieceBase[n+1] {
			continue
		}
		v := t - pieceBase[n]
		for i := n - 1; i >= 0; i-- {
			dst = append(dst, byte(v>>(8*i)))
		}
		return dst
	}
	return dst
}

// BlockChain appends to dst the chained hashes of the complete blocks of tokens: each hash is over blockTokens tokens and the hash
// before it, the first over salt, which stands for whatever else separates caches (adapter, cache_salt).
func BlockChain(dst []uint64, tokens []TokenID, blockTokens int, salt uint64) []uint64 {
	var small [8 * BlockTokens]byte
	buf := small[:]
	if blockTokens > BlockTokens {
		buf = make([]byte, 8*blockTokens)
	}
	buf = buf[:8*blockTokens]
	parent := salt
	for len(tokens) >= blockTokens {
		for i, t := range tokens[:blockTokens] {
			binary.LittleEndian.PutUint64(buf[8*i:], uint64(t))
		}
		parent = xxh3.HashSeed(buf, parent)
		dst = append(dst, parent)
		tokens = tokens[blockTokens:]
	}
	return dst
}
