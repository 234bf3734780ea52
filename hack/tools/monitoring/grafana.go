package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	grafana "github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// object is an object in JSON.
type object map[string]any

// schemaVersion is that of Grafana's schema by which a dashboard is checked.
const schemaVersion = 42

// panelTypes are the types of panels, with their options and the defaults of their fields. Names and values are Grafana's.
var panelTypes = map[string]struct {
	name            string
	options, custom object
}{
	"": {
		"timeseries",
		object{"legend": object{"showLegend": true, "displayMode": "list", "placement": "bottom", "calcs": []string{}}, "tooltip": object{"mode": "multi", "sort": "desc"}},
		object{"drawStyle": "line", "fillOpacity": 10, "lineWidth": 1, "showPoints": "never"},
	},
	"stacked": {
		"timeseries",
		object{"legend": object{"showLegend": true, "displayMode": "list", "placement": "bottom", "calcs": []string{}}, "tooltip": object{"mode": "multi", "sort": "none"}},
		object{"drawStyle": "line", "fillOpacity": 60, "lineWidth": 0, "showPoints": "never", "stacking": object{"mode": "normal", "group": "A"}},
	},
	"timeline": {
		"state-timeline",
		object{
			"showValue": "auto", "rowHeight": 0.9, "mergeValues": true,
			"legend":  object{"showLegend": false, "displayMode": "list", "placement": "bottom", "calcs": []string{}},
			"tooltip": object{"mode": "single", "sort": "none"},
		},
		object{"fillOpacity": 70, "lineWidth": 0},
	},
	"table": {"table", object{"showHeader": true, "frameIndex": 0}, object{"align": "auto", "inspect": false}},
}

// valueNames are names of values, each with a colour.
var valueNames = map[string]map[string][2]string{
	"": nil,
	"phases": {
		"-5": {"InPlaceUpdateFailed", "red"}, "-4": {"Terminating", "purple"}, "-3": {"Failed", "red"}, "-2": {"CrashLoopBackOff", "orange"},
		"-1": {"Unknown", "yellow"}, "0": {"Pending", "blue"}, "1": {"Running", "green"}, "2": {"Available", "green"},
		"3": {"InPlaceUpdating", "blue"}, "4": {"InPlaceUpdateSuccessful", "green"},
	},
	"conditions": {"0": {"False", "orange"}, "1": {"True", "green"}, "2": {"Unknown", "yellow"}},
	"yes":        {"0": {"no", "green"}, "1": {"yes", "red"}},
	"brake":      {"0": {"off", "green"}, "1": {"one at a time", "orange"}, "2": {"none is replaced", "red"}},
}

var datasource = object{"type": "prometheus", "uid": "${datasource}"}

// json is a dashboard for Grafana, checked against its schema.
func (d *dashboard) json() ([]byte, error) {
	panels := []object{}
	for index, panel := range d.Panels {
		made, err := panel.object(index)
		if err != nil {
			return nil, fmt.Errorf("panel %q: %w", panel.Title, err)
		}
		panels = append(panels, made)
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(object{
		"uid":           "nodewright-" + d.Name,
		"title":         "Nodewright / " + d.Title,
		"description":   d.Description + " Made from hack/tools/monitoring by `make monitoring`; do not edit.",
		"tags":          []string{"nodewright"},
		"schemaVersion": schemaVersion,
		"editable":      false,
		"graphTooltip":  1,
		"timezone":      "browser",
		"refresh":       "30s",
		"time":          object{"from": "now-6h", "to": "now"},
		"annotations":   object{"list": []object{}},
		"links":         []object{others()},
		"templating":    object{"list": d.variables()},
		"panels":        panels,
	})
	if err != nil {
		return nil, err
	}
	return text.Bytes(), checkDashboard(text.Bytes())
}

// others is the menu of the other dashboards.
func others() object {
	return object{
		"title": "Nodewright", "type": "dashboards", "icon": "external link", "tooltip": "", "tags": []string{"nodewright"},
		"asDropdown": true, "targetBlank": false, "includeVars": true, "keepTime": true,
	}
}

func (d *dashboard) variables() []object {
	list := []object{{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}}
	list = append(list, choice("namespace", fmt.Sprintf("label_values(up{job=%q}, namespace)", job)))
	for _, variable := range d.Variables {
		values := fmt.Sprintf(`label_values(%s{job=%q, namespace=~"$namespace"}, %s)`, variable.Metric, job, variable.Label)
		list = append(list, choice(variable.Name, values))
	}
	return list
}

// choice is a variable with which all values are chosen at first.
func choice(name, values string) object {
	return object{
		"name": name, "label": strings.ToUpper(name[:1]) + name[1:], "type": "query", "datasource": datasource,
		"query": object{"query": values, "refId": name}, "definition": values, "refresh": 2, "sort": 1, "hide": 0,
		"multi": true, "includeAll": true, "allValue": ".*", "current": object{"text": "All", "value": "$__all"},
	}
}

func (p *panel) object(index int) (object, error) {
	kind, targets := panelTypes[p.Type], []object{}
	for at, query := range p.Queries {
		expr, err := panelExpr(query.Expr)
		if err != nil {
			return nil, err
		}
		target := object{"refId": string(rune('A' + at)), "datasource": datasource, "expr": expr, "legendFormat": query.Legend, "editorMode": "code"}
		if kind.name == "table" {
			target["format"], target["instant"], target["range"] = "table", true, false
		} else {
			target["instant"], target["range"] = false, true
		}
		targets = append(targets, target)
	}
	made := object{
		"id": index + 1, "type": kind.name, "title": p.Title, "description": p.Description, "datasource": datasource,
		"gridPos": object{"x": 12 * (index % 2), "y": 8 * (index / 2), "w": 12, "h": 8},
		"targets": targets, "options": kind.options,
		"fieldConfig": object{"defaults": p.defaults(kind.custom), "overrides": []object{}},
	}
	if kind.name == "table" {
		made["transformations"] = []object{{"id": "organize", "options": object{"excludeByName": object{"Time": true, "Value": true}}}}
	}
	return made, nil
}

func (p *panel) defaults(custom object) object {
	unit := p.Unit
	if unit == "" {
		unit = "short"
	}
	defaults := object{"unit": unit, "custom": custom}
	if names := valueNames[p.Values]; names != nil {
		options := object{}
		for index, value := range sortedKeys(names) {
			options[value] = object{"text": names[value][0], "color": names[value][1], "index": index}
		}
		defaults["mappings"] = []object{{"type": "value", "options": options}}
	}
	return defaults
}

// checkDashboard fails if a dashboard lacks a field that Grafana's schema demands, has one that the schema does not have, or a value
// of another type.
func checkDashboard(text []byte) error {
	plugins.RegisterDefaultPlugins()
	var read grafana.Dashboard
	for _, err := range []error{read.UnmarshalJSONStrict(text), read.Validate()} {
		// The schema's code returns an empty list as an error that is not nil.
		if faults, is := err.(cog.BuildErrors); err != nil && (!is || len(faults) > 0) {
			return fmt.Errorf("not of Grafana's schema: %w", err)
		}
	}
	if wanted := grafana.NewDashboard().SchemaVersion; read.SchemaVersion != wanted {
		return fmt.Errorf("schemaVersion is %d, and that of Grafana's schema is %d", read.SchemaVersion, wanted)
	}
	return nil
}
