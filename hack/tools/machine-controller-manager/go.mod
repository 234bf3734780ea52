// Pins the machine-controller-manager whose CRDs (kubernetes/crds) the end-to-end tests install in place of ours.
// Nothing of it is built: hack/mcm-crds.sh prints where the module lies in Go's module cache. There is no package
// to import, so `go mod tidy` would drop the requirement: change the version with
// `go get github.com/gardener/machine-controller-manager@<version>` instead.
module nodewright.dev/hack/tools/machine-controller-manager

go 1.26.0

require github.com/gardener/machine-controller-manager v0.62.1
