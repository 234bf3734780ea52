package main

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"

	"sigs.k8s.io/yaml"
)

//go:embed reasons.yaml
var reasonFile []byte

// reason explains differences.
type reason struct {
	// Name is what the page calls it.
	Name string `json:"name"`
	// Paths matches the paths of the values, as a regular expression.
	Paths string `json:"paths"`
	// Classes names the classes it explains; all if it is empty.
	Classes []string `json:"classes"`
	// Theirs and Ours say what the drivers do, and Why why ours does.
	Theirs string `json:"theirs"`
	Ours   string `json:"ours"`
	Why    string `json:"why"`

	paths *regexp.Regexp
}

func readReasons() ([]*reason, error) {
	var reasons []*reason
	if err := yaml.UnmarshalStrict(reasonFile, &reasons); err != nil {
		return nil, err
	}
	for _, reason := range reasons {
		paths, err := regexp.Compile("^(?:" + reason.Paths + ")$")
		if err != nil {
			return nil, err
		}
		reason.paths = paths
	}
	return reasons, nil
}

func (r *reason) explains(class, path string) bool {
	return r.paths.MatchString(path) && (len(r.Classes) == 0 || slices.Contains(r.Classes, class))
}

// explain finds the reason of each difference. Those without one are the problems.
func explain(results []result, reasons []*reason) (problems []error) {
	for at := range results {
		result := &results[at]
		result.differences = map[string]*reason{}
		for _, path := range paths(result.theirs, result.ours) {
			if result.theirs[path] == result.ours[path] && has(result.theirs, path) == has(result.ours, path) {
				continue
			}
			found := slices.IndexFunc(reasons, func(reason *reason) bool { return reason.explains(result.class.name, path) })
			if found < 0 {
				problems = append(problems, fmt.Errorf("class %s: %s: theirs %s, ours %s", result.class.name, path,
					shown(result.theirs, path), shown(result.ours, path)))
				continue
			}
			result.differences[path] = reasons[found]
		}
	}
	return problems
}

func has(values values, path string) bool {
	_, known := values[path]
	return known
}

// unused says which reasons explain nothing, also of the classes that they name.
func unused(results []result, reasons []*reason) (problems []error) {
	for _, reason := range reasons {
		wanted := reason.Classes
		var using []string
		for _, result := range results {
			for _, used := range result.differences {
				if used == reason {
					using = append(using, result.class.name)
				}
			}
		}
		if len(wanted) == 0 && len(using) == 0 {
			problems = append(problems, fmt.Errorf("reasons.yaml: %s explains nothing", reason.Name))
		}
		for _, class := range wanted {
			if !slices.Contains(using, class) {
				problems = append(problems, fmt.Errorf("reasons.yaml: %s explains nothing of class %s", reason.Name, class))
			}
		}
	}
	return problems
}
