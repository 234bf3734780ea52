// Generates the Go messages of the drivers' protocol; its test finds it when they differ from what is checked in. It is a module of
// its own, as nobody who builds a driver needs the generators.
module nodewright.dev/controllers/driver/gardener/generate

go 1.26.2

tool (
	google.golang.org/grpc/cmd/protoc-gen-go-grpc
	google.golang.org/protobuf/cmd/protoc-gen-go
)

require (
	github.com/bufbuild/protocompile v0.14.1
	google.golang.org/protobuf v1.36.11
)

require (
	golang.org/x/sync v0.8.0 // indirect
	google.golang.org/grpc/cmd/protoc-gen-go-grpc v1.6.2 // indirect
)
