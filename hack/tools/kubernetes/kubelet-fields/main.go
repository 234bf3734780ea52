// Prints the fields of the kubelet's configuration with their types, as api/render/src/kubelet/fields.txt has them: for
// hack/kubelet-fields.sh.
package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"sort"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubelet "k8s.io/kubelet/config/v1beta1"
)

var lines []string

var (
	duration    = reflect.TypeOf(metav1.Duration{})
	unmarshaler = reflect.TypeOf((*json.Unmarshaler)(nil)).Elem()
)

func main() {
	fields("", reflect.TypeOf(kubelet.KubeletConfiguration{}))
	sort.Strings(lines)
	fmt.Println(strings.Join(lines, "\n"))
}

// fields adds the fields of a struct below a path. Those of the types in a list or map have no path of their own. Types that
// read themselves are left out: they take several types of JSON.
func fields(path string, of reflect.Type) {
	for index := range of.NumField() {
		field := of.Field(index)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		kind := field.Type
		if kind.Kind() == reflect.Pointer {
			kind = kind.Elem()
		}
		if name == "" && field.Anonymous {
			fields(path, kind)
		}
		readsItself := kind != duration && reflect.PointerTo(kind).Implements(unmarshaler)
		if name == "" || name == "-" || readsItself {
			continue
		}
		lines = append(lines, path+name+" "+describe(kind))
		if describe(kind) == "object" && kind.Kind() == reflect.Struct {
			fields(path+name+".", kind)
		}
	}
}

func describe(kind reflect.Type) string {
	if kind == duration {
		return "duration"
	}
	switch kind.Kind() {
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64:
		return "integer"
	case reflect.Float32, reflect.Float64:
		return "number"
	case reflect.String:
		return "string"
	case reflect.Slice:
		if kind.Elem().Kind() == reflect.String {
			return "strings"
		}
		return "list"
	case reflect.Map:
		if kind.Elem().Kind() == reflect.String {
			return "texts"
		}
	}
	return "object"
}
