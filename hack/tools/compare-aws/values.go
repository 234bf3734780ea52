package main

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// values are all that is compared of a VM: paths and texts.
type values map[string]string

// By what members of a list are known: their order says nothing.
var keys = map[string]string{
	"tagSet": "key", "groupSet": "groupId", "blockDeviceMapping": "deviceName", "networkInterfaceSet": "deviceIndex",
	"attachmentSet": "device",
}

// Fields with another value for each VM. That they are there counts.
var masked = regexp.MustCompile(`^(reservationId|.*Time|attachmentId|macAddress|.*[iI]p(v6)?Address|publicIp|.*[dD]nsName|associationId|instanceOwnerId)$`)

var uuid = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// add writes an element of an answer below a path. `names` stand for ids.
func (v values) add(path string, element *element, names map[string]string) {
	if len(element.Children) == 0 {
		text := strings.TrimSpace(element.Text)
		if text == "" {
			return
		}
		v[path] = name(element.name(), text, names)
		return
	}
	if isList(element) {
		for at := range element.Children {
			item := &element.Children[at]
			key := fmt.Sprint(at)
			if by, known := keys[element.name()]; known {
				key = name(by, item.text(by), names)
			}
			v.add(fmt.Sprintf("%s[%s]", path, key), item, names)
		}
		return
	}
	for at := range element.Children {
		child := &element.Children[at]
		v.add(path+"."+child.name(), child, names)
	}
}

func isList(element *element) bool {
	return element.Children[0].name() == "item"
}

func name(field, text string, names map[string]string) string {
	if name, known := names[text]; known {
		return name
	}
	if masked.MatchString(field) {
		return "(any)"
	}
	if strings.HasPrefix(text, "iip-assoc-") {
		return "(any)"
	}
	if strings.EqualFold(field, "clientToken") && uuid.MatchString(text) {
		return "(random)"
	}
	return text
}

// addForms writes requests that change something.
func (v values) addForms(forms []url.Values, names map[string]string) {
	for _, form := range forms {
		v.addForm(form, names)
	}
}

func (v values) addForm(form url.Values, names map[string]string) {
	action := form.Get("Action")
	if id := form.Get("NetworkInterfaceId"); id != "" {
		action += "(" + name("", id, names) + ")"
	}
	tags := tagPaths(form)
	for _, parameter := range slices.Sorted(maps.Keys(form)) {
		path, isTag := tags[parameter]
		switch {
		case parameter == "Action" || parameter == "Version" || isTag && path == "":
			continue
		case !isTag:
			path = parameter
		}
		v["request."+action+"."+path] = value(parameter, form.Get(parameter), names)
	}
}

func value(parameter, text string, names map[string]string) string {
	if parameter == "UserData" {
		if decoded, err := base64.StdEncoding.DecodeString(text); err == nil {
			return string(decoded)
		}
	}
	return name(parameter, text, names)
}

var tagParameter = regexp.MustCompile(`^(TagSpecification\.\d+)\.(?:ResourceType|(Tag\.\d+)\.(Key|Value))$`)

// tagPaths are those of the parameters with tags, by resource and key in place of numbers; empty for one that is a part of a path.
func tagPaths(form url.Values) map[string]string {
	paths := map[string]string{}
	for parameter := range form {
		part := tagParameter.FindStringSubmatch(parameter)
		if part == nil {
			continue
		}
		paths[parameter] = ""
		if part[3] == "Value" {
			resource, key := form.Get(part[1]+".ResourceType"), form.Get(part[1]+"."+part[2]+".Key")
			paths[parameter] = fmt.Sprintf("TagSpecification[%s][%s]", resource, key)
		}
	}
	return paths
}

// paths are those of any of these, sorted.
func paths(all ...values) []string {
	found := map[string]bool{}
	for _, values := range all {
		for path := range values {
			found[path] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func shown(values values, path string) string {
	if text, known := values[path]; known {
		return fmt.Sprintf("%q", text)
	}
	return "absent"
}
