package main

import (
	"encoding/json"
	"errors"
	"strings"

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

// validate asks the provider's own rules, which each of its calls applies. No detail of theirs is quoted: some have values in them.
func validate(providerSpec []byte) []server.Fault {
	var spec api.AWSProviderSpec
	if err := json.Unmarshal(providerSpec, &spec); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return []server.Fault{{Path: wrong.Field, Allowed: "a value of the type " + wrong.Type.String()}}
		}
		return []server.Fault{{Allowed: "an object"}}
	}
	var faults []server.Fault
	for _, fault := range validation.ValidateAWSProviderSpec(&spec, complete, field.NewPath("providerSpec")) {
		path := strings.TrimPrefix(strings.TrimPrefix(strings.TrimSuffix(fault.Field, "."), "providerSpec"), ".")
		faults = append(faults, server.Fault{Path: path, Allowed: "another value: " + fault.Type.String()})
	}
	return faults
}
