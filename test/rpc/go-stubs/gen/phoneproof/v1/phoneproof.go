// Package phoneproofv1 declares what the examples use of the code that protoc-gen-go and protoc-gen-go-grpc generate.
package phoneproofv1

import (
	"context"

	"google.golang.org/grpc"
)

type Environment int32

const Environment_ENVIRONMENT_TEST Environment = 2

type VerificationStatus int32

const VerificationStatus_VERIFICATION_STATUS_PENDING VerificationStatus = 1

func (VerificationStatus) String() string { return "" }

type Verification struct{}

func (*Verification) GetId() string                 { return "" }
func (*Verification) GetStatus() VerificationStatus { return 0 }
func (*Verification) GetPhone() string              { return "" }

type CreateVerificationRequest struct {
	ProjectId      string
	Environment    Environment
	IdempotencyKey string
}

type CreateVerificationResponse struct{}

func (*CreateVerificationResponse) GetVerification() *Verification { return nil }
func (*CreateVerificationResponse) GetDestination() string         { return "" }
func (*CreateVerificationResponse) GetSmsText() string             { return "" }

type WatchVerificationRequest struct{ VerificationId string }

type WatchVerificationResponse struct{}

func (*WatchVerificationResponse) GetVerification() *Verification { return nil }

type VerificationServiceClient interface {
	CreateVerification(ctx context.Context, in *CreateVerificationRequest, opts ...grpc.CallOption) (*CreateVerificationResponse, error)
	WatchVerification(ctx context.Context, in *WatchVerificationRequest, opts ...grpc.CallOption) (grpc.ServerStreamingClient[WatchVerificationResponse], error)
}

func NewVerificationServiceClient(cc grpc.ClientConnInterface) VerificationServiceClient { return nil }

type ErrorDetail struct{}

func (*ErrorDetail) GetCode() string             { return "" }
func (*ErrorDetail) GetRetryAfterSeconds() int32 { return 0 }

type InboundMessage struct{ MessageId, From, To, Text, Carrier string }

func (*InboundMessage) GetMessageId() string { return "" }

type InboundMessageOutcome int32

func (InboundMessageOutcome) String() string { return "" }

type InboundMessageReceipt struct{}

func (*InboundMessageReceipt) GetMessageId() string              { return "" }
func (*InboundMessageReceipt) GetOutcome() InboundMessageOutcome { return 0 }

type StreamInboundMessagesRequest struct{ Messages []*InboundMessage }

type StreamInboundMessagesResponse struct{}

func (*StreamInboundMessagesResponse) GetReceipts() []*InboundMessageReceipt { return nil }

type InboundMessageServiceClient interface {
	StreamInboundMessages(ctx context.Context, opts ...grpc.CallOption) (grpc.BidiStreamingClient[StreamInboundMessagesRequest, StreamInboundMessagesResponse], error)
}

func NewInboundMessageServiceClient(cc grpc.ClientConnInterface) InboundMessageServiceClient {
	return nil
}
