package cli

// BenchCmd measures: what routing gains and what the gateway costs.
type BenchCmd struct {
	Overhead BenchOverheadCmd `cmd:"" help:"Measure what the gateway adds to a request, and what it takes of the machine."`
}
