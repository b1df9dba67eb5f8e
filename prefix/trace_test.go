package prefix_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/warmroute/warmroute/prefix"
)

func readAll(r io.Reader) (records []prefix.Record, err error) {
	for rec, e := range prefix.ReadRecords(r) {
		if e != nil {
			return records, e
		}
		records = append(records, rec)
	}
	return records, nil
}

func TestReadRecords(t *testing.T) {
	f := func(in string, want ...prefix.Record) {
		t.Helper()
		got, err := readAll(strings.NewReader(in))
		if err != nil {
			t.Fatalf("read %q: %v", in, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("read %q (-want +got):\n%s", in, diff)
		}
	}
	f("")
	f("\n \r\n\t\n")
	one := prefix.Record{Timestamp: 27482, InputLength: 6955, OutputLength: 52, HashIDs: []int64{46, 47, 2353}}
	line := `{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353]}`
	f(line, one)
	f(line+"\n", one)
	f("\n"+line+"\r\n\n"+line, one, one)
	// Other writers: fractions, ids as numbers, unknown and missing members.
	f(`{"timestamp": 1200.9, "input_length": 5.0, "session_id": "s-1", "delay": 300, "text_input": "x"}`,
		prefix.Record{Timestamp: 1200, InputLength: 5, SessionID: "s-1", Delay: 300})
	f(`{"session_id": 7, "delay": null}`, prefix.Record{SessionID: "7"})
	f(`{"session_id": null}`, prefix.Record{})
}

func TestReadRecordsNamesTheLine(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		_, err := readAll(strings.NewReader(in))
		if err == nil || err.Error() != want {
			t.Errorf("read %q: got error %v; want %s", in, err, want)
		}
	}
	f("{}\n\nnonsense\n{}", "parse trace line 3: invalid character 'o' in literal null (expecting 'u')")
	f("{}\n{\"timestamp\": 1", "parse trace line 2: unexpected end of JSON input")
	f(`{"timestamp": -1}`, "parse trace line 1: timestamp -1: must not be negative")
	f(`{"input_length": -0.5}`, "parse trace line 1: input_length -0.5: must not be negative")
	f(`{"input_length": 99999999999}`, "parse trace line 1: input_length 99999999999: is too large")
	f(`{"timestamp": 1e400}`, "parse trace line 1: timestamp 1e400: is too large")
	f(`{"hash_ids": ["a"]}`, "parse trace line 1: json: cannot unmarshal string into Go struct field wireRecord.hash_ids of type int64")
	f(`{"session_id": [1]}`, "parse trace line 1: session_id [1]: must be a string or a number")
	f(`[]`, "parse trace line 1: json: cannot unmarshal array into Go value of type prefix.wireRecord")
}

func TestReadRecordsStopsAtReadError(t *testing.T) {
	broken := io.MultiReader(strings.NewReader("{}\n{}\n"), iotest.ErrReader(errors.New("disk on fire")))
	got, err := readAll(broken)
	if len(got) != 2 || err == nil || err.Error() != "read trace line 3: disk on fire" {
		t.Errorf("got %d records and %v; want 2 and a read error at line 3", len(got), err)
	}
}

func TestReadRecordsLongLines(t *testing.T) {
	long := prefix.Record{InputLength: 1}
	for i := range int64(20_000) {
		long.HashIDs = append(long.HashIDs, i)
	}
	text := append(long.AppendJSON(nil), "\n{}\n"...)
	got, err := readAll(iotest.HalfReader(bytes.NewReader(text)))
	if err != nil || len(got) != 2 || len(got[0].HashIDs) != 20_000 {
		t.Fatalf("a line of %d bytes: got %d records, %v", len(text), len(got), err)
	}
	endless := io.MultiReader(strings.NewReader("{}\n"), strings.NewReader(strings.Repeat(" ", prefix.MaxRecordBytes+70_000)))
	got, err = readAll(endless)
	if len(got) != 1 || !errors.Is(err, prefix.ErrRecordTooLong) {
		t.Errorf("an endless line: got %d records and %v; want 1 and %v", len(got), err, prefix.ErrRecordTooLong)
	}
}

func TestReadRecordsStopsWhenTold(t *testing.T) {
	n := 0
	for range prefix.ReadRecords(strings.NewReader("{}\n{}\n{}\n")) {
		if n++; n == 2 {
			break
		}
	}
	if n != 2 {
		t.Errorf("ran %d times; want 2", n)
	}
}

func TestAppendJSON(t *testing.T) {
	f := func(r prefix.Record, want string) {
		t.Helper()
		if got := string(r.AppendJSON(nil)); got != want {
			t.Errorf("got %s; want %s", got, want)
		}
	}
	f(prefix.Record{}, `{"timestamp": 0, "input_length": 0, "output_length": 0, "hash_ids": []}`)
	f(prefix.Record{Timestamp: 5, InputLength: 6, OutputLength: 7, HashIDs: []int64{8, -9}, SessionID: "a\"b", Delay: 10},
		`{"timestamp": 5, "input_length": 6, "output_length": 7, "hash_ids": [8, -9], "session_id": "a\"b", "delay": 10}`)
}

func TestWriteRecord(t *testing.T) {
	var b bytes.Buffer
	for range 2 {
		if err := prefix.WriteRecord(&b, prefix.Record{InputLength: 3}); err != nil {
			t.Fatal(err)
		}
	}
	line := `{"timestamp": 0, "input_length": 3, "output_length": 0, "hash_ids": []}` + "\n"
	if b.String() != line+line {
		t.Errorf("got %q", b.String())
	}
	cause := errors.New("disk full")
	if err := prefix.WriteRecord(brokenWriter{cause}, prefix.Record{}); !errors.Is(err, cause) {
		t.Errorf("got %v; want %v", err, cause)
	}
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

// Whatever is read can be written and reads the same; nothing panics.
func FuzzReadRecords(f *testing.F) {
	f.Add([]byte(`{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}` + "\n"))
	f.Add([]byte("\n{\"session_id\": 1.5, \"delay\": 2.5}\r\n{}"))
	f.Add([]byte(`{"timestamp": -1}`))
	f.Add([]byte(`{"session_id": "\ud800"}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		records, _ := readAll(bytes.NewReader(in))
		var b bytes.Buffer
		for _, r := range records {
			if r.Timestamp < 0 || r.InputLength < 0 || r.OutputLength < 0 || r.Delay < 0 {
				t.Fatalf("accepted a negative number: %+v", r)
			}
			if err := prefix.WriteRecord(&b, r); err != nil {
				t.Fatal(err)
			}
		}
		again, err := readAll(&b)
		if err != nil {
			t.Fatalf("what was written does not read: %v", err)
		}
		same := cmp.Comparer(func(a, b []int64) bool { return len(a) == 0 && len(b) == 0 || cmp.Equal(a, b) })
		if diff := cmp.Diff(records, again, same); diff != "" {
			t.Fatalf("written and read again (-was +is):\n%s", diff)
		}
	})
}
