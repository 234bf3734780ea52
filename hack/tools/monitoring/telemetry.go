package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// families are the metrics that docs/reference/telemetry.md names: the first column of its tables.
type families struct {
	names    map[string]bool
	prefixes []string
}

var quoted = regexp.MustCompile("`([a-z_…*]+)`")

// readFamilies reads them. `a_*` are all names that begin with `a_`. In `…_c` and `…_c_…` a beginning, and an end, of the first name in
// the row have been left out.
func readFamilies(tree string) (*families, error) {
	text, err := os.ReadFile(filepath.Join(tree, "docs/reference/telemetry.md"))
	if err != nil {
		return nil, err
	}
	found := &families{names: map[string]bool{}}
	for _, line := range strings.Split(string(text), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 3 || cells[0] != "" {
			continue
		}
		first := ""
		for _, match := range quoted.FindAllStringSubmatch(cells[1], -1) {
			if first == "" {
				first = match[1]
			}
			found.add(match[1], first)
		}
	}
	if len(found.names) < 30 {
		return nil, fmt.Errorf("docs/reference/telemetry.md names %d metrics only: has its form changed?", len(found.names))
	}
	return found, nil
}

func (f *families) add(name, first string) {
	if prefix, is := strings.CutSuffix(name, "*"); is {
		f.prefixes = append(f.prefixes, prefix)
		return
	}
	beginnings, ends := []string{""}, []string{""}
	words := strings.Split(first, "_")
	if strings.HasPrefix(name, "…") {
		beginnings = nil
		for at := range words {
			beginnings = append(beginnings, strings.Join(words[:at], "_"))
		}
	}
	if strings.HasSuffix(name, "…") {
		ends = nil
		for at := range words {
			ends = append(ends, strings.Join(words[at:], "_"))
		}
	}
	middle := strings.Trim(name, "…")
	for _, beginning := range beginnings {
		for _, end := range ends {
			f.names[beginning+middle+end] = true
		}
	}
}

// knows reports whether the page names a metric, or the histogram that it is a part of.
func (f *families) knows(metric string) bool {
	if _, isOwn := ownSeries[metric]; isOwn || f.names[metric] {
		return true
	}
	for _, part := range []string{"_bucket", "_sum", "_count"} {
		if histogram, is := strings.CutSuffix(metric, part); is && f.names[histogram] {
			return true
		}
	}
	for _, prefix := range f.prefixes {
		if strings.HasPrefix(metric, prefix) {
			return true
		}
	}
	return false
}

// checkMetrics fails if a query selects a metric that the page does not name.
func (s *source) checkMetrics(tree string) error {
	known, err := readFamilies(tree)
	if err != nil {
		return err
	}
	check := func(where, expr string) error {
		metrics, err := metricsOf(expr)
		if err != nil {
			return fmt.Errorf("%s: %w", where, err)
		}
		for _, metric := range metrics {
			if !known.knows(metric) {
				return fmt.Errorf("%s: docs/reference/telemetry.md does not name %s", where, metric)
			}
		}
		return nil
	}
	for _, alert := range s.alerts() {
		if err := check(alert.Name, alert.Expr); err != nil {
			return err
		}
	}
	for _, dashboard := range s.Dashboards {
		for _, variable := range dashboard.Variables {
			if err := check(dashboard.Name, variable.Metric); err != nil {
				return err
			}
		}
		for _, panel := range dashboard.Panels {
			for _, query := range panel.Queries {
				if err := check(dashboard.Name+", "+panel.Title, query.Expr); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
