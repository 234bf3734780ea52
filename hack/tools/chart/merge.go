package main

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// merge adds to merged what a component changes from base to variant, under a literal. What is only in variant is there
// while the literal holds; what is only in base, while it does not.
func merge(merged, base, variant *node, literal string) error {
	if base.kind != variant.kind {
		return fmt.Errorf("%s: a component changes the type", base.key)
	}
	if base.kind == yaml.ScalarNode {
		if base.scalar != variant.scalar {
			merged.others = append(merged.others, other{literal, variant.scalar})
		}
		return nil
	}
	for _, child := range base.children {
		identity := base.identity(child)
		into := merged.find(identity)
		if into == nil {
			return fmt.Errorf("%s: lost", identity)
		}
		changed := variant.find(identity)
		if changed == nil {
			into.when.all = append(into.when.all, negate(literal))
			continue
		}
		if err := merge(into, child, changed, literal); err != nil {
			return fmt.Errorf("%s: %w", identity, err)
		}
	}
	for index, child := range variant.children {
		if base.find(variant.identity(child)) == nil {
			addChild(merged, base, variant, index, literal)
		}
	}
	return nil
}

// addChild adds the child at index of variant, which base does not have, before the next one that both have. An item before all that
// both have goes before those of other components: kustomize merges lists in this way.
func addChild(merged, base, variant *node, index int, literal string) {
	child := variant.children[index]
	if present := merged.find(variant.identity(child)); present != nil {
		join(present, child, literal)
		return
	}
	place := len(merged.children)
	inBase := func(child *node) bool { return base.find(variant.identity(child)) != nil }
	isFirst := variant.kind == yaml.SequenceNode && !slices.ContainsFunc(variant.children[:index], inBase)
	for _, next := range variant.children[index+1:] {
		if !inBase(next) {
			continue
		}
		identity := variant.identity(next)
		place = slices.IndexFunc(merged.children, func(child *node) bool { return merged.identity(child) == identity })
		break
	}
	if isFirst && place < len(merged.children) {
		place = 0
	}
	child.when = condition{any: []string{literal}}
	merged.children = slices.Insert(merged.children, place, child)
}

// join adds to a part that other components have brought what one more brings: before theirs, as kustomize merges lists.
func join(present, child *node, literal string) {
	for _, grandchild := range present.children {
		if grandchild.when.isAlways() {
			grandchild.when = present.when
		}
	}
	present.when.any = append(slices.Clone(present.when.any), literal)
	for _, grandchild := range child.children {
		if present.find(child.identity(grandchild)) == nil {
			grandchild.when = condition{any: []string{literal}}
			present.children = slices.Insert(present.children, 0, grandchild)
		}
	}
}

// mergeObjects merges two renderings of all objects. An object without a partner is one that a component adds, removes, or
// names differently; the latter if there is one of its kind on both sides.
func mergeObjects(merged, base, variant []*node, literal string) ([]*node, error) {
	var added []*node
	taken := map[*node]bool{}
	partner := func(object *node, match func(*node) bool) *node {
		for _, candidate := range variant {
			if !taken[candidate] && candidate.text("kind") == object.text("kind") && match(candidate) {
				taken[candidate] = true
				return candidate
			}
		}
		return nil
	}
	partners := make([]*node, len(base))
	for index, object := range base {
		partners[index] = partner(object, func(candidate *node) bool { return candidate.object() == object.object() })
	}
	for index, object := range base {
		if partners[index] == nil && object.text("kind") == "Deployment" {
			partners[index] = partner(object, func(*node) bool { return true })
		}
		if partners[index] == nil {
			merged[index].when.all = append(merged[index].when.all, negate(literal))
		} else if err := merge(merged[index], object, partners[index], literal); err != nil {
			return nil, fmt.Errorf("%s: %w", object.object(), err)
		}
	}
	for _, object := range variant {
		if !taken[object] {
			object.when.any = []string{literal}
			added = append(added, object)
		}
	}
	return append(merged, added...), nil
}

const (
	// defaultNamespace is that of config/default.
	defaultNamespace = "nodewright-system"
	// releaseNamespace and releaseSuffix stand for what the templates say instead.
	releaseNamespace = "release-namespace-0"
	releaseSuffix    = "-release-suffix-0"
)

// withNamespace makes of the renderings in the default namespace and in releaseNamespace one for any namespace.
func withNamespace(first, second []*node) error {
	if len(first) != len(second) {
		return fmt.Errorf("%d objects in %s, %d in another namespace", len(first), defaultNamespace, len(second))
	}
	for _, object := range first {
		inAnother := slices.IndexFunc(second, func(candidate *node) bool {
			return candidate.text("kind") == object.text("kind") &&
				isNamed(candidate.text("metadata", "name"), object.text("metadata", "name")) &&
				isNamed(candidate.text("metadata", "namespace"), object.text("metadata", "namespace"))
		})
		if inAnother < 0 {
			return fmt.Errorf("%s is missing in another namespace", object.object())
		}
		if err := unify(object, second[inAnother]); err != nil {
			return fmt.Errorf("%s: %w", object.object(), err)
		}
	}
	return nil
}

func isNamed(another, text string) bool {
	_, err := unified(text, another)
	return err == nil
}

func unify(into, another *node) error {
	if into.kind != another.kind || len(into.children) != len(another.children) {
		return fmt.Errorf("%s differs between namespaces", into.key)
	}
	for index, child := range into.children {
		if err := unify(child, another.children[index]); err != nil {
			return fmt.Errorf("%s: %w", child.key, err)
		}
	}
	text, err := unified(into.scalar, another.scalar)
	into.scalar = text
	return err
}

func unified(text, another string) (string, error) {
	switch another {
	case text:
		return text, nil
	case strings.ReplaceAll(text, defaultNamespace, releaseNamespace):
		return another, nil
	case text + "-" + releaseNamespace:
		return text + releaseSuffix, nil
	}
	return "", fmt.Errorf("%q is %q in another namespace", text, another)
}
