package config

import (
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
	b, err := io.ReadAll(io.LimitReader(f, maxReferenced+1))
	if err == nil && len(b) > maxReferenced {
		err = fmt.Errorf("read %s: longer than 64 KiB", path)
	}
	return b, err
}

// expanded is a scalar after its references were resolved.
type expanded struct {
	text   string
	values []string // what the references stand for: never shown
	files  []string // what the references read
}

// referTo reports whether s holds a reference or an escaped one.
func referTo(s string) bool { return strings.Contains(s, refOpen) }

// expand resolves the references of s. Paths are relative to dir.
func (w World) expand(s, dir string) (expanded, error) {
	var out expanded
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
		value, file, err := w.resolve(inner, dir)
		if err != nil {
			return out, err
		}
		if file != "" {
			out.files = append(out.files, file)
		}
		out.values = append(out.values, value)
		sb.WriteString(value)
		s = rest
	}
}

// resolve returns what one reference stands for, without the line end that
// files end with, and the file that it read.
func (w World) resolve(ref, dir string) (value, file string, err error) {
	kind, name, _ := strings.Cut(ref, ":")
	switch {
	case kind == "env" && name != "":
		if w.Env != nil {
			if v, ok := w.Env(name); ok {
				value = strings.TrimRight(v, "\r\n")
				break
			}
		}
		return "", "", fmt.Errorf("environment variable %s is not set", shorten(name))
	case kind == "file" && name != "":
		if file = name; !filepath.IsAbs(file) {
			file = filepath.Join(dir, file)
		}
		if w.File == nil {
			return "", "", fmt.Errorf("read %s: %w", file, os.ErrNotExist)
		}
		b, err := w.File(file)
		if err != nil {
			return "", "", err
		}
		if len(b) > maxReferenced {
			return "", "", fmt.Errorf("read %s: longer than 64 KiB", file)
		}
		value = strings.TrimRight(string(b), "\r\n")
	default:
		return "", "", errors.New("unknown reference; want ${env:NAME} or ${file:PATH}, or $${ for a literal ${")
	}
	if value == "" {
		return "", "", fmt.Errorf("%s %s is empty", kind, shorten(name))
	}
	return value, file, nil
}
