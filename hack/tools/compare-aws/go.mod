// Compares two drivers for AWS: what EC2 is asked for, and what VMs it shows. hack/compare-aws.sh runs it.
module nodewright.dev/hack/tools/compare-aws

go 1.26.2

require (
	google.golang.org/grpc v1.83.2
	nodewright.dev/controllers/driver/gardener v0.0.0
	sigs.k8s.io/yaml v1.6.0
)

require (
	go.yaml.in/yaml/v2 v2.4.3 // indirect
	golang.org/x/net v0.58.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/text v0.41.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260526163538-3dc84a4a5aaa // indirect
	google.golang.org/protobuf v1.36.11 // indirect
)

replace nodewright.dev/controllers/driver/gardener => ../../../controllers/driver/gardener
