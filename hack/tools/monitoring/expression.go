package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

const (
	// job is the label by which all queries select: other programs have metrics of the same names.
	job = "nodewright"
	// rateInterval is Grafana's name of a range; the parser knows no names, and sees a range that nothing else has.
	rateInterval        = "$__rate_interval"
	rateIntervalInParse = "1h23m45s"
)

// ownSeries are metrics that Prometheus makes itself, and whether they have the label job.
var ownSeries = map[string]bool{"up": true, "ALERTS": false}

func parse(expr string) (parser.Expr, error) {
	return parser.NewParser(parser.Options{}).ParseExpr(strings.ReplaceAll(expr, rateInterval, rateIntervalInParse))
}

// print is the text of an expression. Durations that are numbers are written in seconds, which each version of Prometheus reads.
func print(expr parser.Expr) string {
	walk(expr, func(node parser.Node) {
		if number, is := node.(*parser.NumberLiteral); is {
			number.Duration = false
		}
	})
	return strings.ReplaceAll(expr.String(), rateIntervalInParse, rateInterval)
}

func walk(expr parser.Expr, visit func(parser.Node)) {
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if node != nil {
			visit(node)
		}
		return nil
	})
}

// ruleExpr is the expression of a rule, with all times divided by a factor.
func ruleExpr(expr string, factor int) (string, error) {
	parsed, err := parse(expr)
	if err != nil {
		return "", err
	}
	addMatchers(parsed, labels.MustNewMatcher(labels.MatchEqual, "job", job))
	shorten(parsed, factor)
	return print(parsed), nil
}

// panelExpr is the expression of a panel.
func panelExpr(expr string) (string, error) {
	parsed, err := parse(expr)
	if err != nil {
		return "", err
	}
	addMatchers(parsed, labels.MustNewMatcher(labels.MatchEqual, "job", job),
		labels.MustNewMatcher(labels.MatchRegexp, "namespace", "$namespace"))
	return print(parsed), nil
}

// addMatchers adds matchers to all selectors.
func addMatchers(expr parser.Expr, matchers ...*labels.Matcher) {
	walk(expr, func(node parser.Node) {
		selector, is := node.(*parser.VectorSelector)
		if !is {
			return
		}
		if hasJob, isOwn := ownSeries[selector.Name]; isOwn && !hasJob {
			return
		}
		selector.LabelMatchers = append(selector.LabelMatchers, matchers...)
	})
}

// shorten divides all times of an expression: ranges, offsets, and numbers that are written as durations.
func shorten(expr parser.Expr, factor int) {
	by := time.Duration(factor)
	walk(expr, func(node parser.Node) {
		switch node := node.(type) {
		case *parser.MatrixSelector:
			node.Range = max(node.Range/by, 4*time.Second)
		case *parser.VectorSelector:
			node.OriginalOffset /= by
		case *parser.NumberLiteral:
			if node.Duration {
				node.Val /= float64(factor)
			}
		}
	})
}

func shortenFor(of model.Duration, factor int) model.Duration {
	return model.Duration((time.Duration(of) / time.Duration(factor)).Round(time.Millisecond))
}

// metricsOf are the names that an expression selects.
func metricsOf(expr string) ([]string, error) {
	parsed, err := parse(expr)
	if err != nil {
		return nil, err
	}
	var names []string
	walk(parsed, func(node parser.Node) {
		if selector, is := node.(*parser.VectorSelector); is && !slices.Contains(names, selector.Name) {
			names = append(names, selector.Name)
		}
	})
	if slices.Contains(names, "") {
		return nil, fmt.Errorf("%s selects by labels alone", expr)
	}
	return names, nil
}
