package main

import (
	"fmt"
	"os"
	"slices"
	"sort"

	"go.yaml.in/yaml/v3"
)

// helmAdds are the labels and annotations that the chart has and kustomize has not.
var helmAdds = []string{"helm.sh/chart", "app.kubernetes.io/managed-by", "helm.sh/resource-policy"}

// compareFiles prints how the objects of one file differ from those of another. Differences that do not count: what Helm adds,
// hooks of Helm, Namespaces, imagePullPolicy where it is the default, and the order of items that have names.
func compareFiles(want, got string) error {
	wanted, err := readObjects(want)
	if err != nil {
		return err
	}
	found, err := readObjects(got)
	if err != nil {
		return err
	}
	var differences []string
	for _, name := range union(wanted, found) {
		difference(&differences, name, wanted[name], found[name])
	}
	for _, text := range differences {
		fmt.Println(text)
	}
	if len(differences) > 0 {
		return fmt.Errorf("%d differences between %s and %s", len(differences), want, got)
	}
	fmt.Printf("%d objects are equal\n", len(wanted))
	return nil
}

// readObjects is the objects of a file by kind, namespace and name.
func readObjects(path string) (map[string]any, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	objects := map[string]any{}
	decoder := yaml.NewDecoder(file)
	for {
		var object map[string]any
		if err := decoder.Decode(&object); err != nil {
			if err.Error() == "EOF" {
				break
			}
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		metadata, _ := object["metadata"].(map[string]any)
		if metadata == nil || object["kind"] == "Namespace" || isHook(metadata) {
			continue
		}
		name := fmt.Sprintf("%v %v/%v", object["kind"], metadata["namespace"], metadata["name"])
		if objects[name] != nil {
			return nil, fmt.Errorf("%s: %s is there twice", path, name)
		}
		objects[name] = normalize(object)
	}
	if len(objects) == 0 {
		return nil, fmt.Errorf("%s has no object", path)
	}
	return objects, nil
}

func isHook(metadata map[string]any) bool {
	annotations, _ := metadata["annotations"].(map[string]any)
	return annotations["helm.sh/hook"] != nil
}

// normalize removes from an object what does not count.
func normalize(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for key, child := range value {
			value[key] = normalize(child)
		}
		for _, key := range []string{"labels", "annotations"} {
			added, _ := value[key].(map[string]any)
			for _, name := range helmAdds {
				delete(added, name)
			}
			if added != nil && len(added) == 0 {
				delete(value, key)
			}
		}
		if value["imagePullPolicy"] == "IfNotPresent" {
			delete(value, "imagePullPolicy")
		}
	case []any:
		for index, child := range value {
			value[index] = normalize(child)
		}
		if len(value) > 0 && nameOf(value[0]) != "" {
			sort.SliceStable(value, func(one, other int) bool { return nameOf(value[one]) < nameOf(value[other]) })
		}
	}
	return value
}

func nameOf(item any) string {
	fields, _ := item.(map[string]any)
	for _, key := range []string{"mountPath", "name"} {
		if name, isText := fields[key].(string); isText {
			return name
		}
	}
	return ""
}

func union(one, other map[string]any) []string {
	var names []string
	for name := range one {
		names = append(names, name)
	}
	for name := range other {
		if _, both := one[name]; !both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// difference adds to differences where two values differ.
func difference(differences *[]string, path string, want, got any) {
	wanted, isMapping := want.(map[string]any)
	found, isMappingToo := got.(map[string]any)
	if isMapping && isMappingToo {
		for _, key := range union(wanted, found) {
			difference(differences, path+" "+key, wanted[key], found[key])
		}
		return
	}
	items, isList := want.([]any)
	others, isListToo := got.([]any)
	if isList && isListToo && len(items) == len(others) {
		for index := range items {
			difference(differences, fmt.Sprintf("%s[%d]", path, index), items[index], others[index])
		}
		return
	}
	if fmt.Sprintf("%T %v", want, want) != fmt.Sprintf("%T %v", got, got) {
		*differences = append(*differences, fmt.Sprintf("%s: want %s, got %s", path, shown(want), shown(got)))
	}
}

func shown(value any) string {
	if value == nil {
		return "nothing"
	}
	text := []rune(fmt.Sprint(value))
	if len(text) > 300 {
		return string(text[:300]) + "…"
	}
	return string(text)
}
