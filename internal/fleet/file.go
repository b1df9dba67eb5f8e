package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// maxFileBytes bounds a file of instances.
	maxFileBytes = 4 << 20
	// filePoll is how often the file is read without a notice: notices get lost on
	// network file systems, and for directories that were replaced.
	filePoll = 10 * time.Second
	// fileSettle is the pause after a notice: writers truncate first.
	fileSettle = 50 * time.Millisecond
)

var (
	errFileTail  = errors.New("text after the list")
	errFileLarge = fmt.Errorf("larger than %d bytes", maxFileBytes)
	errNobody    = errors.New("no instances found")
)

// ParseFile reads a list of instances: a JSON array of objects with the keys of
// InstanceConfig, of which url is required. Unknown keys are errors.
func ParseFile(text []byte) ([]InstanceConfig, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	var list []InstanceConfig
	if err := dec.Decode(&list); err != nil {
		return nil, fmt.Errorf("parse instances at byte %d: %w", dec.InputOffset(), err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("parse instances at byte %d: %w", dec.InputOffset(), errFileTail)
	}
	var fs faults
	for i, c := range list {
		path := fmt.Sprintf("[%d]", i)
		if _, err := ParseURL(c.URL); err != nil {
			fs.add(path+".url", "%v", err)
		}
		// Whether model or models fits depends on the pool; both may stand here.
		c.Model, c.Models = "", nil
		c.validate(&fs, path, true)
	}
	if err := errors.Join(fs.errs...); err != nil {
		return nil, err
	}
	return list, nil
}

// followFile reads the file at once, after each notice about its directory, and
// every now and then. The directory is watched, not the file, because files are
// replaced by renames and Kubernetes swaps a link beside them.
func (f *Fleet) followFile(ctx context.Context, s *source) {
	var wg sync.WaitGroup
	defer wg.Wait()
	notices := f.watchDir(ctx, &wg, filepath.Dir(s.file))
	var last []byte
	var lastErr string
	for {
		text, err := readFile(s.file)
		if err != nil && err.Error() != lastErr {
			f.report(ctx, s, nil, err)
			lastErr, last = err.Error(), nil
		}
		if err == nil && (last == nil || !bytes.Equal(text, last)) {
			list, err := ParseFile(text)
			if err == nil && len(list) == 0 {
				err = errNobody
			}
			f.report(ctx, s, list, err)
			last, lastErr = text, ""
		}
		if !waitFile(ctx, notices) {
			return
		}
	}
}

// waitFile waits for a notice or for the next poll.
func waitFile(ctx context.Context, notices <-chan struct{}) bool {
	poll := time.NewTimer(jitter(filePoll))
	defer poll.Stop()
	select {
	case <-poll.C:
	case <-notices:
		return sleep(ctx, fileSettle)
	case <-ctx.Done():
		return false
	}
	return true
}

func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if len(text) > maxFileBytes {
		return nil, fmt.Errorf("read %s: %w", path, errFileLarge)
	}
	return text, nil
}

// watchDir returns a channel that gets a token when something in the directory
// changes, nil when the system cannot tell: polling serves then.
func (f *Fleet) watchDir(ctx context.Context, wg *sync.WaitGroup, dir string) <-chan struct{} {
	if f.pollOnly {
		return nil
	}
	w, err := fsnotify.NewWatcher()
	if err == nil {
		if err = w.Add(dir); err != nil {
			_ = w.Close()
		}
	}
	if err != nil {
		f.deps.Log.LogAttrs(ctx, slog.LevelWarn, "file notices missing; polling instead", slog.String("dir", dir), slog.String("error", err.Error()))
		return nil
	}
	notices := make(chan struct{}, 1)
	wg.Go(func() { relay(ctx, w, notices) })
	return notices
}

// relay turns notices into tokens until ctx is done.
func relay(ctx context.Context, w *fsnotify.Watcher, notices chan<- struct{}) {
	defer func() { _ = w.Close() }()
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-w.Events:
			if !ok {
				return
			}
		case _, ok := <-w.Errors:
			// An overflow means that notices were lost: worth a look.
			if !ok {
				return
			}
		}
		select {
		case notices <- struct{}{}:
		default:
		}
	}
}
