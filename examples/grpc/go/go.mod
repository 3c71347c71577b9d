module phoneproof.example/clients

go 1.23

require (
	google.golang.org/grpc v1.68.0
	google.golang.org/protobuf v1.35.2
)
