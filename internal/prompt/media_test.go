package prompt_test

import (
	"strings"
	"testing"

	"github.com/warmroute/warmroute/internal/prompt"
)

// SHA-256 of "hello".
const helloRef = "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"

func TestMediaRef(t *testing.T) {
	f := func(url, want string) {
		t.Helper()
		if got := prompt.MediaRef(url); got != want {
			t.Errorf("MediaRef(%q) is %s; want %s", url, got, want)
		}
	}
	f("", "")
	f("https://files.example/a.png", "https://files.example/a.png")
	f("data:image/png;base64,aGVsbG8=", helloRef)
	f("data:image/jpeg;charset=x;base64,aGVsbG8", helloRef) // another type, no padding
	f("DATA:;BASE64,aGVsbG8=", helloRef)
	f("data:text/plain,hello", helloRef)
	f("data:image/png;base64,aGVs\nbG8=", helloRef) // MIME line ends
	// Broken data still has a name, and not that of other broken data.
	a, b := prompt.MediaRef("data:image/png;base64,!!!!"), prompt.MediaRef("data:image/png;base64,!!!?")
	if a == b || !strings.HasPrefix(a, "sha256:") {
		t.Errorf("broken base64 is named %s and %s", a, b)
	}
	if got := prompt.MediaRef("data:nonsense"); !strings.HasPrefix(got, "sha256:") {
		t.Errorf("a data URL without data is named %s", got)
	}
	if got := prompt.MediaData("aGVsbG8="); got != helloRef {
		t.Errorf("MediaData is %s; want %s", got, helloRef)
	}
}

// One image is the same by whatever data URL it comes, and counts about as
// much as the tokens that it costs.
func TestImageInStream(t *testing.T) {
	image := func(url string) string {
		return stream(&prompt.Request{Messages: []prompt.Message{message("user", prompt.Part{Kind: prompt.Image, Text: prompt.MediaRef(url)})}})
	}
	a := image("data:image/png;base64,aGVsbG8=")
	if b := image("data:image/webp;base64,aGVsbG8="); a != b {
		t.Error("the media type changes the stream")
	}
	if b := image("data:image/png;base64,aGVsbG9v"); a == b {
		t.Error("other content has the same stream")
	}
	if b := image("https://files.example/a.png"); len(a) != len(b) || a == b {
		t.Errorf("a URL takes %d bytes of the stream, content %d", len(b), len(a))
	}
	empty := stream(&prompt.Request{Messages: []prompt.Message{message("user")}})
	if got := len(a) - len(empty); got != 2048+2 {
		t.Errorf("an image takes %d bytes; want 2 KiB and its mark", got)
	}
}
