module nodewright.dev/hack/tools/mcm-provider-aws

go 1.26.2

require (
	github.com/gardener/machine-controller-manager-provider-aws v0.0.0
	nodewright.dev/controllers/driver/gardener v0.0.0
)

replace nodewright.dev/controllers/driver/gardener => ../../../controllers/driver/gardener
