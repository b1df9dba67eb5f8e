package bench

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"regexp"
	"strings"
	"testing"
)

// samplePage has every kind of table and chart.
func samplePage() *Page {
	curve := []CurvePoint{{0, 10, 0.1, 200, 1.5}, {10, 12, 0.6, 150, 1.2}, {20, 9, 0.7, 120, 1.1}}
	policy := func(name string, p50, hit float64) PolicyReport {
		return PolicyReport{
			PolicyResult: PolicyResult{
				Name: name, TTFT: Summary{P50: p50, P90: 2 * p50, P99: 3 * p50, Mean: 1.2 * p50},
				HitRate: HitRate{Actual: hit, Ceiling: 0.9}, SuccessRate: 1, Imbalance: 1.1, Requests: 31,
			},
			CDF: [][2]float64{{p50 / 2, 0}, {p50, 0.5}, {3 * p50, 1}}, Curve: curve,
		}
	}
	r := &Report{
		Title: `A <report> & "more"`, Seeds: []uint64{1, 2}, Skipped: []string{"nothing <b>bold</b>"},
		Cells: []CellReport{
			{Name: "slow", Workload: "rag", Engines: "2 x e", Rate: 1, Policies: []PolicyReport{policy("random", 900, 0.3), policy("cost", 300, 0.85)}},
			{Name: "fast", Workload: "rag", Engines: "2 x e", Rate: 2, Policies: []PolicyReport{policy("random", 1900, 0.25), policy("cost", 400, 0.8)}},
		},
		Means: []PolicyMeans{{Name: "cost", MeanTTFT: 350, P99TTFT: 1000, OverCost: 1, OverCostP99: 1, Worst: 1, Best: 2}},
		Knees: []Knee{{Name: "cost", Rate: 2, ObjectiveMS: 2000, Beyond: true}},
	}
	return r.Page()
}

func TestPage(t *testing.T) {
	var b bytes.Buffer
	if err := samplePage().Write(&b); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	golden(t, "page.html", page)
	// Nothing is fetched: no address of anything but the page itself.
	if bad := regexp.MustCompile(`(?i)https?:|//[a-z]|<script|<link|url\(|@import|src=`).FindString(page); bad != "" {
		t.Errorf("the page has %q", bad)
	}
	for _, text := range []string{"<report>", "<b>bold"} {
		if strings.Contains(page, text) {
			t.Errorf("%q is not escaped", text)
		}
	}
	for _, want := range []string{"P90 time to first token over the rate", "prefers-color-scheme:dark", "width=device-width", "over 2.00"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, svg := range regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(page, -1) {
		wellFormed(t, svg)
	}
}

// wellFormed checks that an SVG is XML whose numbers are numbers.
func wellFormed(t *testing.T, svg string) {
	t.Helper()
	if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
		t.Errorf("no numbers: %s", svg)
	}
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Errorf("%v in %s", err, svg)
			return
		}
	}
}

// Charts of what is missing, constant or extreme are still charts.
func TestPlotOddities(t *testing.T) {
	f := func(a plotAxes, points ...[2]float64) {
		t.Helper()
		wellFormed(t, string(plotLines(a, []plotSeries{{name: `<a & "b">`, points: points}})))
	}
	nan := math.NaN()
	f(plotAxes{}, [2]float64{1, 1}, [2]float64{1, 1})
	f(plotAxes{}, [2]float64{0, 0}, [2]float64{0, 0})
	f(plotAxes{logX: true}, [2]float64{0, 0.5}, [2]float64{-1, 1})
	f(plotAxes{logX: true, fixedY: true}, [2]float64{1e-9, 0.5}, [2]float64{1e9, 1})
	f(plotAxes{logX: true}, [2]float64{5, 0.5}, [2]float64{5, 1})
	f(plotAxes{}, [2]float64{0, nan}, [2]float64{1, 3}, [2]float64{2, nan}, [2]float64{3, 4})
	f(plotAxes{}, [2]float64{math.Inf(1), 1}, [2]float64{2, 1e300})
	wellFormed(t, string(plotBars("x", []plotBar{{name: "<&>", value: 1.5, mark: 2}, {name: "b", unsure: true, mark: -1}})))
}

func TestTicks(t *testing.T) {
	f := func(low, high float64, want string) {
		t.Helper()
		var text []string
		for _, x := range niceTicks(span{low, high}, 5) {
			text = append(text, shortNumber(x))
		}
		if got := strings.Join(text, " "); got != want {
			t.Errorf("%g to %g: %s; want %s", low, high, got, want)
		}
	}
	f(0, 1, "0 0.2 0.4 0.6 0.8 1")
	f(0, 7, "0 2 4 6 8")
	f(0, 123456, "0 50k 100k 150k")
	f(1.1, 1.4, "1.1 1.2 1.3 1.4")
}
