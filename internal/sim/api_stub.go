package sim

import (
	"context"
	"net"
	"net/http"
	"time"
)

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


