package main

import (
	"fmt"
	"strings"
)

// page is docs/tasks/alerts.md.
func (s *source) page() string {
	var text strings.Builder
	text.WriteString(`# Alerts, and what to do about each

<!-- Made from hack/tools/monitoring by ` + "`make monitoring`" + `; do not edit. -->

The alerts of ` + "`config/components/monitoring`" + ` ([how to add it](../reference/telemetry.md#dashboards-and-alerts)). The annotation ` + "`runbook_url`" + `
of each leads to its section here. Critical alerts need somebody now. What is wrong in all other cases can wait for working hours.

| alert | severity | for |
|---|---|---|
`)
	for _, alert := range s.alerts() {
		fmt.Fprintf(&text, "| [%s](#%s) | %s | %s |\n", alert.Name, strings.ToLower(alert.Name), alert.Severity, alert.For)
	}
	for _, group := range s.Groups {
		fmt.Fprintf(&text, "\n## %s\n", group.Title)
		for _, alert := range group.Alerts {
			text.WriteString(alert.section())
		}
	}
	return text.String()
}

// section is the runbook of an alert.
func (a *alert) section() string {
	var text strings.Builder
	fmt.Fprintf(&text, "\n### %s\n\n%s\n\n**Look:**\n\n", a.Name, strings.TrimSpace(a.Meaning))
	items(&text, a.Look)
	text.WriteString("\n**Do:**\n\n")
	items(&text, a.Do)
	return text.String()
}

func items(into *strings.Builder, of []string) {
	for _, item := range of {
		fmt.Fprintf(into, "* %s\n", strings.ReplaceAll(strings.TrimSpace(item), "\n", "\n  "))
	}
}
