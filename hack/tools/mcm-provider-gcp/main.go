// Command mcm-provider-gcp serves machine-controller-manager's provider for GCP over the drivers' protocol.
package main

import (
	"os"

	"github.com/gardener/machine-controller-manager-provider-gcp/pkg/gcp"

	"nodewright.dev/controllers/driver/gardener/server"
)

func main() { os.Exit(server.Main(provider())) }

func provider() server.Provider {
	return server.Provider{
		Name:     gcp.ProviderGCP,
		IDPrefix: gcp.ProviderPrefix,
		Driver:   gcp.NewGCPPlugin(&gcp.PluginSPIImpl{}),
		// A VM is found by its name in its zone. The network tags have the cluster.
		Identity: []string{"zone", "tags"},
		Validate: validate,
	}
}
