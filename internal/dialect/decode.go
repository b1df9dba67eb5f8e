package dialect

import "errors"

// Decode reads the request body of an API. The error is an *Error with status 400.
func Decode(k Kind, body []byte) (*Call, error) { return nil, errors.New("not yet") }
