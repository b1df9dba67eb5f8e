package config

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// References: any scalar may hold ${env:NAME} or ${file:PATH}, alone or inside
// other text. $${ stands for a literal ${.
const (
	refOpen    = "${"
	refEscaped = "$${"
)

// maxReferenced bounds a file that a reference names. More is a wrong path, not
// a secret.
const maxReferenced = 64 << 10

// Sources are the files that a configuration is made of, each with the SHA-256
// digest of what it held when it was read.
type Sources map[string][sha256.Size]byte

// World is what references are resolved in. The zero World is empty.
type World struct {
	Env  func(name string) (string, bool)  // environment variables
	File func(path string) ([]byte, error) // files; at most 64 KiB are used
}

// process is the world of the running process.
func process() World { return World{Env: os.LookupEnv, File: readSmall} }

func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxReferenced+1))
}

// expanded is a scalar after its references were resolved.
type expanded struct {
	text   string
	values []string // what the references stand for: never shown
	files  Sources  // what the references read
}

// referTo reports whether s holds a reference or an escaped one.
func referTo(s string) bool { return strings.Contains(s, refOpen) }

// expand resolves the references of s. Paths are relative to dir.
func (w World) expand(s, dir string) (expanded, error) {
	out := expanded{files: make(Sources)}
	var sb strings.Builder
	for {
		i := strings.Index(s, refOpen)
		if i < 0 {
			sb.WriteString(s)
			out.text = sb.String()
			return out, nil
		}
		if i > 0 && strings.HasPrefix(s[i-1:], refEscaped) {
			sb.WriteString(s[:i-1] + refOpen)
			s = s[i+len(refOpen):]
			continue
		}
		sb.WriteString(s[:i])
		inner, rest, closed := strings.Cut(s[i+len(refOpen):], "}")
		if !closed {
			return out, errors.New("reference without its closing brace; want ${env:NAME} or ${file:PATH}, or $${ for a literal ${")
		}
		value, err := w.resolve(inner, dir, out.files)
		if err != nil {
			return out, err
		}
		out.values = append(out.values, value)
		sb.WriteString(value)
		s = rest
	}
}

// resolve returns what one reference stands for, without the line end that
// files end with. A file that it reads is added to files.
func (w World) resolve(ref, dir string, files Sources) (value string, err error) {
	kind, name, _ := strings.Cut(ref, ":")
	switch {
	case kind == "env" && name != "":
		var ok bool
		if w.Env != nil {
			value, ok = w.Env(name)
		}
		if !ok {
			return "", fmt.Errorf("environment variable %s is not set", shorten(name))
		}
	case kind == "file" && name != "":
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		b, err := w.read(name)
		if err != nil {
			return "", err
		}
		files[name] = sha256.Sum256(b)
		value = string(b)
	default:
		return "", errors.New("unknown reference; want ${env:NAME} or ${file:PATH}, or $${ for a literal ${")
	}
	if value = strings.TrimRight(value, "\r\n"); value == "" {
		return "", fmt.Errorf("%s %s is empty", kind, shorten(name))
	}
	return value, nil
}

func (w World) read(path string) ([]byte, error) {
	if w.File == nil {
		return nil, fmt.Errorf("read %s: %w", path, os.ErrNotExist)
	}
	b, err := w.File(path)
	if err == nil && len(b) > maxReferenced {
		err = fmt.Errorf("read %s: longer than 64 KiB", path)
	}
	return b, err
}
