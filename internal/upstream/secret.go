package upstream

import (
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// redacted stands wherever a secret would.
const redacted = "[redacted]"

// Secret is a credential that does not print: fmt (all verbs), slog, JSON, YAML
// and text encodings of it, alone or inside other values, show a placeholder.
// The zero Secret is empty. Compare with [Secret.Equal], not ==.
type Secret struct {
	// v is a pointer because fmt cannot call methods on unexported fields of a
	// struct that holds a Secret, and would print a plain string there; of a
	// pointer below the top level it prints the address.
	v *string
}

// NewSecret returns value as a Secret. Surrounding white space is removed: files
// end with a line end, headers must not.
func NewSecret(value string) Secret {
	value = strings.TrimSpace(value)
	if value == "" {
		return Secret{}
	}
	return Secret{v: &value}
}

// Reveal returns the secret itself. Its only uses are building a header and
// redacting.
func (s Secret) Reveal() string {
	if s.v == nil {
		return ""
	}
	return *s.v
}

// IsZero reports whether the secret is empty.
func (s Secret) IsZero() bool { return s.v == nil }

// Equal reports whether both hold the same value, in time that does not depend
// on where they differ.
func (s Secret) Equal(o Secret) bool {
	return subtle.ConstantTimeCompare([]byte(s.Reveal()), []byte(o.Reveal())) == 1
}

// String returns the placeholder, or "" when the secret is empty.
func (s Secret) String() string {
	if s.v == nil {
		return ""
	}
	return redacted
}

// Format prints the placeholder for every verb and flag.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// MarshalText encodes the placeholder; it serves JSON, YAML and map keys too.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue returns the placeholder.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

var (
	_ fmt.Formatter  = Secret{}
	_ slog.LogValuer = Secret{}
)
