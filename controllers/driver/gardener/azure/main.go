// Command nodewright-driver-azure serves machine-controller-manager's provider for Azure over the drivers' protocol.
package main

import (
	"os"

	"github.com/gardener/machine-controller-manager-provider-azure/pkg/azure/access"
	azure "github.com/gardener/machine-controller-manager-provider-azure/pkg/azure/provider"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"

	"nodewright.dev/controllers/driver/gardener/server"
)

func main() {
	os.Exit(server.Main(provider(azure.NewDefaultDriver(access.NewDefaultAccessFactory()))))
}

// provider is what the interface of the provider leaves unsaid.
func provider(driver driver.Driver) server.Provider {
	return server.Provider{
		Name:     "Azure",
		IDPrefix: "azure:///",
		Driver:   driver,
		// A VM is found by its name in its resource group. Its id has its location.
		Identity: []string{"resourceGroup", "location"},
		// The name is a part of the id, and no two VMs of a resource group have the same one.
		DeletesByID: true,
		Validate:    validate,
		Classify:    classify,
	}
}
