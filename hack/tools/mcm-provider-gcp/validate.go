package main

import (
	"encoding/json"

	api "github.com/gardener/machine-controller-manager-provider-gcp/pkg/api/v1alpha1"
	"github.com/gardener/machine-controller-manager-provider-gcp/pkg/gcp/validation"

	"nodewright.dev/controllers/driver/gardener/server"
)

// validate asks the provider's own rules, which each of its calls applies.
func validate(providerSpec []byte) []server.Fault {
	var spec api.GCPProviderSpec
	if err := json.Unmarshal(providerSpec, &spec); err != nil {
		return server.Undecodable(err)
	}
	return server.Faults("spec", validation.ValidateProviderSpec(&spec)...)
}
