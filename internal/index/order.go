package index

// unlink takes a run out of the order of use.
func (t *tree) unlink(at ref, r *run) {
	if t.cursor == at {
		t.cursor = r.newer()
	}
	if n := r.newer(); n != 0 {
		t.run(n).setOlder(r.older())
	} else {
		t.newest = r.older()
	}
	if o := r.older(); o != 0 {
		t.run(o).setNewer(r.newer())
	} else {
		t.oldest = r.newer()
	}
}

// pushNewest puts a run that is not in the order at its new end.
func (t *tree) pushNewest(at ref, r *run) {
	r.setNewer(0)
	r.setOlder(t.newest)
	if t.newest != 0 {
		t.run(t.newest).setNewer(at)
	} else {
		t.oldest = at
	}
	t.newest = at
}

// pushOldest puts a run that is not in the order at its old end.
func (t *tree) pushOldest(at ref, r *run) {
	r.setOlder(0)
	r.setNewer(t.oldest)
	if t.oldest != 0 {
		t.run(t.oldest).setOlder(at)
	} else {
		t.newest = at
	}
	t.oldest = at
}

// linkBefore puts a run that is not in the order right at the newer side of another.
func (t *tree) linkBefore(at ref, r *run, other ref, o *run) {
	n := o.newer()
	r.setNewer(n)
	r.setOlder(other)
	o.setNewer(at)
	if n != 0 {
		t.run(n).setOlder(at)
	} else {
		t.newest = at
	}
}

// use makes a run the newest.
func (t *tree) use(at ref) {
	if t.newest != at {
		r := t.run(at)
		t.unlink(at, r)
		t.pushNewest(at, r)
	}
}
