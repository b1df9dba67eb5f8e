package bench

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strconv"
	"strings"
)

// Geometry of a chart in its own units. It is narrow, so that text stays
// readable where the chart fills a telephone's width.
const (
	plotWidth, plotHeight = 360, 230
	plotLeft, plotRight   = 46, 10
	plotTop, plotBottom   = 10, 38
	plotMaxPoints         = 240 // of a line: more than there are pixels for say nothing
)

// plotSeries is one line.
type plotSeries struct {
	name   string
	color  int
	points [][2]float64
}

// plotAxes says how a chart is drawn. Logarithmic x leaves out what is not
// positive.
type plotAxes struct {
	title, x, y string
	logX        bool
	fixedY      bool // from 0 to 1, in percent
	floorY      float64
}

// span is a range of an axis.
type span struct{ low, high float64 }

func (s *span) take(x float64) {
	s.low, s.high = min(s.low, x), max(s.high, x)
}

// plotLines draws lines as SVG.
func plotLines(a plotAxes, series []plotSeries) template.HTML {
	xs, ys := span{math.Inf(1), math.Inf(-1)}, span{a.floorY, a.floorY}
	for _, s := range series {
		for _, p := range s.points {
			if a.visible(p) {
				xs.take(p[0])
				ys.take(p[1])
			}
		}
	}
	if math.IsInf(xs.low, 0) {
		return ""
	}
	if xs.high <= xs.low {
		xs.high = xs.low + max(math.Abs(xs.low), 1)
	}
	if a.fixedY {
		ys = span{0, 1}
	}
	if ys.high <= ys.low {
		ys.high = ys.low + 1
	}
	yTicks := niceTicks(ys, 5)
	ys.high = max(ys.high, yTicks[len(yTicks)-1])
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %d %d" role="img" aria-label="%s">`, plotWidth, plotHeight, html.EscapeString(a.title))
	a.frame(&b, xs, ys, yTicks)
	for _, s := range series {
		a.line(&b, s, xs, ys)
	}
	b.WriteString("</svg>")
	return template.HTML(b.String()) //nolint:gosec // every text in it is escaped above
}

func (a *plotAxes) visible(p [2]float64) bool {
	return !math.IsNaN(p[0]) && !math.IsNaN(p[1]) && !math.IsInf(p[0], 0) && !math.IsInf(p[1], 0) && (!a.logX || p[0] > 0)
}

// atX places a value.
func (a *plotAxes) atX(x float64, s span) float64 {
	share := (x - s.low) / (s.high - s.low)
	if a.logX {
		share = math.Log(x/s.low) / math.Log(s.high/s.low)
	}
	return plotLeft + share*(plotWidth-plotLeft-plotRight)
}

func atY(y float64, s span) float64 {
	return plotTop + (1-(y-s.low)/(s.high-s.low))*(plotHeight-plotTop-plotBottom)
}

// frame draws axes, ticks and grid.
func (a *plotAxes) frame(b *strings.Builder, xs, ys span, yTicks []float64) {
	for _, y := range yTicks {
		at := atY(y, ys)
		text := shortNumber(y)
		if a.fixedY {
			text = shortNumber(100*y) + " %"
		}
		fmt.Fprintf(b, `<path class="grid" d="M%d %.1fH%d"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`,
			plotLeft, at, plotWidth-plotRight, plotLeft-5, at+3.5, text)
	}
	ticks := niceTicks(xs, 5)
	if a.logX {
		ticks = logTicks(xs)
	}
	last := -100.0
	for _, x := range ticks {
		at := a.atX(x, xs)
		if at < plotLeft-1 || at > plotWidth-plotRight+1 || at-last < 34 {
			continue
		}
		last = at
		fmt.Fprintf(b, `<path class="grid" d="M%.1f %dV%d"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`,
			at, plotTop, plotHeight-plotBottom, at, plotHeight-plotBottom+13, shortNumber(x))
	}
	fmt.Fprintf(b, `<text class="axis" x="%d" y="%d" text-anchor="middle">%s</text>`,
		(plotLeft+plotWidth-plotRight)/2, plotHeight-6, html.EscapeString(a.x))
	if a.y != "" {
		fmt.Fprintf(b, `<text class="axis" transform="rotate(-90)" x="%d" y="10" text-anchor="middle">%s</text>`,
			-(plotTop+plotHeight-plotBottom)/2, html.EscapeString(a.y))
	}
}

// line draws one series, thinned to what can be seen.
func (a *plotAxes) line(b *strings.Builder, s plotSeries, xs, ys span) {
	every := max((len(s.points)+plotMaxPoints-1)/plotMaxPoints, 1)
	fmt.Fprintf(b, `<path class="line c%d" d="`, s.color)
	pen := "M"
	for i, p := range s.points {
		if !a.visible(p) {
			pen = "M" // a gap in what is known is a gap in the line
			continue
		}
		if i%every == 0 || i == len(s.points)-1 {
			fmt.Fprintf(b, "%s%.1f %.1f", pen, a.atX(p[0], xs), atY(p[1], ys))
			pen = "L"
		}
	}
	fmt.Fprintf(b, `"><title>%s</title></path>`, html.EscapeString(s.name))
}

// plotBar is a share with the most that it could be; mark below 0 draws none.
type plotBar struct {
	name   string
	color  int
	value  float64
	mark   float64
	unsure bool // the value is unknown
}

// Geometry of a bar chart.
const (
	barHeight = 26
	barTop    = 6
)

// plotBars draws shares from 0 to 1 as bars, each with its mark.
func plotBars(title string, bars []plotBar) template.HTML {
	const width = plotWidth - 2*plotRight
	height := barTop + barHeight*len(bars) + 4
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %d %d" role="img" aria-label="%s">`, plotWidth, height, html.EscapeString(title))
	for i, bar := range bars {
		y := barTop + i*barHeight
		text := fmt.Sprintf("%.1f %%", 100*bar.value)
		if bar.unsure {
			text = "unknown"
		}
		fmt.Fprintf(&b, `<text x="%d" y="%d">%s</text><text x="%d" y="%d" text-anchor="end">%s</text>`,
			plotRight, y+9, html.EscapeString(bar.name), plotWidth-plotRight, y+9, text)
		fmt.Fprintf(&b, `<rect class="rail" x="%d" y="%d" width="%d" height="8"/>`, plotRight, y+12, width)
		fmt.Fprintf(&b, `<rect class="bar c%d" x="%d" y="%d" width="%.1f" height="8"/>`, bar.color, plotRight, y+12, width*min(max(bar.value, 0), 1))
		if bar.mark >= 0 {
			at := plotRight + width*min(bar.mark, 1)
			fmt.Fprintf(&b, `<path class="mark" d="M%.1f %dv12"><title>ceiling %.1f %%</title></path>`, at, y+10, 100*bar.mark)
		}
	}
	b.WriteString("</svg>")
	return template.HTML(b.String()) //nolint:gosec // every text in it is escaped above
}

// niceTicks are about n round values that cover a range.
func niceTicks(s span, n int) []float64 {
	step := math.Pow(10, math.Floor(math.Log10((s.high-s.low)/float64(n))))
	for _, f := range []float64{1, 2, 5, 10} {
		if (s.high-s.low)/(step*f) <= float64(n) {
			step *= f
			break
		}
	}
	var out []float64
	for i := math.Floor(s.low / step); ; i++ {
		out = append(out, i*step)
		if i*step >= s.high-step*1e-9 {
			return out
		}
	}
}

// logTicks are 1, 2 and 5 times powers of ten within a range.
func logTicks(s span) []float64 {
	var out []float64
	for e := math.Floor(math.Log10(s.low)); e <= math.Ceil(math.Log10(s.high)); e++ {
		for _, f := range []float64{1, 2, 5} {
			if x := f * math.Pow(10, e); x >= s.low && x <= s.high {
				out = append(out, x)
			}
		}
	}
	return out
}

// shortNumber writes a number for an axis.
func shortNumber(x float64) string {
	switch m := math.Abs(x); {
	case m < 1e-12:
		return "0"
	case m >= 1e9:
		return strconv.FormatFloat(x/1e9, 'g', 4, 64) + "G"
	case m >= 1e6:
		return strconv.FormatFloat(x/1e6, 'g', 4, 64) + "M"
	case m >= 1e4:
		return strconv.FormatFloat(x/1e3, 'g', 4, 64) + "k"
	}
	return strconv.FormatFloat(x, 'g', 4, 64)
}
