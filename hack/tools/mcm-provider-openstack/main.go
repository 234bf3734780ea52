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
	scheme := runtime.NewScheme()
	if err := install.AddToScheme(scheme); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder()
	os.Exit(server.Main(server.Provider{
		Name:     "OpenStack",
		IDPrefix: "openstack:///",
		Driver:   driver.NewOpenstackDriver(decoder),
		// A server is found by its name and the keys of these tags, which are its metadata.
		Identity: []string{"spec.region", "spec.tags[kubernetes.io-cluster-]", "spec.tags[kubernetes.io-role-]"},
	}))
}
