package dialect

import "errors"

// SetModel returns body with its model replaced.
func SetModel(body []byte, model string) ([]byte, error) { return nil, errors.New("not yet") }

// AskUsage returns body with stream_options.include_usage set to true.
func AskUsage(body []byte) ([]byte, error) { return nil, errors.New("not yet") }
