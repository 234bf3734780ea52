// Pins Ignition, with whose code `make render-oracle` compares nodewright-render. hack/ignition.sh builds the oracle.
// Change the version with `go get github.com/coreos/ignition/v2@<version> && go mod tidy`.
module nodewright.dev/hack/tools/ignition

go 1.24.0

require (
	github.com/coreos/ignition/v2 v2.26.0
	github.com/coreos/vcontext v0.0.0-20230201181013-d72178a18687
)

require (
	github.com/aws/aws-sdk-go-v2 v1.41.1 // indirect
	github.com/coreos/go-json v0.0.0-20230131223807-18775e0fb4fb // indirect
	github.com/coreos/go-semver v0.3.1 // indirect
	github.com/coreos/go-systemd/v22 v22.6.0 // indirect
	github.com/vincent-petithory/dataurl v1.0.0 // indirect
)
