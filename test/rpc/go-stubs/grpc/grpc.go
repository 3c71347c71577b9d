// Package grpc has the parts of google.golang.org/grpc that the examples use: its signatures, without implementations.
package grpc

import (
	"context"
	"time"

	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

type ClientConn struct{}

func (*ClientConn) Close() error { return nil }

type ClientConnInterface interface{ Close() error }

type DialOption interface{}

type CallOption interface{}

type ConnectParams struct {
	Backoff           backoff.Config
	MinConnectTimeout time.Duration
}

func NewClient(target string, opts ...DialOption) (*ClientConn, error) { return nil, nil }

func WithTransportCredentials(creds credentials.TransportCredentials) DialOption { return nil }

func WithKeepaliveParams(kp keepalive.ClientParameters) DialOption { return nil }

func WithConnectParams(p ConnectParams) DialOption { return nil }

type BidiStreamingClient[Req any, Res any] interface {
	Send(*Req) error
	Recv() (*Res, error)
	CloseSend() error
	Context() context.Context
}

type ServerStreamingClient[Res any] interface {
	Recv() (*Res, error)
	CloseSend() error
	Context() context.Context
}
