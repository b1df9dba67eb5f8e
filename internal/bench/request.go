package bench

import (
	"math/bits"
	"time"
)

// Segment is a run of tokens known by identity instead of by text: two
// segments with the same ID hold the same tokens, as far as both go. A prompt
// is a list of segments, so a shared document costs 16 bytes in a workload of
// any length.
type Segment struct {
	ID     uint64
	Tokens int
}

// Request is one request of a workload.
type Request struct {
	At      time.Duration // arrival, since the run's start
	Prompt  []Segment
	Answer  Segment
	Session uint64 // 0 when the request belongs to no conversation
	Turn    int    // from 0 within the session
	Part    int    // of a [Mixed] workload, from 0
}

// PromptTokens is the length of the prompt.
func (r *Request) PromptTokens() int {
	n := 0
	for _, s := range r.Prompt {
		n += s.Tokens
	}
	return n
}

// Source hands out a workload's requests in order of arrival.
type Source interface {
	// Next tells when the earliest waiting request arrives. With ok false none
	// is waiting: the workload is over, or every open conversation waits for
	// an answer.
	Next() (at time.Duration, ok bool)
	// Take moves that request into r, reusing r's memory.
	Take(r *Request)
	// Ended tells that r has been answered, or has failed, at the given time.
	Ended(r *Request, now time.Duration)
}

// Workload makes sources. Equal workloads and seeds give equal requests.
type Workload interface {
	Name() string
	Source(seed uint64) Source
}

// chainer cuts a stream of segments into blocks of tokens, each hashed with
// everything before it. It is the token-id analogue of prefix.Hasher.
type chainer[H ~uint64] struct {
	blockTokens int
	blocks      []H
	hash        uint64 // of all complete pieces so far
	filled      int    // tokens in the incomplete last block
}

func (c *chainer[H]) reset(blockTokens int) {
	*c = chainer[H]{blockTokens: blockTokens, blocks: c.blocks[:0], hash: 1}
}

func (c *chainer[H]) add(s Segment) {
	for at := 0; at < s.Tokens; {
		n := min(c.blockTokens-c.filled, s.Tokens-at)
		c.hash = mix(c.hash, s.ID+uint64(at)*0xd6e8feb86659fd93+uint64(n))
		c.filled += n
		at += n
		if c.filled == c.blockTokens {
			c.blocks = append(c.blocks, H(c.hash))
			c.filled = 0
		}
	}
}

// mix folds v into the hash h with one 128-bit multiplication.
func mix(h, v uint64) uint64 {
	hi, lo := bits.Mul64(h^0xa0761d6478bd642f, v^0xe7037ed1a0b428db)
	return hi ^ lo
}
