package cli

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/warmroute/warmroute/internal/config"
	"github.com/warmroute/warmroute/internal/dialect"
	"github.com/warmroute/warmroute/internal/proxy"
	"github.com/warmroute/warmroute/prefix"
)

// traceFile writes down which blocks requests had, and nothing that they said:
// a log in Mooncake's JSON lines that `warmroute replay` reads.
//
// The ids of blocks and sessions are hashes under a key that is drawn for each
// file and never written, so nobody who has the log can look a text up in it,
// not even by hashing guesses. Equal blocks have equal ids within a file only.
//
// Requests never wait for the disk: what does not fit into the queue is dropped
// and counted.
type traceFile struct {
	path  string
	limit int64 // bytes of a file
	keep  int   // files besides the one that is written
	log   *slog.Logger
	queue chan traceLine

	dropped atomic.Int64 // since the last report of it

	// Of run alone.
	file    *os.File
	out     *bufio.Writer
	key     [32]byte
	written int64
	buf     []byte
	broken  bool // the last write failed, and was told
}

// traceLine is what is kept of a request until it is written.
type traceLine struct {
	at            time.Time
	model         string
	chain         prefix.Chain
	session       uint64
	bytes         int64
	blockBytes    int
	input, output int
	status        int
}

// Bounds of a trace file's queue and of how long lines stay in memory.
const (
	traceQueue = 1024
	traceFlush = time.Second
	traceTell  = time.Minute // between two reports of dropped lines
)

func newTraceFile(c config.Trace, log *slog.Logger) *traceFile {
	return &traceFile{path: c.File, limit: c.MaxBytes, keep: c.Keep, log: log, queue: make(chan traceLine, traceQueue)}
}

// record takes a request that is over. It does not block.
func (t *traceFile) record(r *proxy.Record) {
	if !traced(r) {
		return
	}
	line := traceLine{
		at: r.Received, model: r.Model, chain: append(prefix.Chain(nil), r.Chain...), session: r.Session,
		bytes: r.PromptBytes, blockBytes: r.BlockBytes, input: r.PromptTokens, output: r.OutputTokens, status: r.Status,
	}
	select {
	case t.queue <- line:
	default:
		t.dropped.Add(1)
	}
}

// traced reports whether a request has a prompt that engines cache.
func traced(r *proxy.Record) bool {
	generates := r.Kind == dialect.Chat || r.Kind == dialect.Completions || r.Kind == dialect.Responses
	return generates && r.PromptBytes > 0 && r.PromptTokens > 0
}

// run writes lines until ctx ends, then what is left in the queue.
func (t *traceFile) run(ctx context.Context) {
	flush := time.NewTicker(traceFlush)
	defer flush.Stop()
	tell := time.NewTicker(traceTell)
	defer tell.Stop()
	defer t.tell()
	defer t.close()
	for {
		select {
		case line := <-t.queue:
			t.write(&line)
		case <-flush.C:
			t.check(t.flush())
		case <-tell.C:
			t.tell()
		case <-ctx.Done():
			for {
				select {
				case line := <-t.queue:
					t.write(&line)
				default:
					return
				}
			}
		}
	}
}

// tell reports lines that were dropped.
func (t *traceFile) tell() {
	if n := t.dropped.Swap(0); n > 0 {
		t.log.Warn("the trace file misses requests", slog.String("file", t.path), slog.Int64("requests", n))
	}
}

// write writes a line, into a new file when the present one is full.
func (t *traceFile) write(line *traceLine) {
	if t.file == nil || t.written >= t.limit {
		if err := t.rotate(); err != nil {
			t.dropped.Add(1)
			t.check(err)
			return
		}
	}
	t.buf = append(t.appendLine(t.buf[:0], line), '\n')
	n, err := t.out.Write(t.buf)
	t.written += int64(n)
	if err != nil {
		t.dropped.Add(1)
	}
	t.check(err)
}

// check tells of a fault once until writing works again.
func (t *traceFile) check(err error) {
	if err == nil {
		return
	}
	if !t.broken {
		t.log.Error("cannot write the trace file", slog.String("file", t.path), slog.Any("error", err))
	}
	t.broken = true
	_ = t.shut() // the fault is told; the next line tries a new file
}

func (t *traceFile) flush() error {
	if t.out == nil {
		return nil
	}
	return t.out.Flush()
}

func (t *traceFile) close() { t.check(t.shut()) }

// shut closes the file, if there is one.
func (t *traceFile) shut() error {
	if t.file == nil {
		return nil
	}
	err := errors.Join(t.out.Flush(), t.file.Close())
	t.file, t.out = nil, nil
	return err
}

// rotate moves files up by one number, drops the oldest, and begins a new one
// under a new key.
func (t *traceFile) rotate() error {
	if err := t.shut(); err != nil {
		return fmt.Errorf("close trace file: %w", err)
	}
	name := func(n int) string {
		if n == 0 {
			return t.path
		}
		return t.path + "." + strconv.Itoa(n)
	}
	for n := t.keep; n > 0; n-- {
		if err := os.Rename(name(n-1), name(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("rotate trace file: %w", err)
		}
	}
	// Lengths and times of requests are nobody else's business.
	f, err := os.OpenFile(t.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("open trace file: %w", err)
	}
	if _, err := rand.Read(t.key[:]); err != nil {
		return errors.Join(fmt.Errorf("draw key: %w", err), f.Close())
	}
	t.file, t.out, t.written, t.broken = f, bufio.NewWriterSize(f, 64<<10), 0, false
	return nil
}

// id hides a hash under the file's key. 53 bits are exact in every reader of
// JSON.
func (t *traceFile) id(h uint64) int64 {
	var b [40]byte
	copy(b[:], t.key[:])
	binary.LittleEndian.PutUint64(b[32:], h)
	sum := sha256.Sum256(b[:])
	return int64(binary.LittleEndian.Uint64(sum[:]) >> 11)
}

// appendLine writes a record of Mooncake's format with members of ours behind.
func (t *traceFile) appendLine(b []byte, l *traceLine) []byte {
	r := prefix.Record{Timestamp: l.at.UnixMilli(), InputLength: l.input, OutputLength: l.output, HashIDs: make([]int64, len(l.chain))}
	for i, h := range l.chain {
		r.HashIDs[i] = t.id(uint64(h))
	}
	if l.session != 0 {
		r.SessionID = strconv.FormatInt(t.id(l.session^sessionMark), 16)
	}
	b = r.AppendJSON(b)
	b = b[:len(b)-1] // its closing brace
	b = append(b, `, "model": `...)
	b = strconv.AppendQuoteToASCII(b, l.model)
	b = append(b, `, "block_bytes": `...)
	b = strconv.AppendInt(b, int64(l.blockBytes), 10)
	b = append(b, `, "input_bytes": `...)
	b = strconv.AppendInt(b, l.bytes, 10)
	b = append(b, `, "status": `...)
	b = strconv.AppendInt(b, int64(l.status), 10)
	return append(b, '}')
}

// sessionMark keeps the ids of sessions apart from those of blocks.
const sessionMark = 0x73657373696f6e
