// Package connect opens a connection to the service, configured by environment variables.
package connect

import (
	"context"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
)

// Dial returns a connection to PHONEPROOF_ADDRESS, and a context that sends PHONEPROOF_TOKEN with each call.
func Dial() (*grpc.ClientConn, context.Context, error) {
	address := os.Getenv("PHONEPROOF_ADDRESS")
	if address == "" {
		address = "127.0.0.1:50051"
	}
	connection, err := grpc.NewClient(
		address,
		// credentials.NewTLS(nil) if the service uses TLS.
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// Ends the stream if the network connection silently vanished.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
		// Reconnects soon after a lost connection: the default pause grows to two minutes.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
	)
	caller := metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer "+os.Getenv("PHONEPROOF_TOKEN"))
	return connection, caller, err
}
