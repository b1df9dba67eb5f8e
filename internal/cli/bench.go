package cli

// BenchCmd measures: what routing gains and what the gateway costs.
type BenchCmd struct {
	Sim      BenchSimCmd      `cmd:"" help:"Compare policies over simulated engines in virtual time."`
	Live     BenchLiveCmd     `cmd:"" help:"Measure running gateways or engines over HTTP."`
	Overhead BenchOverheadCmd `cmd:"" help:"Measure what the gateway adds to a request, and what it takes of the machine."`
}
