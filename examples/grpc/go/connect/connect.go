// Package connect reaches the service as the environment says.
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

// Dial is a connection to PHONEPROOF_ADDRESS, and the context of calls that show PHONEPROOF_TOKEN.
func Dial() (*grpc.ClientConn, context.Context, error) {
	address := os.Getenv("PHONEPROOF_ADDRESS")
	if address == "" {
		address = "127.0.0.1:50051"
	}
	connection, err := grpc.NewClient(
		address,
		// credentials.NewTLS(nil) where the service has TLS.
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// A network that is silently gone ends the stream.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
		// A lost connection is soon tried again: after two minutes otherwise.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
	)
	caller := metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer "+os.Getenv("PHONEPROOF_TOKEN"))
	return connection, caller, err
}
