package bench

import (
	"embed"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

//go:embed corpus/*.txt
var corpusFiles embed.FS

// Language names one of the corpora that ship with the program.
type Language string

// The languages with a corpus of their own.
const (
	English Language = "en"
	Chinese Language = "zh"
)

// Corpus composes documents and questions about invented subjects from a small
// set of passages. The same language, number and length give the same text.
type Corpus struct {
	language Language
	lists    map[string][]string // of the file's sections, "text" and "question" among them
}

// NewCorpus reads the embedded corpus of a language.
func NewCorpus(l Language) (*Corpus, error) {
	file, err := corpusFiles.ReadFile("corpus/" + string(l) + ".txt")
	if err != nil {
		return nil, fmt.Errorf("corpus %q: there are %q and %q", l, English, Chinese)
	}
	c := &Corpus{language: l, lists: map[string][]string{}}
	section := ""
	for line := range strings.Lines(string(file)) {
		line = strings.TrimSpace(line)
		name, heading := strings.CutPrefix(line, "== ")
		switch {
		case heading:
			section = name
		case line != "":
			c.lists[section] = append(c.lists[section], line)
		}
	}
	return c, nil
}

// Document composes document number n with about the given number of bytes,
// cut at a character's border. Different numbers differ from the first line on.
func (c *Corpus) Document(n, bytes int) string {
	r := rand.New(rand.NewPCG(uint64(n), 0x77617264))
	words := map[string]string{"subject": pick(r, c.lists["subject"])}
	var b strings.Builder
	b.Grow(bytes + 4096)
	fmt.Fprintf(&b, c.title(), n+1, words["subject"])
	order := r.Perm(len(c.lists["text"]))
	for section := 0; b.Len() < bytes; section++ {
		if section > 0 && section%len(order) == 0 {
			order = r.Perm(len(order))
		}
		fmt.Fprintf(&b, "%d. ", section+1)
		c.fill(&b, r, c.lists["text"][order[section%len(order)]], words)
		b.WriteString("\n\n")
	}
	return strings.ToValidUTF8(b.String()[:bytes], "")
}

// Question is question number n; a number in it keeps any two apart.
func (c *Corpus) Question(n int) string {
	r := rand.New(rand.NewPCG(uint64(n), 0x71756573))
	list := c.lists["question"]
	first := r.IntN(len(list))
	second := (first + 1 + r.IntN(len(list)-1)) % len(list)
	if c.language == Chinese {
		return fmt.Sprintf("问题%d：%s另外，%s", n+1, list[first], list[second])
	}
	return fmt.Sprintf("Question %d: %s Also: %s", n+1, list[first], list[second])
}

// System is the system text in front of every document.
func (c *Corpus) System() string {
	if c.language == Chinese {
		return "你是一位严谨的资料员。只根据下面的资料回答问题，引用所依据的章节编号；资料里没有的内容，请直接说明没有。回答要简短。"
	}
	return "You are a careful archivist. Answer from the document below and from nothing else, name the sections that you rely on, " +
		"and say so plainly when the document does not contain the answer. Keep answers short."
}

func (c *Corpus) title() string {
	if c.language == Chinese {
		return "资料第%d卷：%s\n\n"
	}
	return "Volume %d: %s\n\n"
}

// fill writes a passage with its {placeholders} replaced. {subject} is the
// document's; {n} and {year} are numbers; any other name is drawn from the list
// of that name.
func (c *Corpus) fill(b *strings.Builder, r *rand.Rand, passage string, words map[string]string) {
	for {
		before, rest, found := strings.Cut(passage, "{")
		b.WriteString(before)
		if !found {
			return
		}
		name, after, _ := strings.Cut(rest, "}")
		switch word, fixed := words[name]; {
		case fixed:
			b.WriteString(word)
		case name == "n":
			b.WriteString(strconv.Itoa(2 + r.IntN(96)))
		case name == "year":
			b.WriteString(strconv.Itoa(1610 + r.IntN(320)))
		default:
			b.WriteString(pick(r, c.lists[name]))
		}
		passage = after
	}
}

func pick(r *rand.Rand, list []string) string { return list[r.IntN(len(list))] }
