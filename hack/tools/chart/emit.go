package main

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// An emitter writes trees as Helm's templates.
type emitter struct {
	lines []string
}

func (e *emitter) line(indent int, text string) {
	e.lines = append(e.lines, strings.Repeat(" ", indent)+text)
}

// object writes an object as a document of its own.
func (e *emitter) object(object *node) error {
	condition := object.when.expression()
	if condition != "" {
		e.line(0, "{{- if "+condition+" }}")
	}
	e.line(0, "---")
	if err := e.children(object, 0); err != nil {
		return fmt.Errorf("%s: %w", object.object(), err)
	}
	if condition != "" {
		e.line(0, "{{- end }}")
	}
	return nil
}

// children writes the children of a part. Neighbours share their condition.
func (e *emitter) children(of *node, indent int) error {
	open := ""
	turn := func(condition string) {
		if condition == open {
			return
		}
		if open != "" {
			e.line(indent, "{{- end }}")
		}
		if open = condition; open != "" {
			e.line(indent, "{{- if "+open+" }}")
		}
	}
	for _, child := range of.children {
		turn(child.when.expression())
		if err := e.child(of.kind, child, indent); err != nil {
			return fmt.Errorf("%s: %w", child.key, err)
		}
	}
	turn("")
	return nil
}

func (e *emitter) child(parent yaml.Kind, child *node, indent int) error {
	isItem := parent == yaml.SequenceNode
	if child.kind == yaml.AliasNode {
		e.line(indent, fmt.Sprintf("{{- include %q . | nindent %d }}", child.scalar, indent))
		return nil
	}
	if value := child.wholeValue(); value != "" {
		e.value(child.key, value, indent, isItem)
		return nil
	}
	if child.kind == yaml.ScalarNode {
		return e.scalar(child, indent, isItem)
	}
	if len(child.children) == 0 {
		empty := map[yaml.Kind]string{yaml.MappingNode: "{}", yaml.SequenceNode: "[]"}[child.kind]
		e.line(indent, prefix(child, isItem)+empty)
		return nil
	}
	if !isItem {
		e.line(indent, strings.TrimSuffix(prefix(child, false), " "))
		if child.kind == yaml.MappingNode {
			indent += 2
		}
		return e.children(child, indent)
	}
	if !child.children[0].when.isAlways() {
		return fmt.Errorf("the first field of an item has a condition")
	}
	first := len(e.lines)
	if err := e.children(child, indent+2); err != nil {
		return err
	}
	e.lines[first] = strings.Repeat(" ", indent) + "- " + e.lines[first][indent+2:]
	return nil
}

func prefix(child *node, isItem bool) string {
	if isItem {
		return "- "
	}
	return encode(child.key, "") + ": "
}

// wholeValue is VALUE of a part that is `{{ toYaml VALUE }}`, or contains nothing else: kustomize does not take a text where there may
// be names of other objects.
func (n *node) wholeValue() string {
	for len(n.children) == 1 {
		n = n.children[0]
	}
	value, found := strings.CutPrefix(n.scalar, "{{ toYaml ")
	if !found {
		return ""
	}
	return strings.TrimSuffix(value, " }}")
}

// value writes a value of the chart as a field or as items of a list. It is left out while it is empty.
func (e *emitter) value(key, value string, indent int, isItem bool) {
	e.line(indent, "{{- with "+value+" }}")
	if !isItem {
		e.line(indent, key+":")
		indent += 2
	}
	e.line(indent, fmt.Sprintf("{{- toYaml . | nindent %d }}", indent))
	if !isItem {
		indent -= 2
	}
	e.line(indent, "{{- end }}")
}

// scalar writes a scalar. One that begins with `{{` is an expression of a patch in values.
func (e *emitter) scalar(child *node, indent int, isItem bool) error {
	if strings.HasPrefix(child.scalar, "{{ ") {
		e.line(indent, prefix(child, isItem)+child.scalar)
		return nil
	}
	if strings.Contains(child.scalar, "{{") {
		return fmt.Errorf("%q would be a template", child.scalar)
	}
	text := encode(child.scalar, child.tag)
	for _, other := range child.others {
		condition := condition{any: []string{other.literal}}.expression()
		text = fmt.Sprintf("{{ if %s }}%s{{ else }}%s{{ end }}", condition, encode(other.scalar, child.tag), text)
	}
	for index, line := range strings.Split(text, "\n") {
		if index == 0 {
			line = prefix(child, isItem) + line
		} else if line != "" {
			line = "  " + line
		}
		e.line(indent, line)
	}
	return nil
}

// encode writes a scalar in YAML, with what the templates say for the namespace. A namespace alone is quoted: it may look
// like a number.
func encode(text, tag string) string {
	if text == releaseNamespace {
		return "{{ .Release.Namespace | quote }}"
	}
	style := yaml.Style(0)
	if strings.Contains(text, "\n") {
		style = yaml.LiteralStyle
	}
	made, err := yaml.Marshal(&yaml.Node{Kind: yaml.ScalarNode, Value: text, Tag: tag, Style: style})
	if err != nil {
		panic(err) // A scalar can always be written.
	}
	encoded := strings.TrimSuffix(string(made), "\n")
	encoded = strings.ReplaceAll(encoded, releaseNamespace, "{{ .Release.Namespace }}")
	return strings.ReplaceAll(encoded, releaseSuffix, `{{ include "nodewright.suffix" . }}`)
}
