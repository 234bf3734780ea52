package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// writeSchemas writes a JSON schema for each kind, as kubeconform wants it: of Kubernetes' swagger.json, or of a folder of CRDs.
// Fields that a schema does not name are refused.
func writeSchemas(from, into string) error {
	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	if strings.HasSuffix(from, ".json") {
		return ofSwagger(from, into)
	}
	return ofCRDs(from, into)
}

// ofSwagger writes the schemas of all kinds of Kubernetes.
func ofSwagger(from, into string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	var swagger struct {
		Definitions map[string]map[string]any `json:"definitions"`
	}
	if err := json.Unmarshal(text, &swagger); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	written := 0
	for name, definition := range swagger.Definitions {
		kinds, _ := definition["x-kubernetes-group-version-kind"].([]any)
		if properties, _ := definition["properties"].(map[string]any); len(kinds) != 1 || properties["metadata"] == nil {
			continue
		}
		kind := kinds[0].(map[string]any)
		needed := map[string]any{}
		collect(name, swagger.Definitions, needed)
		schema := map[string]any{
			"allOf":       []any{map[string]any{"$ref": "#/definitions/" + name}, map[string]any{"required": []string{"apiVersion", "kind", "metadata"}}},
			"definitions": needed,
		}
		if err := writeSchema(into, kind["group"].(string), kind["version"].(string), kind["kind"].(string), schema); err != nil {
			return err
		}
		written++
	}
	if written < 50 {
		return fmt.Errorf("%s has only %d kinds", from, written)
	}
	return nil
}

// collect adds a definition and all that it names to needed.
func collect(name string, from map[string]map[string]any, needed map[string]any) {
	if needed[name] != nil {
		return
	}
	needed[name] = strict(from[name])
	for _, other := range references(from[name]) {
		collect(other, from, needed)
	}
}

func references(value any) []string {
	var names []string
	switch value := value.(type) {
	case map[string]any:
		for key, child := range value {
			if text, isText := child.(string); isText && key == "$ref" {
				names = append(names, strings.TrimPrefix(text, "#/definitions/"))
			} else {
				names = append(names, references(child)...)
			}
		}
	case []any:
		for _, child := range value {
			names = append(names, references(child)...)
		}
	}
	return names
}

// strict refuses fields without a schema, and takes numbers where Kubernetes does. What is in `properties` are names of fields.
func strict(value any) any {
	schema, isSchema := value.(map[string]any)
	if !isSchema {
		return value
	}
	if schema["format"] == "int-or-string" || schema["x-kubernetes-int-or-string"] == true {
		return map[string]any{"type": []string{"integer", "string"}}
	}
	made := map[string]any{}
	for key, child := range schema {
		switch key {
		case "properties":
			properties := map[string]any{}
			for name, property := range child.(map[string]any) {
				properties[name] = strict(property)
			}
			made[key] = properties
			if schema["additionalProperties"] == nil && schema["x-kubernetes-preserve-unknown-fields"] != true {
				made["additionalProperties"] = false
			}
		case "items", "additionalProperties", "not":
			made[key] = strict(child)
		case "allOf", "anyOf", "oneOf", "required", "enum", "pattern", "type", "$ref", "minimum", "maximum", "minLength", "maxLength",
			"minItems", "maxItems":
			made[key] = child
		}
	}
	return made
}

// ofCRDs writes the schemas of the CRDs in the files of a folder.
func ofCRDs(from, into string) error {
	files, err := filepath.Glob(filepath.Join(from, "*.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no CRDs in %s", from)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var definition struct {
			Spec struct {
				Group    string
				Names    struct{ Kind string }
				Versions []struct {
					Name   string
					Schema struct {
						OpenAPIV3Schema map[string]any `yaml:"openAPIV3Schema"`
					}
				}
			}
		}
		if err := yaml.Unmarshal(text, &definition); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, version := range definition.Spec.Versions {
			schema := strict(version.Schema.OpenAPIV3Schema).(map[string]any)
			properties := schema["properties"].(map[string]any)
			properties["metadata"] = map[string]any{"type": "object"}
			// Not each CRD names these. API servers add them.
			properties["apiVersion"], properties["kind"] = map[string]any{"type": "string"}, map[string]any{"type": "string"}
			if err := writeSchema(into, definition.Spec.Group, version.Name, definition.Spec.Names.Kind, schema); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeSchema writes INTO/kind-group-version.json, with the first part of the group, as kubeconform names them.
func writeSchema(into, group, version, kind string, schema any) error {
	name := strings.ToLower(kind)
	if group != "" {
		group, _, _ = strings.Cut(group, ".")
		name += "-" + group
	}
	text, err := json.Marshal(schema)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(into, fmt.Sprintf("%s-%s.json", name, strings.ToLower(version))), text, 0o644)
}
