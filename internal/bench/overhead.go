package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"time"
)

// Overhead measures what a gateway adds to requests and takes of the machine.
// Gateway, engine and client share one machine; the engine answers at once.
type Overhead struct {
	// Gateway makes the command of a gateway in front of an engine.
	Gateway func(ctx context.Context, upstream, listen string) *exec.Cmd
	// Nginx is the path of an nginx to compare with. Empty compares with none.
	Nginx string
	// Rate is how many requests per second go through the gateway, and as many
	// directly to the engine. Default 200.
	Rate float64
	// Bodies are the sizes of the request bodies in bytes. Default 10 KB and 200 KB.
	Bodies []int
	// Duration is how long each cell is measured. Default 10 s.
	Duration time.Duration
	// Concurrent is the number of clients of the processor measurement. Default 64.
	Concurrent int
	// Say, when set, hears what is being measured.
	Say func(string)
}

// OverheadReport is the measurement; its JSON is stable.
type OverheadReport struct {
	Cells []OverheadCell `json:"cells"`
	CPU   []CPUCell      `json:"cpu"`
	// RSS is the largest of the cells' resident memories.
	RSS     float64  `json:"rss_mib,omitzero"`
	Skipped []string `json:"skipped,omitempty"` // what was not measured, and why
}

// OverheadCell compares requests through the gateway with requests that went
// directly to the engine a moment before or after.
type OverheadCell struct {
	BodyBytes int  `json:"body_bytes"`
	Stream    bool `json:"stream"`
	Pairs     int  `json:"pairs"`
	Failed    int  `json:"failed"`
	// Direct and Through are times to the first content of a stream, and to the
	// end of an answer in one piece.
	Direct  Summary `json:"direct_ms"`
	Through Summary `json:"through_ms"`
	// Added is the distribution of the pairs' differences.
	Added Summary `json:"added_ms"`
	// AddedToEnd is the same for the end of the answer.
	AddedToEnd Summary `json:"added_to_end_ms"`
	// RSS is the gateway's resident memory in MiB, the median over the cell.
	RSS float64 `json:"rss_mib,omitzero"`
}

// CPUCell compares processor time per request.
type CPUCell struct {
	BodyBytes int     `json:"body_bytes"`
	Stream    bool    `json:"stream"`
	Gateway   CPU     `json:"gateway"`
	Nginx     CPU     `json:"nginx,omitzero"`
	Ratio     float64 `json:"ratio,omitzero"`   // of the gateway's processor time to nginx's
	RSS       float64 `json:"rss_mib,omitzero"` // of the gateway, the median over the cell
}

// CPU is what a proxy needs at a number of concurrent clients.
type CPU struct {
	PerRequest float64 `json:"us_per_request"` // processor time in microseconds
	Rate       float64 `json:"requests_per_second"`
}

func (o *Overhead) defaults() {
	if o.Rate == 0 {
		o.Rate = 200
	}
	if len(o.Bodies) == 0 {
		o.Bodies = []int{10_000, 200_000}
	}
	if o.Duration == 0 {
		o.Duration = 10 * time.Second
	}
	if o.Concurrent == 0 {
		o.Concurrent = 64
	}
	if o.Say == nil {
		o.Say = func(string) {}
	}
}

// Run measures. It needs the machine for itself: whatever else runs shows in
// the numbers.
func (o Overhead) Run(ctx context.Context) (*OverheadReport, error) {
	o.defaults()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the stub engine: %w", err)
	}
	server := &http.Server{Handler: NewStub(), ReadHeaderTimeout: startTimeout}
	served := make(chan struct{})
	go func() {
		defer close(served)
		server.Serve(listener) //nolint:errcheck // it ends by Close
	}()
	defer func() {
		_ = server.Close() // it says nothing that matters now
		<-served
	}()
	engine := "http://" + listener.Addr().String()
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	gateway, err := startChild(ctx, o.Gateway(ctx, engine, addr), addr, "/readyz")
	if err != nil {
		return nil, err
	}
	defer gateway.stop()
	report := &OverheadReport{}
	if err := o.latencies(ctx, report, engine, gateway); err != nil {
		return nil, err
	}
	if err := o.processor(ctx, report, engine, gateway); err != nil {
		return nil, err
	}
	return report, nil
}

func (o *Overhead) latencies(ctx context.Context, report *OverheadReport, engine string, gateway *child) error {
	for _, size := range o.Bodies {
		for _, stream := range []bool{false, true} {
			o.Say(fmt.Sprintf("latency: %s bodies, %s", kilobytes(size), answerKind(stream)))
			bodies := probeBodies(size, stream)
			// Connections are opened and code paths warmed before the clock runs.
			o.pairs(ctx, engine, gateway.url, bodies, time.Second)
			memory := watchRSS(gateway.cmd.Process.Pid)
			cell := o.pairs(ctx, engine, gateway.url, bodies, o.Duration)
			cell.BodyBytes, cell.Stream, cell.RSS = size, stream, memory.median()
			report.Cells = append(report.Cells, cell)
			report.RSS = max(report.RSS, cell.RSS)
			if ctx.Err() != nil {
				return fmt.Errorf("measure latency: %w", context.Cause(ctx))
			}
		}
	}
	return nil
}

// pairs sends requests in pairs, one through the gateway and one to the engine,
// half an interval apart and each kind first in turn.
func (o *Overhead) pairs(ctx context.Context, engine, gateway string, bodies [][]byte, d time.Duration) OverheadCell {
	interval := seconds(1 / o.Rate)
	n := int(d / interval)
	through, direct := make([]probe, n), make([]probe, n)
	sends := make([]send, 0, 2*n)
	for i := range n {
		body := bodies[i%len(bodies)]
		first := send{time.Duration(i) * interval, gateway, body, &through[i]}
		second := send{first.at + interval/2, engine, body, &direct[i]}
		if i%2 == 1 {
			first.url, second.url = second.url, first.url
			first.probe, second.probe = second.probe, first.probe
		}
		sends = append(sends, first, second)
	}
	sendAll(ctx, sends)
	return compare(through, direct)
}

func compare(through, direct []probe) OverheadCell {
	var cell OverheadCell
	var d, t, added, toEnd Sample
	for i := range through {
		a, b := &through[i], &direct[i]
		if a.err != nil || b.err != nil {
			cell.Failed++
			continue
		}
		cell.Pairs++
		d.Add(b.first)
		t.Add(a.first)
		added.Add(a.first - b.first)
		toEnd.Add(a.end - b.end)
	}
	cell.Direct, cell.Through, cell.Added, cell.AddedToEnd = d.Summary(), t.Summary(), added.Summary(), toEnd.Summary()
	return cell
}

func (o *Overhead) processor(ctx context.Context, report *OverheadReport, engine string, gateway *child) error {
	if _, err := processCPU(gateway.cmd.Process.Pid); err != nil {
		report.Skipped = append(report.Skipped, "processor time and memory: "+err.Error())
		return nil
	}
	nginx, err := o.startNginx(ctx, engine)
	switch {
	case errors.Is(err, errNoNginx):
		report.Skipped = append(report.Skipped, "comparison with nginx: "+err.Error())
	case err != nil:
		return err
	default:
		defer nginx.stop()
	}
	for _, size := range o.Bodies {
		for _, stream := range []bool{false, true} {
			cell := CPUCell{BodyBytes: size, Stream: stream}
			bodies := probeBodies(size, stream)
			o.Say(fmt.Sprintf("processor: %s bodies, %s, %d clients", kilobytes(size), answerKind(stream), o.Concurrent))
			// In halves and turns, so that a machine that slows down slows both.
			for range 2 {
				memory := watchRSS(gateway.cmd.Process.Pid)
				err := o.load(ctx, &cell.Gateway, gateway, bodies)
				cell.RSS = max(cell.RSS, memory.median())
				if err != nil {
					return err
				}
				if nginx == nil {
					continue
				}
				if err := o.load(ctx, &cell.Nginx, nginx, bodies); err != nil {
					return err
				}
			}
			cell.finish()
			report.CPU = append(report.CPU, cell)
			report.RSS = max(report.RSS, cell.RSS)
		}
	}
	return nil
}

// load drives one proxy with closed-loop clients and adds its numbers to c,
// which is the mean of two calls in the end.
func (o *Overhead) load(ctx context.Context, c *CPU, proxy *child, bodies [][]byte) error {
	pid := proxy.cmd.Process.Pid
	if _, err := hammer(ctx, proxy.url, bodies, o.Concurrent, time.Second/2); err != nil {
		return fmt.Errorf("warm %s up: %w; it said:\n%s", proxy.cmd.Path, err, proxy.log.String())
	}
	before, err := processCPU(pid)
	if err != nil {
		return err
	}
	start := time.Now()
	n, err := hammer(ctx, proxy.url, bodies, o.Concurrent, o.Duration/4)
	if err != nil {
		return fmt.Errorf("load %s: %w; it said:\n%s", proxy.cmd.Path, err, proxy.log.String())
	}
	took := time.Since(start)
	after, err := processCPU(pid)
	if err != nil {
		return err
	}
	c.PerRequest += ratio(float64((after-before).Microseconds()), float64(n)) / 2
	c.Rate += float64(n) / took.Seconds() / 2
	return nil
}

func (c *CPUCell) finish() {
	c.Ratio = rounded(ratio(c.Gateway.PerRequest, c.Nginx.PerRequest), 2)
	for _, x := range []*CPU{&c.Gateway, &c.Nginx} {
		x.PerRequest, x.Rate = rounded(x.PerRequest, 1), rounded(x.Rate, 0)
	}
}
