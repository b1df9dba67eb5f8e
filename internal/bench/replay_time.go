package bench

import (
	"math"
	"time"

	"github.com/tidwall/gjson"
)

// timePaths are where logs tell when a request came.
var timePaths = []string{"timestamp", "startTime", "start_time", "request_time", "created_at", "created", "time", "ts", "@timestamp"}

// timeLayouts are the forms of times as text.
var timeLayouts = []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999", "2006-01-02 15:04:05.999999999-07:00"}

// logTime is when a request came, in milliseconds of whatever epoch the log has.
// Numbers are seconds unless they are too large for that: 1e11 seconds is the
// year 5138, 1e11 milliseconds is 1973.
func logTime(doc gjson.Result) (ms int64, ok bool) {
	for _, path := range timePaths {
		v := doc.Get(path)
		switch v.Type {
		case gjson.Number:
			x := v.Float()
			if !(x >= 0 && x < 1e19) {
				continue
			}
			switch {
			case x < 1e11:
				x *= 1000
			case x >= 1e17: // nanoseconds
				x /= 1e6
			case x >= 1e14: // microseconds
				x /= 1e3
			}
			return int64(math.Round(x)), true
		case gjson.String:
			for _, layout := range timeLayouts {
				if t, err := time.Parse(layout, v.String()); err == nil && t.Year() >= 1970 && t.Year() < 3000 {
					return t.UnixMilli(), true
				}
			}
		default:
		}
	}
	return 0, false
}
