// Command mcm-provider-aws serves machine-controller-manager's provider for AWS over the drivers' protocol, to be compared with ours.
package main

import (
	"context"
	"os"

	"github.com/gardener/machine-controller-manager-provider-aws/pkg/aws"
	"github.com/gardener/machine-controller-manager-provider-aws/pkg/cpi"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"

	"nodewright.dev/controllers/driver/gardener/server"
)

func main() {
	os.Exit(server.Main(server.Provider{
		Name:     aws.ProviderAWS,
		IDPrefix: "aws:///",
		Driver:   byTags{aws.NewAWSDriver(&cpi.ClientProvider{})},
		// A VM is found by its name and the keys of these tags.
		Identity:    []string{"region", "tags[kubernetes.io/cluster/]", "tags[kubernetes.io/role/]"},
		DeletesByID: true,
		Initializes: true,
		Validate:    validate,
		Classify:    classify,
	}))
}

// byTags lets the provider look for a VM by its tags alone. By its id the provider also finds one that has ended, which EC2 shows for
// an hour: a deletion would not end before.
type byTags struct{ driver.Driver }

func (d byTags) GetMachineStatus(ctx context.Context, request *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	machine := request.Machine.DeepCopy()
	machine.Spec.ProviderID = ""
	return d.Driver.GetMachineStatus(ctx, &driver.GetMachineStatusRequest{
		Machine: machine, MachineClass: request.MachineClass, Secret: request.Secret,
	})
}
