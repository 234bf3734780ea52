// Command mcm-provider-aws serves machine-controller-manager's provider for AWS over the drivers' protocol, to be compared with ours.
package main

import (
	"os"

	"github.com/gardener/machine-controller-manager-provider-aws/pkg/aws"
	"github.com/gardener/machine-controller-manager-provider-aws/pkg/cpi"

	"nodewright.dev/controllers/driver/gardener/server"
)

func main() {
	os.Exit(server.Main(server.Provider{
		Name:     aws.ProviderAWS,
		IDPrefix: "aws:///",
		Driver:   aws.NewAWSDriver(&cpi.ClientProvider{}),
		// A VM is found by its name and the keys of these tags.
		Identity:    []string{"region", "tags[kubernetes.io/cluster/]", "tags[kubernetes.io/role/]"},
		DeletesByID: true,
		Initializes: true,
		Validate:    validate,
		Classify:    classify,
	}))
}
