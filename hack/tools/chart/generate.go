package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A component is a component of config, and the value of the chart with which it is used.
type component struct {
	folder  string
	literal string
	// values is a component that puts expressions in the place of fields.
	values string
}

// components are merged in this order, which is that of their flags.
var components = []component{
	{folder: "components/certmanager", literal: ".Values.certManager.enabled"},
	{folder: "components/target-cluster", literal: ".Values.targetKubeconfigSecret", values: "values/target-cluster"},
	{folder: "components/without-node-configuration", literal: "!.Values.nodeConfiguration.enabled"},
	{folder: "components/without-webhooks", literal: "!.Values.webhooks.enabled"},
	{folder: "components/driver", literal: ".Values.driver.image.repository", values: "values/driver"},
	{folder: "components/machine-controller-manager-name", literal: `eq .Values.deploymentName "machine-controller-manager"`},
	{folder: "components/cloud-node", literal: ".Values.cloudNode.enabled"},
	{folder: "components/network-policy", literal: ".Values.networkPolicy.enabled", values: "values/network-policy"},
}

// optional are the values without which an object is left out, by its kind and name.
var optional = map[string]string{
	"PodDisruptionBudget nodewright":                                               ".Values.podDisruptionBudget.enabled",
	"ValidatingWebhookConfiguration nodewright-machine-config-" + releaseNamespace: ".Values.nodeConfiguration.webhooks",
}

// definition is the kind of CRDs.
const definition = "CustomResourceDefinition"

const header = "{{- /* Made from the kustomize folders of config by `make chart`; do not edit. */ -}}"

// generate writes the templates of the chart.
func generate(from kustomize, into string) error {
	objects, err := installation(from)
	if err != nil {
		return err
	}
	shared, err := ofTheCluster(from)
	if err != nil {
		return err
	}
	files := map[string][]*node{}
	for _, object := range objects {
		name := fileName(object.text("kind"))
		files[name] = append(files[name], object)
	}
	for _, object := range shared {
		name := "cluster-" + fileName(object.text("kind"))
		if object.text("kind") == definition {
			name = "crd-" + object.text("spec", "names", "plural") + ".yaml"
		}
		files[name] = append(files[name], object)
	}
	if err := os.RemoveAll(into); err != nil {
		return err
	}
	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	for name, objects := range files {
		emitted := emitter{lines: []string{header}}
		for _, object := range objects {
			if err := emitted.object(object); err != nil {
				return err
			}
		}
		text := strings.Join(emitted.lines, "\n") + "\n"
		if err := os.WriteFile(filepath.Join(into, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// fileName is the file of a kind: validating-webhook-configuration.yaml.
func fileName(kind string) string {
	var name strings.Builder
	for index, letter := range kind {
		if index > 0 && letter >= 'A' && letter <= 'Z' {
			name.WriteByte('-')
		}
		name.WriteRune(letter)
	}
	return strings.ToLower(name.String()) + ".yaml"
}

// installation is config/default with the webhooks of node configuration, and all components.
func installation(from kustomize) ([]*node, error) {
	resources := []string{"default", "webhook/machine-config"}
	render := func(more ...string) ([]*node, error) {
		first, err := from.render("", resources, append(more, "values/manager"))
		if err != nil {
			return nil, err
		}
		second, err := from.render(releaseNamespace, resources, append(more, "values/manager"))
		if err != nil {
			return nil, err
		}
		return withoutNamespace(first), withNamespace(first, second)
	}
	base, err := render()
	if err != nil {
		return nil, err
	}
	merged, err := render()
	if err != nil {
		return nil, err
	}
	for _, component := range components {
		used := []string{component.folder}
		if component.values != "" {
			used = append(used, component.values)
		}
		variant, err := render(used...)
		if err != nil {
			return nil, err
		}
		if merged, err = mergeObjects(merged, base, variant, component.literal); err != nil {
			return nil, fmt.Errorf("%s: %w", component.folder, err)
		}
	}
	for _, object := range merged {
		if literal, found := optional[object.text("kind")+" "+object.text("metadata", "name")]; found {
			object.when.all = append(object.when.all, literal)
		}
		addLabels(object)
	}
	return merged, nil
}

// withoutNamespace leaves the Namespace out: the one of a release is there before.
func withoutNamespace(objects []*node) []*node {
	var kept []*node
	for _, object := range objects {
		if object.text("kind") != "Namespace" {
			kept = append(kept, object)
		}
	}
	return kept
}

// ofTheCluster is what a cluster has once: config/cluster, and the CRDs of node configuration.
func ofTheCluster(from kustomize) ([]*node, error) {
	shared, err := from.render("", []string{"cluster"}, nil)
	if err != nil {
		return nil, err
	}
	nodeConfiguration, err := from.render("", []string{"crd/machine-config"}, nil)
	if err != nil {
		return nil, err
	}
	for _, object := range shared {
		literal := ".Values.guard.install"
		if object.text("kind") == definition {
			literal = ".Values.crds.install"
		}
		object.when.all = []string{literal}
	}
	for _, object := range nodeConfiguration {
		object.when.all = []string{".Values.nodeConfiguration.crds"}
	}
	objects := append(shared, nodeConfiguration...)
	for _, object := range objects {
		addLabels(object)
		keep(object)
	}
	return objects, nil
}

// addLabels adds the labels of Helm.
func addLabels(object *node) {
	labels := child(child(object, "metadata"), "labels")
	labels.children = append(labels.children, &node{kind: yaml.AliasNode, scalar: "nodewright.labels"})
}

// keep adds the annotation with which Helm does not delete an object. The policies of config/guard have it always: they have a
// finalizer, and would be in deletion for good.
func keep(object *node) {
	annotations := child(child(object, "metadata"), "annotations")
	annotations.children = append(annotations.children,
		&node{kind: yaml.ScalarNode, key: "helm.sh/resource-policy", scalar: "keep", tag: "!!str"})
	if object.text("kind") == definition {
		annotations.when.all = []string{".Values.crds.keep"}
	}
}

// child is the mapping at a key, which is made if it is missing.
func child(of *node, key string) *node {
	if found := of.get(key); found != nil {
		return found
	}
	made := &node{kind: yaml.MappingNode, key: key}
	of.children = append(of.children, made)
	return made
}
