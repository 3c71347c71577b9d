// Creates a verification and watches it to its end: go run ./watch PROJECT_ID
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	phoneproofv1 "phoneproof.example/clients/gen/phoneproof/v1"
)

// persistently tries again what is worth it, with growing pauses.
func persistently(call func() error) error {
	for pause := 100 * time.Millisecond; ; pause *= 2 {
		err := call()
		if pause > 5*time.Second {
			pause = 5 * time.Second
		}
		switch status.Code(err) {
		case codes.Unavailable, codes.Internal, codes.Unknown, codes.DeadlineExceeded, codes.Canceled:
			time.Sleep(pause)
		default:
			return err
		}
	}
}

func main() {
	log.SetFlags(0)
	connection, err := grpc.NewClient(
		os.Getenv("PHONEPROOF_ADDRESS"),
		// credentials.NewTLS(nil) where the service has TLS.
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// A network that is silently gone ends the stream.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	verifications := phoneproofv1.NewVerificationServiceClient(connection)
	caller := metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer "+os.Getenv("PHONEPROOF_TOKEN"))

	// Made once: every attempt has the same key, so that one verification is made.
	key := make([]byte, 16)
	if _, err := rand.Read(key); err != nil {
		log.Fatal(err)
	}
	creation := &phoneproofv1.CreateVerificationRequest{
		ProjectId:      os.Args[1],
		Environment:    phoneproofv1.Environment_ENVIRONMENT_TEST,
		IdempotencyKey: fmt.Sprintf("%x", key),
	}
	var created *phoneproofv1.CreateVerificationResponse
	err = persistently(func() (err error) {
		deadline, cancel := context.WithTimeout(caller, 5*time.Second)
		defer cancel()
		created, err = verifications.CreateVerification(deadline, creation)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	id := created.GetVerification().GetId()
	fmt.Println("pending", id, created.GetDestination(), created.GetSmsText())

	// No deadline: a watch lasts as long as the verification. Its first message is how things stand now.
	var finished *phoneproofv1.Verification
	err = persistently(func() error {
		watch, err := verifications.WatchVerification(caller, &phoneproofv1.WatchVerificationRequest{VerificationId: id})
		for err == nil {
			var seen *phoneproofv1.WatchVerificationResponse
			seen, err = watch.Recv()
			finished = seen.GetVerification()
			if err == nil && finished.GetStatus() != phoneproofv1.VerificationStatus_VERIFICATION_STATUS_PENDING {
				return nil
			}
		}
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(strings.ToLower(strings.TrimPrefix(finished.GetStatus().String(), "VERIFICATION_STATUS_")), finished.GetPhone())
}
