package index

import (
	"fmt"
	"time"

	"github.com/warmroute/warmroute/prefix"
)

// Config holds the settings of an index.
type Config struct {
	// BlockBytes is the size of a block of the canonical prompt. Chains of another size must not enter the index. Zero means
	// 256 bytes.
	BlockBytes int `yaml:"block_bytes"`
	// Memory caps the bytes that the index takes from the heap, at every moment. The prompts used longest ago are forgotten to
	// stay below it. Zero means 256 MiB, which is 1.2 million distinct prompts of 1,000 tokens.
	Memory int64 `yaml:"memory"`
	// Snapshot is the file that the index is saved to and loaded from, so that a restarted gateway is not cold. Empty means none.
	Snapshot string `yaml:"snapshot"`
	// SnapshotEvery is the time between two saves. Zero means to save at shutdown only. Default 1m.
	SnapshotEvery time.Duration `yaml:"snapshot_every"`
}

const (
	defaultMemory = 256 << 20
	// minMemory leaves room for one page of each of the dozen size classes that ordinary traffic uses.
	minMemory = 4 << 20
	// maxMemory is what 32-bit references to 8-byte words can address.
	maxMemory = 32 << 30
	// minBlockBytes is about 4 tokens: below it, hashes cost more than the prompt's own bytes.
	minBlockBytes = 16
	maxBlockBytes = 1 << 20
)

// Default is the configuration that is used where a file says nothing.
func Default() Config {
	return Config{BlockBytes: prefix.DefaultBlockBytes, Memory: defaultMemory, SnapshotEvery: time.Minute}
}

// Validate returns every fault of the settings.
func (c Config) Validate() []error {
	var errs []error
	if c.BlockBytes != 0 && (c.BlockBytes < minBlockBytes || c.BlockBytes > maxBlockBytes) {
		errs = append(errs, fmt.Errorf("block_bytes %d: must be 0 (default) or between %d and %d", c.BlockBytes, minBlockBytes, maxBlockBytes))
	}
	if c.Memory != 0 && (c.Memory < minMemory || c.Memory > maxMemory) {
		errs = append(errs, fmt.Errorf("memory %d: must be 0 (default) or between 4 MiB and 32 GiB", c.Memory))
	}
	if c.SnapshotEvery < 0 {
		errs = append(errs, fmt.Errorf("snapshot_every %v: must not be negative", c.SnapshotEvery))
	}
	return errs
}

// withDefaults replaces zero values, and brings impossible ones into range.
func (c Config) withDefaults() Config {
	if c.BlockBytes <= 0 {
		c.BlockBytes = prefix.DefaultBlockBytes
	}
	if c.Memory <= 0 {
		c.Memory = defaultMemory
	}
	c.Memory = min(max(c.Memory, minMemory), maxMemory)
	return c
}
