package prefix_test

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/warmroute/warmroute/prefix"
)

// Two prompts with the same system prompt share the blocks that it fills.
func ExampleHasher() {
	var h prefix.Hasher
	chain := func(prompt string) prefix.Chain {
		h.Reset(64)
		_, _ = h.WriteString(prompt)
		return slices.Clone(h.Chain())
	}
	system := strings.Repeat("You answer questions about sailing ships. ", 4)
	a := chain(system + "What is a jib? Please explain it to somebody who has never been at sea.")
	b := chain(system + "How is a mainsail reefed in a sudden squall, single-handed and at night?")
	fmt.Println(len(a), "and", len(b), "blocks,", a.Common(b), "shared")
	// Output: 3 and 3 blocks, 2 shared
}

func ExampleSimpleKey() {
	fmt.Println(prefix.SimpleKey("You are a helpful assistant.", 100))
	// Output: 75357d685f238b6afd7738be9786fdafde641eb6ca9a3be7471939715a68a4de
}

func ExampleReadRecords() {
	trace := `{"timestamp": 0, "input_length": 1100, "output_length": 52, "hash_ids": [0, 1, 2]}
{"timestamp": 850, "input_length": 900, "output_length": 3, "hash_ids": [0, 3]}
`
	for r, err := range prefix.ReadRecords(strings.NewReader(trace)) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(r.Timestamp, "ms:", r.InputLength, "tokens in", len(r.HashIDs), "blocks")
	}
	// Output:
	// 0 ms: 1100 tokens in 3 blocks
	// 850 ms: 900 tokens in 2 blocks
}

func ExampleWriteRecord() {
	r := prefix.Record{Timestamp: 850, InputLength: 900, OutputLength: 3, HashIDs: []int64{0, 3}}
	if err := prefix.WriteRecord(os.Stdout, r); err != nil {
		fmt.Println(err)
	}
	// Output: {"timestamp": 850, "input_length": 900, "output_length": 3, "hash_ids": [0, 3]}
}
