// Creates a verification and watches it until it ends: go run ./watch PROJECT_ID
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log"
	mathrand "math/rand"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"phoneproof.example/clients/connect"
	phoneproofv1 "phoneproof.example/clients/gen/phoneproof/v1"
)

// persistently retries temporary errors, with growing pauses.
func persistently(call func() error) error {
	const shortest = 100 * time.Millisecond
	for pause := shortest; ; pause *= 2 {
		err := call()
		if err == nil {
			return nil
		}
		least, passes := retryAfter(err)
		if !passes {
			return err
		}
		if pause == shortest {
			log.Print("trying again: ", err)
		}
		if pause > 5*time.Second {
			pause = 5 * time.Second
		}
		wait := pause/2 + time.Duration(mathrand.Int63n(int64(pause/2)))
		if wait < least {
			wait = least
		}
		time.Sleep(wait)
	}
}

// retryAfter returns whether the error is temporary, and how long to wait at least. If the service answered, its code
// decides; otherwise the gRPC status does.
func retryAfter(err error) (time.Duration, bool) {
	for _, detail := range status.Convert(err).Details() {
		if reported, ok := detail.(*phoneproofv1.ErrorDetail); ok {
			switch reported.GetCode() {
			case "service_unavailable", "internal_error", "rate_limited":
				return time.Duration(reported.GetRetryAfterSeconds()) * time.Second, true
			}
			return 0, false
		}
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.Aborted, codes.Internal, codes.Unknown, codes.DeadlineExceeded, codes.Canceled:
		return 0, true
	}
	return 0, false
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: go run ./watch PROJECT_ID")
	}
	connection, caller, err := connect.Dial()
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	verifications := phoneproofv1.NewVerificationServiceClient(connection)

	// Built once, so that every attempt has the same idempotency key and only one verification is created.
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

	// No deadline: a watch lasts as long as the verification. Its first message is the current state.
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
