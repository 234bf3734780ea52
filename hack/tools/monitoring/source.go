package main

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"
)

//go:embed alerts.yaml
var alertsFile []byte

//go:embed dashboards.yaml
var dashboardsFile []byte

// source is what alerts.yaml and dashboards.yaml say.
type source struct {
	// Runbooks is the address of the page of alerts.
	Runbooks   string      `yaml:"runbooks"`
	Groups     []group     `yaml:"groups"`
	Dashboards []dashboard `yaml:"dashboards"`
}

// group is a group of rules, and a chapter of the page of alerts.
type group struct {
	Name   string  `yaml:"name"`
	Title  string  `yaml:"title"`
	Alerts []alert `yaml:"alerts"`
}

type alert struct {
	Name     string         `yaml:"name"`
	Severity string         `yaml:"severity"`
	For      model.Duration `yaml:"for"`
	Expr     string         `yaml:"expr"`
	Summary  string         `yaml:"summary"`
	// Meaning is the description, and the first part of the runbook.
	Meaning string   `yaml:"meaning"`
	Look    []string `yaml:"look"`
	Do      []string `yaml:"do"`
	// Fires are cases in which promtool has to see the alert, Quiet those in which it must not.
	Fires []example `yaml:"fires"`
	Quiet []example `yaml:"quiet"`
	// UnitOnly is the reason why the real fleet of the test does not have the fault.
	UnitOnly string `yaml:"unitOnly"`
}

// example is a set of series in promtool's notation, and the labels of the alert that they lead to.
type example struct {
	Series map[string]string `yaml:"series"`
	Labels map[string]string `yaml:"labels"`
}

type dashboard struct {
	Name        string     `yaml:"name"`
	Title       string     `yaml:"title"`
	Description string     `yaml:"description"`
	Variables   []variable `yaml:"variables"`
	Panels      []panel    `yaml:"panels"`
}

// variable is a choice of values of a label, beside that of the namespace.
type variable struct {
	Name   string `yaml:"name"`
	Metric string `yaml:"metric"`
	Label  string `yaml:"label"`
}

type panel struct {
	Title       string  `yaml:"title"`
	Description string  `yaml:"description"`
	Type        string  `yaml:"type"`
	Unit        string  `yaml:"unit"`
	Values      string  `yaml:"values"`
	Queries     []query `yaml:"queries"`
}

type query struct {
	Expr   string `yaml:"expr"`
	Legend string `yaml:"legend"`
	// Still is the reason why the values do not change in the run of the test, Zero that why nothing is counted.
	Still string `yaml:"still"`
	Zero  string `yaml:"zero"`
}

// load reads the sources and checks them.
func load() (*source, error) {
	read := &source{}
	for _, file := range [][]byte{alertsFile, dashboardsFile} {
		decoder := yaml.NewDecoder(bytes.NewReader(file))
		decoder.KnownFields(true)
		if err := decoder.Decode(read); err != nil {
			return nil, err
		}
	}
	for _, alert := range read.alerts() {
		if err := alert.check(); err != nil {
			return nil, fmt.Errorf("alert %s: %w", alert.Name, err)
		}
	}
	for _, dashboard := range read.Dashboards {
		if err := dashboard.check(); err != nil {
			return nil, fmt.Errorf("dashboard %s: %w", dashboard.Name, err)
		}
	}
	return read, nil
}

func (s *source) alerts() []alert {
	var all []alert
	for _, group := range s.Groups {
		all = append(all, group.Alerts...)
	}
	return all
}

// labelInText is what the summary of an alert may have of its labels.
var labelInText = regexp.MustCompile(`{{ \$labels\.([a-z_]+) }}`)

func (a *alert) check() error {
	switch {
	case !strings.HasPrefix(a.Name, "Nodewright"):
		return fmt.Errorf("the name does not begin with Nodewright")
	case !slices.Contains([]string{"critical", "warning", "info"}, a.Severity):
		return fmt.Errorf("severity %q", a.Severity)
	case a.Summary == "" || a.Meaning == "" || len(a.Look) == 0 || len(a.Do) == 0:
		return fmt.Errorf("summary, meaning, look or do is missing")
	case len(a.Fires) == 0 || len(a.Quiet) == 0:
		return fmt.Errorf("an example that fires or one that is quiet is missing")
	case strings.Contains(labelInText.ReplaceAllString(a.Summary, "")+a.Meaning, "{{"):
		return fmt.Errorf("a summary has labels and nothing else of Go's templates, a meaning has neither")
	}
	_, err := parse(a.Expr)
	return err
}

func (d *dashboard) check() error {
	for _, panel := range d.Panels {
		if panel.Title == "" || panel.Description == "" || len(panel.Queries) == 0 {
			return fmt.Errorf("panel %q: title, description or queries are missing", panel.Title)
		}
		if _, found := panelTypes[panel.Type]; !found {
			return fmt.Errorf("panel %q: unknown type %q", panel.Title, panel.Type)
		}
		if _, found := valueNames[panel.Values]; !found {
			return fmt.Errorf("panel %q: unknown names of values %q", panel.Title, panel.Values)
		}
		for _, query := range panel.Queries {
			if _, err := parse(query.Expr); err != nil {
				return fmt.Errorf("panel %q: %w", panel.Title, err)
			}
		}
	}
	return nil
}

// sortedKeys are the keys of a map in their order.
func sortedKeys[K cmp.Ordered, V any](of map[K]V) []K { return slices.Sorted(maps.Keys(of)) }
