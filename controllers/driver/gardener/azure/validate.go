package main

import (
	"encoding/json"
	"strings"

	"github.com/gardener/machine-controller-manager-provider-azure/pkg/azure/api"
	"github.com/gardener/machine-controller-manager-provider-azure/pkg/azure/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nodewright.dev/controllers/driver/gardener/server"
)

// validate asks the provider's own rules, which each of its calls applies.
func validate(providerSpec []byte) []server.Fault {
	var spec api.AzureProviderSpec
	if err := json.Unmarshal(providerSpec, &spec); err != nil {
		return server.Undecodable(err)
	}
	var faults []server.Fault
	for _, fault := range append(validation.ValidateMachineSetConfig(spec.Properties.MachineSet), validation.ValidateProviderSpec(spec)...) {
		path := strings.TrimPrefix(strings.TrimPrefix(fault.Field, "providerSpec"), ".")
		faults = append(faults, server.Fault{Path: path, Allowed: allowed(fault)})
	}
	return faults
}

// allowed is what an error of the provider says, without the value. Some rules quote it in their text.
func allowed(fault *field.Error) string {
	detail := fault.Detail
	if value, isText := fault.BadValue.(string); isText && value != "" && strings.Contains(detail, value) {
		return "another value: " + fault.Type.String()
	}
	if detail == "" {
		return "another value: " + fault.Type.String()
	}
	return detail
}
