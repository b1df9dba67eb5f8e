package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/warmroute/warmroute/internal/bench"
)

// writePage writes a report's page to a file.
func writePage(path string, p *bench.Page) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("--html: %w", err)
	}
	if err := errors.Join(p.Write(f), f.Close()); err != nil {
		return fmt.Errorf("--html: write %s: %w", path, err)
	}
	return nil
}
