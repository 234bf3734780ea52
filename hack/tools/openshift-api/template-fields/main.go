// Prints the fields of a ControllerConfig's spec as templates see them, as api/render/src/templates/fields.txt has them: for
// hack/template-fields.sh. A line has the path in JSON (`[]` for the elements of a list), the name in Go, and the kind, from
// which follows what an absent field is.
package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"sort"
	"strings"

	config "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var lines []string

var (
	metadata    = reflect.TypeOf(metav1.ObjectMeta{})
	unmarshaler = reflect.TypeOf((*json.Unmarshaler)(nil)).Elem()
)

func main() {
	fields("", reflect.TypeOf(config.ControllerConfigSpec{}))
	sort.Strings(lines)
	fmt.Println(strings.Join(lines, "\n"))
}

// fields adds the fields of a struct below a path. Metadata of embedded objects is left out: templates are about the rest.
func fields(path string, of reflect.Type) {
	for index := range of.NumField() {
		field := of.Field(index)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" && field.Anonymous {
			fields(path, field.Type)
			continue
		}
		if name == "" || name == "-" || field.Type == metadata {
			continue
		}
		kind := describe(field.Type)
		lines = append(lines, fmt.Sprintf("%s%s %s %s", path, name, field.Name, kind))
		inner, below := field.Type, path+name+"."
		if inner.Kind() == reflect.Slice {
			inner, below = inner.Elem(), path+name+"[]."
		}
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct && !readsItself(inner) {
			fields(below, inner)
		}
	}
}

// readsItself tells whether a type has a form in JSON that does not follow from its fields, such as a time.
func readsItself(kind reflect.Type) bool {
	return reflect.PointerTo(kind).Implements(unmarshaler)
}

func describe(kind reflect.Type) string {
	switch kind.Kind() {
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64:
		return "integer"
	case reflect.String:
		return "string"
	case reflect.Slice:
		if kind.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		return "list"
	case reflect.Map:
		return "map"
	case reflect.Struct:
		if !readsItself(kind) {
			return "struct"
		}
	}
	return "pointer"
}
