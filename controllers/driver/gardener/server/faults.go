package server

import (
	"encoding/json"
	"errors"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Faults are the field errors in errs, whose paths begin with root, such as "spec". No detail is quoted: some have values in them, also
// those of fields that are missing.
func Faults(root string, errs ...error) []Fault {
	var faults []Fault
	for _, err := range errs {
		var fault *field.Error
		if !errors.As(err, &fault) {
			faults = append(faults, Fault{Allowed: "what the provider's rules accept"})
			continue
		}
		faults = append(faults, Fault{Path: below(root, fault.Field), Allowed: "another value: " + fault.Type.String()})
	}
	return faults
}

// Undecodable is what is wrong with a providerSpec that json.Unmarshal refuses with err.
func Undecodable(err error) []Fault {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field != "" {
		return []Fault{{Path: wrong.Field, Allowed: "a value of the type " + wrong.Type.String()}}
	}
	return []Fault{{Allowed: "an object"}}
}

// below is path without root. Some providers end a path with a period.
func below(root, path string) string {
	rest, found := strings.CutPrefix(path, root)
	if !found || rest != "" && rest[0] != '.' && rest[0] != '[' {
		rest = path
	}
	return strings.Trim(rest, ".")
}
