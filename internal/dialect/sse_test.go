package dialect

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

// plainEvent is what an event says, apart from its bytes.
type plainEvent struct{ Name, Data string }

// readEvents reads a stream to its end and checks that no byte is lost.
func readEvents(t *testing.T, r io.Reader, whole string) []plainEvent {
	t.Helper()
	sse := NewReader(r, 1<<30)
	var events []plainEvent
	var raw strings.Builder
	for partial := false; ; {
		e, err := sse.Next()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Fatalf("%q: %v", whole, err)
			}
			break
		}
		if partial {
			t.Fatalf("%q: an event follows a partial one", whole)
		}
		if len(e.Raw) == 0 {
			t.Fatalf("%q: an event without bytes", whole)
		}
		partial = e.Partial
		raw.Write(e.Raw)
		if e.Comment != (e.Data == nil) {
			t.Fatalf("%q: comment %t with data %q", whole, e.Comment, e.Data)
		}
		if !e.Comment {
			events = append(events, plainEvent{string(e.Name), string(e.Data)})
		}
	}
	if raw.String() != whole {
		t.Fatalf("the events' bytes are %q; want %q", raw.String(), whole)
	}
	return events
}

// reference reads the events of a stream the slow and plain way.
func reference(s string) []plainEvent {
	s = strings.TrimPrefix(s, "\xEF\xBB\xBF")
	s = strings.ReplaceAll(s, "\r\n", "\n")
	s = strings.ReplaceAll(s, "\r", "\n")
	var events []plainEvent
	var e plainEvent
	lines := 0
	end := func() {
		if lines > 0 {
			e.Data = e.Data[:len(e.Data)-1]
			events = append(events, e)
		}
		e, lines = plainEvent{}, 0
	}
	isError := false
	for line := range strings.SplitSeq(s, "\n") {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			end()
			isError = false
			continue
		case key == "data", key == "error":
			lines++
			e.Data += value + "\n"
			isError = isError || key == "error"
		case key == "event":
			e.Name = value
		}
		if isError {
			e.Name = "error"
		}
	}
	end() // an event that the stream's end cuts off is still an event
	return events
}

func TestReaderEvents(t *testing.T) {
	f := func(in string, want ...plainEvent) {
		t.Helper()
		if diff := cmp.Diff(want, readEvents(t, strings.NewReader(in), in)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", in, diff)
		}
	}
	f("")
	f("data: a\n\ndata: b\n\n", plainEvent{"", "a"}, plainEvent{"", "b"})
	f("data: a\r\n\r\ndata: b\r\n\r\n", plainEvent{"", "a"}, plainEvent{"", "b"})
	f("data: a\r\rdata: b\r\r", plainEvent{"", "a"}, plainEvent{"", "b"})
	f("\xEF\xBB\xBFdata: a\n\n", plainEvent{"", "a"})
	f("data: a\n\n\xEF\xBB\xBFdata: b\n\n", plainEvent{"", "a"}) // only the first is a mark
	f("event: x\ndata: a\nid: 7\nretry: 9\n\n", plainEvent{"x", "a"})
	f("event: x\n\ndata: a\n\n", plainEvent{"", "a"}) // the name goes with its event
	f("event: x\nevent: y\ndata:a\n\n", plainEvent{"y", "a"})
	f("data: a\ndata: b\n\n", plainEvent{"", "a\nb"})
	f("data: a\ndata\ndata:  c\n\n", plainEvent{"", "a\n\n c"})
	f("data:\n\n", plainEvent{"", ""})
	f("data\n\n", plainEvent{"", ""})
	f(": ping\n\n\n\ndata: a\n\n", plainEvent{"", "a"})
	f(": ping\ndata: a\n: pong\n\n", plainEvent{"", "a"})
	f("error: {\"code\":500}\n\n", plainEvent{"error", `{"code":500}`})
	f("data: a\n", plainEvent{"", "a"})
	f("data: [DONE]", plainEvent{"", "[DONE]"})
	f("data: a\n\ndata: {\"cut", plainEvent{"", "a"}, plainEvent{"", `{"cut`})
	f("datax: a\n data: b\n\n")
}

func TestReaderPartial(t *testing.T) {
	f := func(in string, want bool) {
		t.Helper()
		e, err := NewReader(strings.NewReader(in), 100).Next()
		if err != nil || e.Partial != want {
			t.Errorf("%q: partial %t, %v; want %t", in, e.Partial, err, want)
		}
	}
	f("data: a\n\n", false)
	f("data: a\r\r", false)
	f("data: a\n", true)
	f("data: a", true)
	f(": ping", true)
	f("\n", false)
}

const allEnds = "\xEF\xBB\xBFevent: a\r\ndata: 1\r\n\r\n: ping\r\rdata: 2\rdata: 3\r\r\n\ndata: 你好\n\nid: 1\n\r\n\rdata: x\r\n\rdata: [DONE]\n\n"

// However the bytes arrive, the events are the same.
func TestReaderSplitAtAnyByte(t *testing.T) {
	want := reference(allEnds)
	for i := range len(allEnds) + 1 {
		r := io.MultiReader(strings.NewReader(allEnds[:i]), strings.NewReader(allEnds[i:]))
		if diff := cmp.Diff(want, readEvents(t, r, allEnds)); diff != "" {
			t.Errorf("split at %d (-want +got):\n%s", i, diff)
		}
	}
	for _, r := range []io.Reader{
		iotest.OneByteReader(strings.NewReader(allEnds)), iotest.HalfReader(strings.NewReader(allEnds)), iotest.DataErrReader(strings.NewReader(allEnds)),
	} {
		if diff := cmp.Diff(want, readEvents(t, r, allEnds)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// An event whose blank line is there is handed out before anything follows,
// whatever the line ends are.
func TestReaderDoesNotWait(t *testing.T) {
	f := func(first, rest string) {
		t.Helper()
		pr, pw := io.Pipe()
		sse := NewReader(pr, 100)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = io.WriteString(pw, first)
		}()
		e, err := sse.Next()
		if err != nil || string(e.Data) != "a" || string(e.Raw) != first {
			t.Errorf("%q: got %q of %q, %v before more came", first, e.Data, e.Raw, err)
		}
		<-done
		go func() {
			_, _ = io.WriteString(pw, rest)
			_ = pw.Close()
		}()
		e, err = sse.Next()
		if err != nil || string(e.Data) != "b" || string(e.Raw) != rest {
			t.Errorf("%q: got %q of %q, %v; want b", rest, e.Data, e.Raw, err)
		}
		if _, err := sse.Next(); !errors.Is(err, io.EOF) {
			t.Errorf("%q: got %v; want EOF", rest, err)
		}
	}
	f("data: a\n\n", "data: b\n\n")
	f("data: a\r\r", "data: b\r\r")
	f("data: a\r\n\r\n", "data: b\r\n\r\n")
	f("data: a\r\n\r", "\ndata: b\r\n\r\n")
}

func TestReaderLongLine(t *testing.T) {
	long := strings.Repeat("x", 5<<20)
	in := "data: a\n\ndata: " + long + "\n\ndata: b\n\n"
	for _, r := range []io.Reader{strings.NewReader(in), iotest.HalfReader(strings.NewReader(in))} {
		got := readEvents(t, r, in)
		if len(got) != 3 || got[1].Data != long || got[2].Data != "b" {
			t.Fatalf("got %d events", len(got))
		}
	}
}

func TestReaderLimit(t *testing.T) {
	f := func(in string, max int, want int) {
		t.Helper()
		sse := NewReader(strings.NewReader(in), max)
		for range want {
			if _, err := sse.Next(); err != nil {
				t.Fatalf("%.40q with limit %d: %v", in, max, err)
			}
		}
		for range 2 { // the error stays
			if _, err := sse.Next(); !errors.Is(err, ErrEventTooLong) {
				t.Errorf("%.40q with limit %d: got %v after %d events; want %v", in, max, err, want, ErrEventTooLong)
			}
		}
	}
	f("data: aaa\n\ndata: aaaa\n\n", 11, 1)
	f("data: a\n\n"+strings.Repeat("x", 1<<20), 1000, 1)
	f(strings.Repeat("data: a\n", 100_000), 1000, 0)
	f("data: a\n\n: "+strings.Repeat("x", 1000), 500, 1)
}

func TestReaderPassesOnErrors(t *testing.T) {
	cause := errors.New("connection reset")
	sse := NewReader(io.MultiReader(strings.NewReader("data: a\n\ndata: b"), iotest.ErrReader(cause)), 100)
	for _, want := range []string{"a", "b"} {
		if e, err := sse.Next(); err != nil || string(e.Data) != want || e.Partial != (want == "b") {
			t.Errorf("got %q, partial %t, %v; want %s", e.Data, e.Partial, err, want)
		}
	}
	for range 2 {
		if _, err := sse.Next(); !errors.Is(err, cause) {
			t.Errorf("got %v; want %v", err, cause)
		}
	}
	if _, err := NewReader(idle{}, 100).Next(); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a source that gives nothing: got %v; want %v", err, io.ErrNoProgress)
	}
}

type idle struct{}

func (idle) Read([]byte) (int, error) { return 0, nil }

// A Reader does not keep the memory of one large event.
func TestReaderShrinks(t *testing.T) {
	in := "data: " + strings.Repeat("x", 2<<20) + "\ndata: y\n\n" + strings.Repeat("data: a\n\n", 10)
	sse := NewReader(strings.NewReader(in), 1<<30)
	for range 5 {
		if _, err := sse.Next(); err != nil {
			t.Fatal(err)
		}
	}
	if cap(sse.buf) > keepSize || cap(sse.joined) > keepSize {
		t.Errorf("keeps %d and %d bytes; want %d at most", cap(sse.buf), cap(sse.joined), keepSize)
	}
}

// repeater gives the same chunk for ever.
type repeater string

func (r repeater) Read(p []byte) (int, error) { return copy(p, r), nil }

const chunkLine = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}` + "\n\n"

func TestReaderAllocatesNothing(t *testing.T) {
	sse := NewReader(repeater(chunkLine), 1<<20)
	s := NewStream(Chat, 0)
	next := func() {
		e, err := sse.Next()
		if err != nil || s.Observe(e) != Content {
			t.Fatalf("got %q, %v", e.Data, err)
		}
	}
	for range 100 {
		next()
	}
	if n := testing.AllocsPerRun(1000, next); n != 0 {
		t.Errorf("an event allocates %v times; want 0", n)
	}
}

func BenchmarkEvent(b *testing.B) {
	sse := NewReader(repeater(chunkLine), 1<<20)
	s := NewStream(Chat, 1<<20)
	b.SetBytes(int64(len(chunkLine)))
	b.ReportAllocs()
	for b.Loop() {
		e, err := sse.Next()
		if err != nil || s.Observe(e) != Content {
			b.Fatal(e, err)
		}
	}
}

// The Reader agrees with the reference, however the bytes arrive.
func FuzzReader(f *testing.F) {
	f.Add([]byte(allEnds), uint64(1))
	f.Add([]byte("data: a\n\ndata: b"), uint64(2))
	f.Add([]byte("\r\n\r\n\r\r\n\n"), uint64(3))
	f.Add([]byte("\xEF\xBB\xBF\xEF\xBB\xBFdata: a\n\n"), uint64(4))
	f.Add([]byte("error: x\nevent: y\ndata\n:\n\nevent:error\n"), uint64(5))
	f.Fuzz(func(t *testing.T, in []byte, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 0))
		got := readEvents(t, &chunks{rng, in}, string(in))
		if diff := cmp.Diff(reference(string(in)), got); diff != "" {
			t.Fatalf("%q (-want +got):\n%s", in, diff)
		}
		if whole := readEvents(t, bytes.NewReader(in), string(in)); cmp.Diff(whole, got) != "" {
			t.Fatalf("%q in pieces gives %v, whole %v", in, got, whole)
		}
	})
}

// chunks hands out its bytes in pieces of random size.
type chunks struct {
	rng  *rand.Rand
	rest []byte
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), c.rng.IntN(8))], c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func newRand() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }
