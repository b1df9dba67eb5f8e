package index

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// SaveFile writes a snapshot to a file: to a new one beside it first, which then takes its place, so that there is a whole snapshot
// at the path at every moment. See [Index.Save].
func (x *Index) SaveFile(path string) (err error) {
	dir, base := filepath.Split(path)
	f, err := os.CreateTemp(filepath.Clean(dir+"."), base+".*.tmp")
	if err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if err := errors.Join(x.Save(f), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes a rename in a directory last. Systems that can't sync a directory keep it anyway.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	defer d.Close()
	_ = d.Sync()
	return nil
}

// LoadFile fills an empty index from a file that [Index.SaveFile] wrote. When there is none, the error is [io/fs.ErrNotExist]. See
// [Index.Load].
func (x *Index) LoadFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("load snapshot: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("load snapshot: %w", err)
	}
	if err := x.load(f, info.Size()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
