package dialect

// prompts reads the member prompt. Responses has an object of that name, which
// is a stored prompt and no text.
func (d *decoder) prompts(wanted bool) {
	if wanted {
		d.sequences()
	} else if d.peek() == '{' && d.call.Kind == Responses {
		d.call.Unknown++
	}
}

// sequences reads what completions and embeddings take: one string, several,
// one list of token ids, or several.
func (d *decoder) sequences() {
	p := &d.call.Prompt
	if s, ok := d.text(); ok {
		p.Raw = append(p.Raw, s)
		return
	}
	if d.peek() != '[' {
		d.call.Unknown++
		return
	}
	var ids []int
	for range d.elements {
		// A list of ids is one sequence, however long.
		if id, ok := d.integer(); ok {
			ids = d.addID(ids, id)
			continue
		}
		if d.spent() {
			continue
		}
		if s, ok := d.text(); ok {
			p.Raw = append(p.Raw, s)
		} else if d.peek() == '[' {
			p.Tokens = append(p.Tokens, d.tokens())
		} else {
			d.call.Unknown++
		}
	}
	if ids != nil {
		p.Tokens = append(p.Tokens, ids)
	}
}

// tokens reads a list of token ids.
func (d *decoder) tokens() []int {
	var ids []int
	for range d.elements {
		if id, ok := d.integer(); ok {
			ids = d.addID(ids, id)
		} else {
			d.call.Unknown++
		}
	}
	return ids
}

// addID appends a token id, unless there are too many.
func (d *decoder) addID(ids []int, id int) []int {
	if d.ids == maxIDs {
		d.call.Unknown++
		return ids
	}
	d.ids++
	return append(ids, id)
}

// compared reads what rerank and score compare: query and documents, or
// text_1 and text_2. In a chat, documents are what the template puts in.
func (d *decoder) compared(f field) {
	switch k := d.call.Kind; {
	case k == Chat && f == fieldDocuments:
		d.template.documents = d.raw()
	case k != Rerank && k != Score:
	case f == fieldQuery || f == fieldQueries || f == fieldText1:
		d.query = d.texts(d.query)
	default:
		d.docs = d.texts(d.docs)
	}
}

// texts appends the texts of a string, an object with a text, or a list of them.
func (d *decoder) texts(list []string) []string {
	if s, ok := d.text(); ok {
		return append(list, s)
	}
	switch d.peek() {
	case '[':
		for range d.elements {
			if !d.spent() {
				list = d.texts(list)
			}
		}
	case '{':
		list = append(list, d.document())
	default:
		d.call.Unknown++
	}
	return list
}

// document reads a document that is an object: its text, else all of it.
func (d *decoder) document() string {
	from := d.i
	text, plain := "", false
	for key := range d.members {
		if key == "text" {
			text, plain = d.text()
		}
	}
	if plain || d.fault.set {
		return text
	}
	d.call.Unknown++
	return view(d.b[from:d.i])
}
