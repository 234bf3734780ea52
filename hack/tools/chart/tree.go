package main

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A node is a part of an object, with the values of the chart under which it is there.
type node struct {
	kind     yaml.Kind
	key      string // in a mapping
	scalar   string
	tag      string
	when     condition
	others   []other
	children []*node
}

// An other is what a scalar is instead while a literal holds.
type other struct {
	literal string
	scalar  string
}

// A condition holds if one of any holds, or if any is empty, and all of all. Its literals are expressions of Helm's
// templates, and `!` before an expression negates it.
type condition struct {
	any, all []string
}

func (c condition) isAlways() bool { return len(c.any)+len(c.all) == 0 }

func negate(literal string) string {
	if rest, negated := strings.CutPrefix(literal, "!"); negated {
		return rest
	}
	return "!" + literal
}

// expression is the condition in Helm's templates; empty if it always holds.
func (c condition) expression() string {
	var terms []string
	if len(c.any) > 0 {
		terms = append(terms, combine("or", c.any))
	}
	for _, literal := range c.all {
		terms = append(terms, combine("or", []string{literal}))
	}
	if len(terms) < 2 {
		return strings.Join(terms, "")
	}
	for index, term := range terms {
		terms[index] = parenthesize(term)
	}
	return "and " + strings.Join(terms, " ")
}

func combine(function string, literals []string) string {
	terms := make([]string, len(literals))
	for index, literal := range literals {
		terms[index] = literal
		if rest, negated := strings.CutPrefix(literal, "!"); negated {
			terms[index] = "not " + parenthesize(rest)
		}
	}
	if len(terms) == 1 {
		return terms[0]
	}
	for index, term := range terms {
		terms[index] = parenthesize(term)
	}
	return function + " " + strings.Join(terms, " ")
}

func parenthesize(term string) string {
	if strings.Contains(term, " ") {
		return "(" + term + ")"
	}
	return term
}

// parse makes trees of a stream of YAML.
func parse(text []byte) ([]*node, error) {
	var objects []*node
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	for {
		var document yaml.Node
		if err := decoder.Decode(&document); err != nil {
			if err.Error() == "EOF" {
				return objects, nil
			}
			return nil, err
		}
		if len(document.Content) > 0 && document.Content[0].Kind == yaml.MappingNode {
			objects = append(objects, fromYAML(document.Content[0]))
		}
	}
}

func fromYAML(from *yaml.Node) *node {
	made := &node{kind: from.Kind, scalar: from.Value, tag: from.Tag}
	switch from.Kind {
	case yaml.MappingNode:
		for index := 0; index < len(from.Content); index += 2 {
			child := fromYAML(from.Content[index+1])
			child.key = from.Content[index].Value
			made.children = append(made.children, child)
		}
	case yaml.SequenceNode:
		for _, item := range from.Content {
			made.children = append(made.children, fromYAML(item))
		}
	}
	return made
}

// get is the part at a path of keys; nil if there is none.
func (n *node) get(path ...string) *node {
	for _, key := range path {
		index := slices.IndexFunc(n.children, func(child *node) bool { return child.key == key })
		if index < 0 {
			return nil
		}
		n = n.children[index]
	}
	return n
}

func (n *node) text(path ...string) string {
	if found := n.get(path...); found != nil {
		return found.scalar
	}
	return ""
}

// identity tells the children of a part from one another: keys of mappings; names, paths or the whole of items.
func (n *node) identity(child *node) string {
	if n.kind == yaml.MappingNode {
		return child.key
	}
	for _, key := range []string{"mountPath", "name"} {
		if name := child.get(key); name != nil {
			return key + " " + name.scalar
		}
	}
	return child.whole()
}

func (n *node) whole() string {
	text := n.key + ":" + n.scalar
	for _, child := range n.children {
		text += "[" + child.whole() + "]"
	}
	return text
}

func (n *node) find(identity string) *node {
	for _, child := range n.children {
		if n.identity(child) == identity {
			return child
		}
	}
	return nil
}

// object names an object for people.
func (n *node) object() string {
	return fmt.Sprintf("%s %s/%s", n.text("kind"), n.text("metadata", "namespace"), n.text("metadata", "name"))
}
