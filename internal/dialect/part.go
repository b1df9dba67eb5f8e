package dialect

import "github.com/warmroute/warmroute/internal/prompt"

// content reads the content of a message: a string, a list of parts, or
// nothing. The parts go to d.parts.
func (d *decoder) content() {
	if s, ok := d.text(); ok {
		if s != "" {
			d.addText(s)
		}
		return
	}
	switch d.peek() {
	case '[':
		for range d.elements {
			if !d.spent() {
				d.part()
			}
		}
	case 'n':
	default:
		d.call.Unknown++
	}
}

func (d *decoder) addText(s string) {
	d.parts = append(d.parts, prompt.Part{Kind: prompt.Text, Text: s})
}

// wirePart is a content part of any of the APIs. Its members may stand in any
// order, so all are read before the type is looked at.
type wirePart struct {
	kind string
	text string // text, refusal or thinking
	url  string // of media, by URL or id
	data string // of media, bare base64
	uuid string // vLLM: names media that the engine may hold already
}

// part reads one content part. A bare string is a text.
func (d *decoder) part() {
	if s, ok := d.text(); ok {
		d.addText(s)
		return
	}
	d.peek()
	from := d.i
	var w wirePart
	for key := range d.members {
		d.partMember(&w, key)
	}
	kind := partKind(&w)
	if d.i == from {
		d.skip()
	}
	if d.fault.set {
		return
	}
	p := prompt.Part{Kind: kind, Text: w.text}
	switch kind {
	case prompt.Image, prompt.Audio, prompt.Video, prompt.File:
		p.Text = w.ref()
	case prompt.Unknown:
		d.call.Unknown++
		p.Text = view(d.b[from:d.i])
	default: // its text is the part
	}
	d.parts = append(d.parts, p)
}

func (d *decoder) partMember(w *wirePart, key string) {
	switch key {
	case "type":
		w.kind, _ = d.text()
	case "text", "refusal", "thinking":
		if s, ok := d.text(); ok {
			w.text = s
		}
	case "image_url", "audio_url", "video_url", "input_audio", "file":
		d.media(w)
	case "uuid":
		w.uuid, _ = d.text()
	default:
		d.mediaMember(w, key)
	}
}

// media reads where a picture, sound or file is: a URL, or an object of it.
func (d *decoder) media(w *wirePart) {
	if s, ok := d.text(); ok {
		w.url = s
		return
	}
	for key := range d.members {
		d.mediaMember(w, key)
	}
}

func (d *decoder) mediaMember(w *wirePart, key string) {
	switch key {
	case "url", "file_id", "file_url":
		if s, ok := d.text(); ok && s != "" {
			w.url = s
		}
	case "data":
		w.data, _ = d.text()
	case "file_data": // a data: URL in some clients, bare base64 in others
		if s, ok := d.text(); ok {
			w.url = s
		}
	}
}

// ref names the media: by the client's own name for its content, by content,
// or by URL.
func (w *wirePart) ref() string {
	switch {
	case w.uuid != "":
		return "uuid:" + w.uuid
	case w.data != "":
		return prompt.MediaData(w.data)
	}
	return prompt.MediaRef(w.url)
}

// partKind says what a part is by its type, and by its members where it has
// none.
func partKind(w *wirePart) prompt.PartKind {
	switch w.kind {
	case "text", "input_text", "output_text", "refusal":
		return prompt.Text
	case "thinking", "reasoning", "reasoning_text", "summary_text":
		return prompt.Reasoning
	case "image_url", "input_image", "image":
		return prompt.Image
	case "input_audio", "audio_url", "audio":
		return prompt.Audio
	case "video_url", "input_video", "video":
		return prompt.Video
	case "file", "input_file":
		return prompt.File
	case "":
		if w.text != "" {
			return prompt.Text
		}
	}
	return prompt.Unknown
}
