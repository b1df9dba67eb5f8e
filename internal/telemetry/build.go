package telemetry

import (
	"fmt"
	"io"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Doc describes one metric for people.
type Doc struct {
	Name   string   // with the warmroute_ prefix
	Type   string   // counter, gauge or histogram
	Labels []string // in the order of declaration
	Help   string
}

// namespace begins the name of every metric.
const namespace = "warmroute"

// builder registers metrics and remembers their documentation.
type builder struct {
	reg  prometheus.Registerer
	docs []Doc
}

func (b *builder) note(name, kind, help string, labels []string) string {
	full := namespace + "_" + name
	b.docs = append(b.docs, Doc{Name: full, Type: kind, Labels: labels, Help: help})
	return full
}

func (b *builder) counter(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: b.note(name, "counter", help, labels), Help: help}, labels)
	b.reg.MustRegister(v)
	return v
}

func (b *builder) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: b.note(name, "gauge", help, labels), Help: help}, labels)
	b.reg.MustRegister(v)
	return v
}

// histogram makes a histogram with both classic buckets, which every Prometheus
// reads, and a native one with buckets at most 10 % wide. There is no minimum
// reset duration: a full native histogram gets coarser, it never starts again,
// since that would reset the classic buckets and the count with it.
func (b *builder) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:                           b.note(name, "histogram", help, labels),
		Help:                           help,
		Buckets:                        buckets,
		NativeHistogramBucketFactor:    1.1,
		NativeHistogramMaxBucketNumber: 160,
	}, labels)
	b.reg.MustRegister(v)
	return v
}

// desc declares a metric whose value is read at scrape time.
func (b *builder) desc(kind, name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(b.note(name, kind, help, labels), help, labels, nil)
}

// WriteDocs writes the reference of all metrics as Markdown.
func (m *Metrics) WriteDocs(w io.Writer) error {
	var sb strings.Builder
	sb.WriteString(docsHead)
	for _, d := range m.docs {
		labels := "none"
		if len(d.Labels) > 0 {
			labels = "`" + strings.Join(d.Labels, "`, `") + "`"
		}
		fmt.Fprintf(&sb, "| `%s` | %s | %s | %s |\n", d.Name, d.Type, labels, d.Help)
	}
	sb.WriteString(docsTail)
	_, err := io.WriteString(w, sb.String())
	return err
}

const docsHead = "<!-- Written by `go test ./internal/telemetry -run TestDocs -update`; edit the code instead. -->\n" + `
# Metrics

The admin listener serves these at ` + "`/metrics`" + ` (default ` + "`http://127.0.0.1:9091/metrics`" + `), next to the
usual ` + "`go_*` and `process_*`" + ` series. Times are seconds, sizes are bytes. Histograms are both classic
and native.

Label values are bounded: ` + "`model`" + ` is a model that the configuration or an engine names, or
` + "`other`" + `; a client that invents 10,000 model names creates one series. No label carries text from a
request.

| name | type | labels | what it says |
| --- | --- | --- | --- |
`

const docsTail = `
## Questions and queries

KV cache hit rate, actual, weighted by tokens. The denominator counts only prompts of which the engine
said how much was cached, so engines that never report do not pull it down:

` + "```promql" + `
sum by (model) (rate(warmroute_cached_tokens_total[5m]))
  / sum by (model) (rate(warmroute_prompt_tokens_reported_total[5m]))
` + "```" + `

What routing could have had at best (available) and what it expected to get (predicted):

` + "```promql" + `
sum by (model) (rate(warmroute_cached_available_tokens_total[5m])) / sum by (model) (rate(warmroute_prompt_tokens_total[5m]))
sum by (model) (rate(warmroute_cached_predicted_tokens_total[5m])) / sum by (model) (rate(warmroute_prompt_tokens_total[5m]))
` + "```" + `

- *Available* is low: prompts have little in common; look for a timestamp or a UUID near the beginning.
- *Available* is high, *predicted* is low: the warm instances are busy; add capacity or look at the breakers.
- *Predicted* is high, *actual* is low: engines evict earlier than believed, or were flushed; see
  ` + "`warmroute_instance_capacity_blocks` and `warmroute_instance_flushes_total`" + `.

Share of requests that failed for a reason that is not the client's:

` + "```promql" + `
sum(rate(warmroute_requests_total{class!~"served|client|client_gone"}[5m])) / sum(rate(warmroute_requests_total[5m]))
` + "```" + `

P90 of time to first token, from the native histogram:

` + "```promql" + `
histogram_quantile(0.9, sum by (model) (rate(warmroute_ttft_seconds[5m])))
` + "```" + `
`
