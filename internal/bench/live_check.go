package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/metrics"
	"strings"
)

// FirstModel asks a target for its models and returns the first.
func FirstModel(ctx context.Context, client *http.Client, t Target) (string, error) {
	address := strings.TrimSuffix(t.chatURL(), "/chat/completions") + "/models"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", fmt.Errorf("make request: %w", err)
	}
	if t.Key != "" {
		request.Header.Set("Authorization", "Bearer "+t.Key)
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %d", response.StatusCode)
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxEvent)).Decode(&list); err != nil {
		return "", fmt.Errorf("read models: %w", err)
	}
	if len(list.Data) == 0 || list.Data[0].ID == "" {
		return "", errors.New("it lists no model")
	}
	return list.Data[0].ID, nil
}

// Saturation watches whether this program keeps up with its own load: what it
// measures includes the time that its goroutines wait for a processor.
type Saturation struct{ before *metrics.Float64Histogram }

// schedLatency is the runtime's histogram of how long goroutines were runnable
// before they ran, in seconds.
const schedLatency = "/sched/latencies:seconds"

// WatchSaturation starts to watch.
func WatchSaturation() Saturation { return Saturation{readSchedLatency()} }

func readSchedLatency() *metrics.Float64Histogram {
	sample := []metrics.Sample{{Name: schedLatency}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindFloat64Histogram {
		return &metrics.Float64Histogram{}
	}
	return sample[0].Value.Float64Histogram()
}

// Bounds over which a client's own delays show in what it measures.
const (
	saturatedLateMS = 20
	saturatedWaitMS = 2
)

// Warnings says what makes the results doubtful.
func (s Saturation) Warnings(results []*LiveResult) []string {
	out := []string{}
	if ms := 1000 * s.wait(0.99); ms > saturatedWaitMS {
		out = append(out, fmt.Sprintf("this client is short of processors: one in a hundred of its steps waited %.0f ms or more for one; use fewer requests or a larger machine", ms))
	}
	for _, r := range results {
		if r.Client.LateP99 > saturatedLateMS {
			out = append(out, fmt.Sprintf("%s: one in a hundred requests left %.0f ms late or more; the load was not as even as asked for", r.Name, r.Client.LateP99))
		}
		if c := r.HitRate.Coverage; r.HitRate.Actual == nil && r.SuccessRate > 0 {
			out = append(out, r.Name+": no answer reports cached tokens, so its hit rate is unknown (vLLM reports them with --enable-prompt-tokens-details)")
		} else if c > 0 && c < 0.5 {
			out = append(out, fmt.Sprintf("%s: only %.0f %% of answers report cached tokens; the others of the same instances count as 0", r.Name, 100*c))
		}
	}
	return out
}

// wait is the q-quantile of waits for a processor since the watch began, in
// seconds.
func (s Saturation) wait(q float64) float64 {
	now := readSchedLatency()
	counts := make([]uint64, len(now.Counts))
	total := uint64(0)
	for i, n := range now.Counts {
		if i < len(s.before.Counts) {
			n -= s.before.Counts[i]
		}
		counts[i] = n
		total += n
	}
	sum := uint64(0)
	for i, n := range counts {
		sum += n
		if total > 0 && float64(sum) >= q*float64(total) {
			return max(now.Buckets[i], 0) // -Inf bounds the first bucket
		}
	}
	return 0
}
