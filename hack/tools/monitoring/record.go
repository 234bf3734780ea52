package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/common/model"
)

// samples is how many values a recorded series has at most: more than a picture can show.
const samples = 120

// record is what the queries of all panels returned in a run.
type record struct {
	// Seconds is the length of the run.
	Seconds    float64             `json:"seconds"`
	Dashboards []recordedDashboard `json:"dashboards"`
}

type recordedDashboard struct {
	Name   string          `json:"name"`
	Title  string          `json:"title"`
	Panels []recordedPanel `json:"panels"`
}

type recordedPanel struct {
	Title  string   `json:"title"`
	Type   string   `json:"type,omitempty"`
	Unit   string   `json:"unit,omitempty"`
	Values string   `json:"values,omitempty"`
	Series []series `json:"series"`
}

// series is a line of a panel. Each point is a time in seconds since the begin of the run, and a value.
type series struct {
	Legend string       `json:"legend"`
	Points [][2]float64 `json:"points"`
}

// savePanels writes what the queries of all panels have returned since a time into a file.
func savePanels(address, since, file string) error {
	from, err := load()
	if err != nil {
		return err
	}
	begin, err := strconv.ParseFloat(since, 64)
	if err != nil {
		return err
	}
	run := record{Seconds: math.Floor(float64(time.Now().Unix()) - begin)}
	for _, dashboard := range from.Dashboards {
		saved := recordedDashboard{Name: dashboard.Name, Title: dashboard.Title}
		for _, panel := range dashboard.Panels {
			kept := recordedPanel{Title: panel.Title, Type: panel.Type, Unit: panel.Unit, Values: panel.Values}
			for _, query := range panel.Queries {
				found, err := query.record(address, since, &dashboard)
				if err != nil {
					return err
				}
				kept.Series = append(kept.Series, found...)
			}
			saved.Panels = append(saved.Panels, kept)
		}
		run.Dashboards = append(run.Dashboards, saved)
	}
	text, err := json.Marshal(run)
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// record is what a query has returned since a time.
func (q *query) record(address, since string, of *dashboard) ([]series, error) {
	expr, err := panelExpr(q.Expr)
	if err != nil {
		return nil, err
	}
	data, err := history(address, inRun(expr, of), since)
	if err != nil {
		return nil, err
	}
	begin, err := strconv.ParseFloat(since, 64)
	if err != nil {
		return nil, err
	}
	var all []series
	for _, stream := range data {
		all = append(all, series{Legend: legend(q.Legend, stream.Metric), Points: thinned(stream.Values, begin)})
	}
	slices.SortFunc(all, func(a, b series) int { return compare(a.Legend, b.Legend) })
	return all, nil
}

var labelOfLegend = regexp.MustCompile(`{{\s*([a-z_A-Z]+)\s*}}`)

// legend is a legend with the values of labels in their places.
func legend(of string, metric model.Metric) string {
	return labelOfLegend.ReplaceAllStringFunc(of, func(match string) string {
		return string(metric[model.LabelName(labelOfLegend.FindStringSubmatch(match)[1])])
	})
}

// thinned is each so many-th value, and the first and the last one of each part without gaps.
func thinned(values []model.SamplePair, begin float64) [][2]float64 {
	step := max(1, len(values)/samples)
	var points [][2]float64
	for index, sample := range values {
		isEdge := index == 0 || index == len(values)-1 ||
			values[index+1].Timestamp-sample.Timestamp > gap || sample.Timestamp-values[index-1].Timestamp > gap
		value := float64(sample.Value)
		if (isEdge || index%step == 0) && !math.IsNaN(value) && !math.IsInf(value, 0) {
			points = append(points, [2]float64{math.Round(float64(sample.Timestamp)/1000 - begin), rounded(value)})
		}
	}
	return points
}

// gap is the time in milliseconds between two values between which there is nothing.
const gap = 2500

// rounded is a number with as many digits as a picture can show.
func rounded(value float64) float64 {
	short, _ := strconv.ParseFloat(fmt.Sprintf("%.4g", value), 64)
	return short
}
