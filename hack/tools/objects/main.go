// Helps hack/test-upgrade.sh with a List of objects, or a page of the fake cloud's VMs, on standard input. The first argument says what to do:
//
//	fields           print each value with its object and path, one a line, so that two states can be compared: MachineSet/a .spec.replicas=3
//	copy NAMESPACE   print them as somebody would create them there, but with their statuses, and `copy-` before their names
//
// Fields leave out what changes with each write or heartbeat.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"regexp"
	"slices"
	"strings"
)

type object = map[string]any

func main() {
	var list struct {
		Items []object `json:"items"`
	}
	if err := json.NewDecoder(os.Stdin).Decode(&list); err != nil {
		log.Fatal(err)
	}
	switch {
	case len(os.Args) == 2 && os.Args[1] == "fields":
		printFields(list.Items)
	case len(os.Args) == 3 && os.Args[1] == "copy":
		printCopies(list.Items, os.Args[2])
	default:
		log.Fatalf("unknown arguments %q", os.Args[1:])
	}
}

func printFields(items []object) {
	var lines []string
	for _, item := range items {
		walk(name(item)+" ", item, &lines)
	}
	slices.Sort(lines)
	for _, line := range lines {
		fmt.Println(line)
	}
}

func printCopies(items []object, namespace string) {
	for _, item := range items {
		before, _ := item["metadata"].(object)
		metadata := object{"namespace": namespace, "name": fmt.Sprintf("copy-%s", before["name"])}
		for _, key := range []string{"labels", "annotations"} {
			if value, ok := before[key]; ok {
				metadata[key] = value
			}
		}
		item["metadata"] = metadata
	}
	if err := json.NewEncoder(os.Stdout).Encode(object{"apiVersion": "v1", "kind": "List", "items": items}); err != nil {
		log.Fatal(err)
	}
}

func name(item object) string {
	metadata, ok := item["metadata"].(object)
	if !ok {
		return fmt.Sprintf("VM/%s", item["name"])
	}
	return fmt.Sprintf("%s/%s", item["kind"], metadata["name"])
}

// Such as .metadata.resourceVersion.
var volatile = regexp.MustCompile(`\.metadata\.(resourceVersion|managedFields|generation)$|\.(lastHeartbeatTime|observedGeneration)$`)

// walk appends the values below a path. An empty object or list is a value.
func walk(path string, value any, lines *[]string) {
	if volatile.MatchString(path) {
		return
	}
	switch value := value.(type) {
	case object:
		for key, inner := range value {
			if strings.ContainsAny(key, "./") {
				key = "[" + key + "]"
			}
			walk(path+"."+key, inner, lines)
		}
		if len(value) > 0 {
			return
		}
	case []any:
		for index, inner := range value {
			walk(fmt.Sprintf("%s[%s]", path, label(index, inner)), inner, lines)
		}
		if len(value) > 0 {
			return
		}
	}
	text, err := json.Marshal(value)
	if err != nil {
		log.Fatal(err)
	}
	*lines = append(*lines, path+"="+string(text))
}

// label names an element of a list by what it has, if it can: the order of conditions or finalizers does not matter.
func label(index int, element any) string {
	switch element := element.(type) {
	case string:
		return element
	case object:
		for _, key := range []string{"type", "key", "name"} {
			if text, ok := element[key].(string); ok {
				return text
			}
		}
	}
	return fmt.Sprint(index)
}
