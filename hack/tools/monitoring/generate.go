package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

const header = "# Made from hack/tools/monitoring by `make monitoring`; do not edit.\n"

// generate writes all files below a folder, by their paths in the project.
func generate(tree, into string) error {
	from, err := load()
	if err != nil {
		return err
	}
	if err := from.checkMetrics(tree); err != nil {
		return err
	}
	files := map[string][]byte{"docs/tasks/alerts.md": []byte(from.page())}
	if files["config/components/monitoring/rules.yaml"], err = from.prometheusRule(); err != nil {
		return err
	}
	for _, dashboard := range from.Dashboards {
		text, err := dashboard.json()
		if err != nil {
			return fmt.Errorf("dashboard %s: %w", dashboard.Name, err)
		}
		files["config/components/monitoring/dashboards/"+dashboard.Name+".json"] = text
	}
	for name, text := range files {
		path := filepath.Join(into, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// rule is an alert as Prometheus reads it.
type rule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for,omitempty"`
	Labels      map[string]string `yaml:"labels"`
	Annotations annotations       `yaml:"annotations"`
}

type annotations struct {
	Summary     string `yaml:"summary"`
	Description string `yaml:"description"`
	RunbookURL  string `yaml:"runbook_url"`
}

type ruleGroup struct {
	Name  string `yaml:"name"`
	Rules []rule `yaml:"rules"`
}

type ruleGroups struct {
	Groups []ruleGroup `yaml:"groups"`
}

// rules are all alerts, with all times divided by a factor.
func (s *source) rules(factor int) (*ruleGroups, error) {
	made := &ruleGroups{}
	for _, group := range s.Groups {
		of := ruleGroup{Name: group.Name}
		for _, alert := range group.Alerts {
			expr, err := ruleExpr(alert.Expr, factor)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", alert.Name, err)
			}
			rule := rule{
				Alert:       alert.Name,
				Expr:        expr,
				Labels:      map[string]string{"severity": alert.Severity},
				Annotations: s.annotations(&alert),
			}
			if alert.For != 0 {
				rule.For = shortenFor(alert.For, factor).String()
			}
			of.Rules = append(of.Rules, rule)
		}
		made.Groups = append(made.Groups, of)
	}
	return made, made.validate()
}

func (s *source) annotations(of *alert) annotations {
	return annotations{Summary: of.Summary, Description: line(of.Meaning), RunbookURL: s.Runbooks + "#" + strings.ToLower(of.Name)}
}

// line joins the lines of a text.
func line(text string) string { return strings.Join(strings.Fields(text), " ") }

// validate does what Prometheus does when it loads rules.
func (g *ruleGroups) validate() error {
	text, err := encode(g)
	if err != nil {
		return err
	}
	_, errs := rulefmt.Parse(text, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		return errs[0]
	}
	return nil
}

// prometheusRule is the object of Prometheus' operator.
func (s *source) prometheusRule() ([]byte, error) {
	rules, err := s.rules(1)
	if err != nil {
		return nil, err
	}
	text, err := encode(map[string]any{
		"apiVersion": "monitoring.coreos.com/v1",
		"kind":       "PrometheusRule",
		"metadata": map[string]any{
			"name":      "nodewright",
			"namespace": "nodewright-system",
			"labels":    map[string]string{"app.kubernetes.io/name": "nodewright"},
		},
		"spec": rules,
	})
	return append([]byte(header), text...), err
}

func encode(value any) ([]byte, error) {
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	err := encoder.Encode(value)
	return text.Bytes(), err
}

func printYAML(value any) error {
	text, err := encode(value)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(text)
	return err
}

func printRules(factor string) error {
	by, err := strconv.Atoi(factor)
	if err != nil || by < 1 {
		return fmt.Errorf("the factor %q is no positive number", factor)
	}
	from, err := load()
	if err != nil {
		return err
	}
	rules, err := from.rules(by)
	if err != nil {
		return err
	}
	return printYAML(rules)
}
