package main

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"strings"

	"sigs.k8s.io/yaml"
)

//go:embed classes/*.yaml
var classFiles embed.FS

// object has the fields of a MachineClass, a Secret or a Machine that count here.
type object struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name        string            `json:"name"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Provider             string            `json:"provider"`
	ProviderSpec         json.RawMessage   `json:"providerSpec"`
	SecretRef            reference         `json:"secretRef"`
	CredentialsSecretRef reference         `json:"credentialsSecretRef"`
	StringData           map[string]string `json:"stringData"`
	Spec                 struct {
		Class        reference `json:"class"`
		NodeTemplate struct {
			Metadata struct {
				Annotations map[string]string `json:"annotations"`
			} `json:"metadata"`
		} `json:"nodeTemplate"`
	} `json:"spec"`
}

type reference struct {
	Name string `json:"name"`
}

// class is a MachineClass with what belongs to it.
type class struct {
	name  string
	about string
	// The names in it, such as subnet-a, stand for ids that moto gives.
	providerSpec string
	secret       map[string]string
	// The annotations of the node template of its Machine.
	annotations map[string]string
}

// readClasses reads the files in their order. A Secret may be in any of them, a Machine too.
func readClasses() ([]class, error) {
	objects, err := readObjects()
	if err != nil {
		return nil, err
	}
	secrets := map[string]map[string]string{}
	annotations := map[string]map[string]string{}
	for _, object := range objects {
		switch object.Kind {
		case "Secret":
			secrets[object.Metadata.Name] = object.StringData
		case "Machine":
			annotations[object.Spec.Class.Name] = object.Spec.NodeTemplate.Metadata.Annotations
		}
	}
	var classes []class
	for _, object := range objects {
		if object.Kind != "MachineClass" {
			continue
		}
		name := object.Metadata.Name
		secret := map[string]string{}
		for _, from := range []string{object.SecretRef.Name, object.CredentialsSecretRef.Name} {
			if from != "" && secrets[from] == nil {
				return nil, fmt.Errorf("class %s: there is no Secret %s", name, from)
			}
			for key, value := range secrets[from] {
				secret[key] = value
			}
		}
		classes = append(classes, class{
			name: name, about: object.Metadata.Annotations["about"], providerSpec: string(object.ProviderSpec),
			secret: secret, annotations: annotations[name],
		})
	}
	return classes, nil
}

func readObjects() ([]object, error) {
	files, err := fs.Glob(classFiles, "classes/*.yaml")
	if err != nil {
		return nil, err
	}
	var objects []object
	for _, file := range files {
		text, err := classFiles.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			var object object
			if err := yaml.Unmarshal([]byte(document+"\n"), &object); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			objects = append(objects, object)
		}
	}
	return objects, nil
}
