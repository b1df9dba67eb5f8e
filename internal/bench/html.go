package bench

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
)

//go:embed html.tmpl
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// Page is a report as one HTML file that fetches nothing: charts are SVG inside
// it. It reads in light and dark, and on a telephone.
type Page struct {
	Title    string
	Lead     []string // paragraphs
	Warnings []string
	Sections []PageSection

	colors map[string]int // of series by name, the same all over the page
}

// PageSection is a heading with its tables and charts.
type PageSection struct {
	Title  string
	About  string
	Tables []PageTable
	Charts []PageChart
}

// PageTable is a table. Cells are text; columns after the first are numbers.
type PageTable struct {
	Caption string
	Head    []string
	Rows    [][]string
}

// PageChart is a chart with its caption. Without anything to draw it is left out.
type PageChart struct {
	Title  string
	SVG    template.HTML
	Legend []LegendEntry
}

// LegendEntry is the name and color number of a series.
type LegendEntry struct {
	Name  string
	Color int
}

// Write writes the page.
func (p *Page) Write(w io.Writer) error {
	if err := pageTemplate.Execute(w, p); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}

// pageColors is how many colors the style sheet has.
const pageColors = 8

// color is the number of a name's color.
func (p *Page) color(name string) int {
	if p.colors == nil {
		p.colors = map[string]int{}
	}
	n, ok := p.colors[name]
	if !ok {
		n = len(p.colors) % pageColors
		p.colors[name] = n
	}
	return n
}

// lines adds a chart of lines to a section, unless there is nothing to draw.
func (p *Page) lines(s *PageSection, title string, axes plotAxes, series []plotSeries) {
	series = slices.DeleteFunc(series, func(l plotSeries) bool { return len(l.points) < 2 })
	if len(series) == 0 {
		return
	}
	chart := PageChart{Title: title}
	for i := range series {
		series[i].color = p.color(series[i].name)
		chart.Legend = append(chart.Legend, LegendEntry{series[i].name, series[i].color})
	}
	axes.title = title
	chart.SVG = plotLines(axes, series)
	s.Charts = append(s.Charts, chart)
}

// bars adds a chart of bars from 0 to 1.
func (p *Page) bars(s *PageSection, title string, bars []plotBar) {
	if len(bars) == 0 {
		return
	}
	for i := range bars {
		bars[i].color = p.color(bars[i].name)
	}
	s.Charts = append(s.Charts, PageChart{Title: title, SVG: plotBars(title, bars)})
}

// sortedKeys are the keys of a map in order: what is printed must not change
// from run to run.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
