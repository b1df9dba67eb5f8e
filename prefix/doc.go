// Package prefix names the beginnings of prompts, so that programs can agree
// on which machine already holds the KV cache of one.
//
// A prompt is a stream of bytes. A [Hasher] cuts it into blocks of equal size
// and hashes each block together with everything before it:
//
//	h_0 = XXH3_64(bytes_0, seed 0)
//	h_i = XXH3_64(bytes_i, seed h_{i-1})
//
// The last block counts only when it is complete. The result is a [Chain], and
// two prompts share exactly as many leading blocks as their chains share
// leading hashes. The function is fixed: the same bytes and the same block
// size give the same chain in every process, on every machine and in every
// version of this package, so chains may be stored and sent.
//
// XXH3 is no cryptographic hash. A chain tells where a prompt may be cached; it
// must never decide what somebody is allowed to read.
//
// A prompt shorter than one block has an empty chain. Programs that see only
// empty chains have chosen too large a block.
//
// Reading order: chain.go holds the types, hasher.go the function above,
// simple.go the first-characters key of simpler routers, and trace.go the
// Mooncake trace format in which chains are published for replay.
package prefix
