package prefix

import (
	"crypto/sha256"
	"encoding/hex"
)

// SimpleKey returns the published first-characters key: the SHA-256, in
// lower-case hex, of the first n Unicode characters of text encoded as UTF-8.
// A text of fewer characters is hashed whole. Characters are code points; a
// byte that is no valid UTF-8 counts as one and is hashed as it is.
//
// The key sees nothing beyond its n characters, so prompts that begin alike
// share it whatever follows. It exists for agreement with routers that use it;
// a [Chain] tells more.
func SimpleKey(text string, n int) string {
	sum := sha256.Sum256([]byte(Head(text, n)))
	return hex.EncodeToString(sum[:])
}

// Head returns the first n Unicode characters of text, or all of it when it
// has fewer. It never splits a character and copies nothing.
func Head(text string, n int) string {
	if n <= 0 {
		return ""
	}
	// A character has at least one byte.
	if len(text) <= n {
		return text
	}
	for i := range text {
		if n == 0 {
			return text[:i]
		}
		n--
	}
	return text
}
