package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// The types of promtool's files.
type (
	unitTests struct {
		RuleFiles          []string   `yaml:"rule_files"`
		EvaluationInterval string     `yaml:"evaluation_interval"`
		Tests              []unitTest `yaml:"tests"`
	}
	unitTest struct {
		Name     string            `yaml:"name"`
		Interval string            `yaml:"interval"`
		Series   []unitTestSeries  `yaml:"input_series"`
		Rules    []alertExpectance `yaml:"alert_rule_test"`
	}
	unitTestSeries struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	}
	alertExpectance struct {
		Time   string          `yaml:"eval_time"`
		Alert  string          `yaml:"alertname"`
		Alerts []expectedAlert `yaml:"exp_alerts"`
	}
	expectedAlert struct {
		Labels      map[string]string `yaml:"exp_labels"`
		Annotations map[string]string `yaml:"exp_annotations"`
	}
)

// ofTarget are the labels that each series has unless the example says otherwise.
var ofTarget = map[string]string{"job": job, "namespace": "fleet", "instance": "10.0.0.1:10258"}

// printUnitTests prints, for each alert, that its examples fire once their time is over and not before, and that quiet ones never do.
func printUnitTests(rules string) error {
	from, err := load()
	if err != nil {
		return err
	}
	rules, err = filepath.Abs(rules)
	if err != nil {
		return err
	}
	tests := unitTests{RuleFiles: []string{rules}, EvaluationInterval: "1m"}
	for _, alert := range from.alerts() {
		of, err := from.unitTests(&alert)
		if err != nil {
			return fmt.Errorf("%s: %w", alert.Name, err)
		}
		tests.Tests = append(tests.Tests, of...)
	}
	return printYAML(tests)
}

func (s *source) unitTests(of *alert) ([]unitTest, error) {
	var tests []unitTest
	add := func(name string, from example, expectances ...alertExpectance) error {
		series, err := from.series()
		tests = append(tests, unitTest{Name: of.Name + " " + name, Interval: "1m", Series: series, Rules: expectances})
		return err
	}
	silent := func(after model.Duration) alertExpectance {
		return alertExpectance{Time: after.String(), Alert: of.Name, Alerts: []expectedAlert{}}
	}
	minutes := func(count int) model.Duration { return model.Duration(time.Duration(count) * time.Minute) }
	for _, fires := range of.Fires {
		expectances := []alertExpectance{{Time: (of.For + minutes(2)).String(), Alert: of.Name, Alerts: []expectedAlert{s.expected(of, fires)}}}
		if of.For > minutes(1) {
			expectances = append(expectances, silent(of.For-minutes(1)))
		}
		if err := add("fires", fires, expectances...); err != nil {
			return nil, err
		}
	}
	for _, quiet := range of.Quiet {
		if err := add("is quiet", quiet, silent(of.For+minutes(2)), silent(of.For+minutes(60))); err != nil {
			return nil, err
		}
	}
	return tests, nil
}

// expected is the alert of an example.
func (s *source) expected(of *alert, from example) expectedAlert {
	expected := map[string]string{"severity": of.Severity}
	maps.Copy(expected, from.Labels)
	if _, has := expected["job"]; !has {
		expected["namespace"] = ofTarget["namespace"]
	}
	filled := s.annotations(of)
	summary := labelInText.ReplaceAllStringFunc(filled.Summary, func(found string) string {
		return expected[labelInText.FindStringSubmatch(found)[1]]
	})
	return expectedAlert{Labels: expected, Annotations: map[string]string{
		"summary": summary, "description": filled.Description, "runbook_url": filled.RunbookURL,
	}}
}

// series are those of an example, with the labels of a target.
func (e *example) series() ([]unitTestSeries, error) {
	var series []unitTestSeries
	for _, text := range sortedKeys(e.Series) {
		metric, err := parser.NewParser(parser.Options{}).ParseMetric(text)
		if err != nil {
			return nil, err
		}
		builder := labels.NewBuilder(metric)
		for name, value := range ofTarget {
			if !metric.Has(name) {
				builder.Set(name, value)
			}
		}
		// A name that is quoted in braces is one of promtool's notations, too.
		series = append(series, unitTestSeries{Series: builder.Labels().String(), Values: strings.TrimSpace(e.Series[text])})
	}
	return series, nil
}
