package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
)

// ask calls Prometheus' HTTP API, and decodes the data of the answer.
func ask(address, path string, values url.Values, into any) error {
	answer, err := http.PostForm(address+"/api/v1/"+path, values)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	read := struct {
		Status, Error string
		Data          any
	}{Data: into}
	if err := json.NewDecoder(answer.Body).Decode(&read); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if read.Status != "success" {
		return fmt.Errorf("%s: %s", path, read.Error)
	}
	return nil
}

// history is the values of a query in each second since a time.
func history(address, expr, since string) (model.Matrix, error) {
	var data struct{ Result model.Matrix }
	begin, err := strconv.ParseInt(since, 10, 64)
	if err != nil {
		return nil, err
	}
	// Prometheus has an answer of 11,000 points at most.
	step := max(1, (time.Now().Unix()-begin)/5000)
	err = ask(address, "query_range", url.Values{
		"query": {expr}, "start": {since}, "end": {strconv.FormatInt(time.Now().Unix(), 10)}, "step": {strconv.FormatInt(step, 10)},
	}, &data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", expr, err)
	}
	return data.Result, nil
}

// printAlerts prints the alerts that there are now: state, name, and labels.
func printAlerts(address string) error {
	var data struct{ Result model.Vector }
	if err := ask(address, "query", url.Values{"query": {"ALERTS"}}, &data); err != nil {
		return err
	}
	var lines []string
	for _, alert := range data.Result {
		lines = append(lines, fmt.Sprintf("%s %s %s", alert.Metric["alertstate"], alert.Metric["alertname"], alert.Metric))
	}
	slices.Sort(lines)
	fmt.Print(strings.Join(append(lines, ""), "\n"))
	return nil
}

// inRun is the query of a panel with all values of its variables, for scrapes each second.
func inRun(expr string, of *dashboard) string {
	replaced := []string{"$namespace", ".*", rateInterval, "10s"}
	for _, variable := range of.Variables {
		replaced = append(replaced, "$"+variable.Name, ".*")
	}
	return strings.NewReplacer(replaced...).Replace(expr)
}

// moves reports whether the answer to a query changes in a run of many seconds: the values of a series, or which series there are.
func moves(data model.Matrix, run int) bool {
	for _, series := range data {
		// The first scrapes may miss some.
		if len(series.Values) < run-10 {
			return true
		}
		for _, sample := range series.Values {
			if sample.Value != series.Values[0].Value && !math.IsNaN(float64(sample.Value)) {
				return true
			}
		}
	}
	return false
}

// isZero reports whether all values of all series are 0.
func isZero(data model.Matrix) bool {
	return !slices.ContainsFunc(data, func(series *model.SampleStream) bool {
		return slices.ContainsFunc(series.Values, func(sample model.SamplePair) bool { return sample.Value != 0 })
	})
}

// checkPanels fails if a query had no data since a time, or values that never changed, unless the source says why; and if something
// was counted although the source says that nothing is.
func checkPanels(address, since string) error {
	from, err := load()
	if err != nil {
		return err
	}
	ups, err := history(address, "count(up)", since)
	if err != nil {
		return err
	}
	if len(ups) == 0 {
		return errors.New("nothing was scraped")
	}
	run := len(ups[0].Values)
	var wrong []string
	checked := 0
	for _, dashboard := range from.Dashboards {
		for _, panel := range dashboard.Panels {
			for _, query := range panel.Queries {
				fault, err := query.check(address, since, &dashboard, run)
				if err != nil {
					return err
				}
				if checked++; fault != "" {
					wrong = append(wrong, fmt.Sprintf("%s, %s, %s: %s", dashboard.Title, panel.Title, query.Expr, fault))
				}
				if query.Zero != "" {
					fmt.Fprintf(os.Stderr, "      always 0: %s, %s (%s): %s\n", dashboard.Title, panel.Title, query.Legend, query.Zero)
				}
			}
		}
	}
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "\n"))
	}
	fmt.Printf("%d queries\n", checked)
	return nil
}

// check returns what is wrong with a query in a run of so many values.
func (q *query) check(address, since string, of *dashboard, run int) (string, error) {
	expr, err := panelExpr(q.Expr)
	if err != nil {
		return "", err
	}
	data, err := history(address, inRun(expr, of), since)
	if err != nil {
		return "", err
	}
	switch {
	case len(data) == 0:
		return "it has no data", nil
	case q.Zero != "" && !isZero(data):
		return "it has counted something, and the source says that nothing is counted", nil
	case q.Zero == "" && q.Still == "" && !moves(data, run):
		return "its values never changed", nil
	}
	return "", nil
}

// checkFired fails if an alert has not fired since a time, unless the source says why; and if it has although it says that.
func checkFired(address, since string) error {
	from, err := load()
	if err != nil {
		return err
	}
	data, err := history(address, `ALERTS{alertstate="firing"}`, since)
	if err != nil {
		return err
	}
	fired := map[string]bool{}
	for _, series := range data {
		fired[string(series.Metric["alertname"])] = true
	}
	var wrong []string
	count := 0
	for _, alert := range from.alerts() {
		switch {
		case fired[alert.Name] && alert.UnitOnly != "":
			wrong = append(wrong, alert.Name+" has fired, and the source says that it does not")
		case fired[alert.Name]:
			count++
		case alert.UnitOnly == "":
			wrong = append(wrong, alert.Name+" has not fired")
		default:
			fmt.Fprintf(os.Stderr, "      unit test alone: %s: %s\n", alert.Name, alert.UnitOnly)
		}
	}
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "\n"))
	}
	fmt.Printf("%d of %d alerts\n", count, len(from.alerts()))
	return nil
}
