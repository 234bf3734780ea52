package main

import (
	"encoding/json"

	"github.com/gardener/machine-controller-manager-provider-aws/pkg/aws/apis"
	"github.com/gardener/machine-controller-manager-provider-aws/pkg/aws/apis/validation"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nodewright.dev/controllers/driver/gardener/server"
)

// A Secret with all that the provider's rules want of one.
var complete = &corev1.Secret{Data: map[string][]byte{
	api.AWSAccessKeyID: []byte("-"), api.AWSSecretAccessKey: []byte("-"), "userData": []byte("-"),
}}

// validate asks the provider's own rules, which each of its calls applies.
func validate(providerSpec []byte) []server.Fault {
	var spec api.AWSProviderSpec
	if err := json.Unmarshal(providerSpec, &spec); err != nil {
		return server.Undecodable(err)
	}
	var errs []error
	for _, err := range validation.ValidateAWSProviderSpec(&spec, complete, field.NewPath("providerSpec")) {
		errs = append(errs, err)
	}
	return server.Faults("providerSpec", errs...)
}
