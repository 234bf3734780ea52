// Command mcm-provider-openstack serves machine-controller-manager's provider for OpenStack over the drivers' protocol.
package main

import (
	"fmt"
	"os"

	"github.com/gardener/machine-controller-manager-provider-openstack/pkg/apis/openstack/install"
	"github.com/gardener/machine-controller-manager-provider-openstack/pkg/driver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"nodewright.dev/controllers/driver/gardener/server"
)

func main() {
	provider, err := provider()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	os.Exit(server.Main(provider))
}

func provider() (server.Provider, error) {
	scheme := runtime.NewScheme()
	if err := install.AddToScheme(scheme); err != nil {
		return server.Provider{}, err
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder()
	return server.Provider{
		Name:     "OpenStack",
		IDPrefix: "openstack:///",
		Driver:   driver.NewOpenstackDriver(decoder),
		// A server is found by its name and the keys of these tags, which are its metadata.
		Identity: []string{"spec.region", "spec.tags[kubernetes.io-cluster-]", "spec.tags[kubernetes.io-role-]"},
		Validate: validator(decoder),
	}, nil
}
