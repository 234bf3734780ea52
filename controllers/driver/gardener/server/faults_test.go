package server

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestFaultsNameTheFieldAndNoValue(t *testing.T) {
	spec := field.NewPath("spec")
	for _, row := range []struct {
		err      error
		expected Fault
	}{
		{field.Required(spec.Child("region"), "Region is required"), Fault{"region", "another value: Required value"}},
		{field.Required(spec.Child("disks"), "hunter2 is there twice"), Fault{"disks", "another value: Required value"}},
		{field.Invalid(spec.Child("disks").Index(1), "hunter2", "hunter2 is too small"), Fault{"disks[1]", "another value: Invalid value"}},
		{field.Forbidden(spec, "both are empty"), Fault{"", "another value: Forbidden"}},
		{field.Required(field.NewPath("spec.tags."), "a tag"), Fault{"tags", "another value: Required value"}},
		{field.Required(field.NewPath("specific"), "a name"), Fault{"specific", "another value: Required value"}},
		{errors.New("hunter2"), Fault{"", "what the provider's rules accept"}},
	} {
		if faults := Faults("spec", row.err); !slices.Equal(faults, []Fault{row.expected}) {
			t.Errorf("%v: %v, expected %v", row.err, faults, row.expected)
		}
	}
}

func TestUndecodableNamesTheField(t *testing.T) {
	var spec struct {
		Disks []struct {
			Size int `json:"size"`
		} `json:"disks"`
	}
	for text, expected := range map[string]Fault{
		`{"disks": [{"size": "hunter2"}]}`: {"disks.size", "a value of the type int"},
		`"hunter2"`:                        {"", "an object"},
		`{`:                                {"", "an object"},
	} {
		if faults := Undecodable(json.Unmarshal([]byte(text), &spec)); !slices.Equal(faults, []Fault{expected}) {
			t.Errorf("%s: %v, expected %v", text, faults, expected)
		}
	}
}
