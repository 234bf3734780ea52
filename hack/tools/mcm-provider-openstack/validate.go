package main

import (
	"errors"
	"strings"

	"github.com/gardener/machine-controller-manager-provider-openstack/pkg/apis/cloudprovider"
	"github.com/gardener/machine-controller-manager-provider-openstack/pkg/apis/openstack"
	"github.com/gardener/machine-controller-manager-provider-openstack/pkg/apis/validation"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"nodewright.dev/controllers/driver/gardener/server"
)

// A Secret with all that the provider's rules want of one.
var complete = &corev1.Secret{Data: map[string][]byte{
	cloudprovider.OpenStackAuthURL: []byte("-"), cloudprovider.OpenStackUsername: []byte("-"),
	cloudprovider.OpenStackPassword: []byte("-"), cloudprovider.OpenStackDomainName: []byte("-"),
	cloudprovider.OpenStackTenantName: []byte("-"), cloudprovider.UserData: []byte("-"),
}}

// validator asks the provider's own rules, which each of its calls applies.
func validator(decoder runtime.Decoder) func(providerSpec []byte) []server.Fault {
	return func(providerSpec []byte) []server.Fault {
		var config openstack.MachineProviderConfig
		// The decoder's errors quote what they do not know.
		if _, _, err := decoder.Decode(providerSpec, nil, &config); err != nil {
			return []server.Fault{{Allowed: "a MachineProviderConfig of openstack.machine.gardener.cloud/v1alpha1 without other fields"}}
		}
		err := validation.ValidateRequest(&config, complete)
		if err == nil {
			return nil
		}
		errs := []error{err}
		var aggregate utilerrors.Aggregate
		if errors.As(err, &aggregate) {
			errs = aggregate.Errors()
		}
		// What is wrong is below spec, a field of providerSpec.
		faults := server.Faults("", errs...)
		for i := range faults {
			faults[i].Path = strings.Replace(faults[i].Path, ".PodNetworkCIDRs", ".podNetworkCIDRs", 1)
		}
		return faults
	}
}
