package server

import (
	"encoding/json"
	"strconv"
	"strings"

	pb "nodewright.dev/controllers/driver/gardener/protocol"
)

// hold replaces the secrets of a call until the result is called, and values of the class that its provider finds wrong: users put
// passwords into wrong fields, and providers quote what is wrong.
func (s *service) hold(class *pb.Class, userData string) func() {
	return s.redactor.hold(class, userData, s.misplaced(class.GetProviderSpec()))
}

// misplaced returns the texts of a providerSpec in fields that are wrong.
func (s *service) misplaced(providerSpec string) (texts []string) {
	faults, checked := s.checkSpec(providerSpec)
	if !checked || len(faults) == 0 {
		return nil
	}
	var document any
	if json.Unmarshal([]byte(providerSpec), &document) != nil {
		return nil
	}
	walk("", document, func(path, text string) {
		for _, fault := range faults {
			if below, isBelow := strings.CutPrefix(path, fault.Path); isBelow && (below == "" || below[0] == '.' || below[0] == '[') {
				texts = append(texts, text)
				return
			}
		}
	})
	return texts
}

// checkSpec asks the provider what is wrong with a providerSpec; false if it does not say.
func (s *service) checkSpec(providerSpec string) (faults []Fault, checked bool) {
	if s.provider.Validate == nil {
		return nil, false
	}
	defer func() {
		if recover() != nil {
			faults, checked = nil, false
		}
	}()
	return s.provider.Validate([]byte(providerSpec)), true
}

// walk visits the texts of a document, with their paths.
func walk(path string, value any, visit func(path, text string)) {
	switch value := value.(type) {
	case string:
		visit(path, value)
	case []any:
		for at, element := range value {
			walk(path+"["+strconv.Itoa(at)+"]", element, visit)
		}
	case map[string]any:
		for name, field := range value {
			below := name
			if path != "" {
				below = path + "." + name
			}
			walk(below, field, visit)
		}
	}
}
