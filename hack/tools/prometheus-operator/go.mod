// Pins Prometheus' operator, whose CustomResourceDefinitions hack/test-monitoring.sh installs. Change the version with
// `go get github.com/prometheus-operator/prometheus-operator@<version>`.
module nodewright.dev/hack/tools/prometheus-operator

go 1.26.0

require github.com/prometheus-operator/prometheus-operator v0.85.0
