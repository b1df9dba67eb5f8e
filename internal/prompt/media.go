package prompt

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"io"
	"strings"
)

// mediaBytes is what a picture or a file counts for in the stream: 512 tokens
// at four bytes each, the order of what engines spend on one, so that the
// positions of the blocks behind it keep step with the tokens.
const mediaBytes = 2048

const contentPrefix = "sha256:"

// MediaRef names a picture, sound or file for [Part.Text]. A data: URL is
// named by the SHA-256 of its content, so that the same picture under another
// media type or encoding is the same; any other URL or id names itself.
func MediaRef(url string) string {
	if len(url) < 5 || !strings.EqualFold(url[:5], "data:") {
		return url
	}
	head, body, ok := strings.Cut(url[5:], ",")
	if !ok {
		return contentRef(url)
	}
	if strings.HasSuffix(strings.ToLower(head), ";base64") {
		return MediaData(body)
	}
	return contentRef(body)
}

// MediaData names media that came as bare base64. Text that is no base64 is
// named by its own hash.
func MediaData(data string) string {
	// Clients pad or do not; the decoder passes over line ends.
	bare := strings.TrimRight(data, "=\r\n")
	sum := sha256.New()
	if _, err := io.Copy(sum, base64.NewDecoder(base64.RawStdEncoding, strings.NewReader(bare))); err != nil {
		return contentRef(data)
	}
	return contentPrefix + hex.EncodeToString(sum.Sum(nil))
}

func contentRef(s string) string {
	sum := sha256.Sum256([]byte(s))
	return contentPrefix + hex.EncodeToString(sum[:])
}

// writeMedia writes the hash of a reference, repeated to mediaBytes.
func writeMedia(w Writer, kind byte, ref string) {
	if !strings.HasPrefix(ref, contentPrefix) || len(ref) != len(contentPrefix)+2*sha256.Size {
		ref = contentRef(ref)
	}
	put(w, kind)
	digest := ref[len(contentPrefix):]
	for range mediaBytes / len(digest) {
		text(w, digest)
	}
}
