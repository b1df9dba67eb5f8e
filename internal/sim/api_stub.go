package sim

import (
	"context"
	"net"
	"net/http"
	"time"
)

func NewEngine(p Profile, o Options) *Engine { return &Engine{} }

type Engine struct{}

func (e *Engine) Submit(now time.Duration, r *Request) error       { return nil }
func (e *Engine) Abort(now time.Duration, r *Request)              {}
func (e *Engine) NextEvent() (time.Duration, bool)                 { return 0, false }
func (e *Engine) Advance(now time.Duration) []Event                { return nil }
func (e *Engine) Restart(now time.Duration)                        {}
func (e *Engine) SetKVTokens(now time.Duration, n int)             {}
func (e *Engine) Stats() Stats                                     { return Stats{} }
func (e *Engine) Cached(prompt []uint64, tokens int) int           { return 0 }
func NewServer(o ServerOptions) *Server                            { return &Server{o: o} }
func (s *Server) Run(ctx context.Context) error                    { return nil }
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {}
func (s *Server) Restart(down time.Duration)                       {}
func (s *Server) SetKVTokens(n int)                                {}
func (s *Server) SetFaults(f Faults)                               {}
func (s *Server) Stats() Stats                                     { return Stats{} }
func NewFleet(ls []net.Listener, o ServerOptions) *Fleet           { return &Fleet{} }
func (f *Fleet) Run(ctx context.Context) error                     { return nil }
func (f *Fleet) Servers() []*Server                                { return f.servers }

type TokenID uint64

func AppendTokens(dst []TokenID, text string) []TokenID                                { return dst }
func AppendText(dst []byte, tokens []TokenID) []byte                                   { return dst }
func BlockChain(dst []uint64, tokens []TokenID, blockTokens int, salt uint64) []uint64 { return dst }
