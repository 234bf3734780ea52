// Makes Prometheus' rules, Grafana's dashboards and the page of alerts from alerts.yaml and dashboards.yaml, and tests them. The first
// argument says what to do:
//
//	generate TREE INTO              write what is made of the sources into the folder INTO; TREE is the root of the project
//	rules FACTOR                    print the rules for Prometheus, with all times FACTOR times shorter
//	unit-tests RULES                print tests of the rules in the file RULES, for promtool
//	alerts URL                      print the alerts of a Prometheus and their states, one a line
//	panels URL SINCE                check that each query of each panel had data since a time, and that it moved
//	save URL SINCE FILE             write what the queries of all panels had since a time
//	plot FILE INTO                  draw what was saved, a picture for each dashboard, into the folder INTO
//	fired URL SINCE                 check that each alert fired since a time, except those that say why not
package main

import (
	"errors"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "monitoring:", err)
		os.Exit(1)
	}
}

// commands are what can be done, with the number of arguments.
var commands = map[string]struct {
	arguments int
	run       func([]string) error
}{
	"generate":   {2, func(of []string) error { return generate(of[0], of[1]) }},
	"rules":      {1, func(of []string) error { return printRules(of[0]) }},
	"unit-tests": {1, func(of []string) error { return printUnitTests(of[0]) }},
	"alerts":     {1, func(of []string) error { return printAlerts(of[0]) }},
	"panels":     {2, func(of []string) error { return checkPanels(of[0], of[1]) }},
	"save":       {3, func(of []string) error { return savePanels(of[0], of[1], of[2]) }},
	"plot":       {2, func(of []string) error { return plot(of[0], of[1]) }},
	"fired":      {2, func(of []string) error { return checkFired(of[0], of[1]) }},
}

func run(arguments []string) error {
	if len(arguments) == 0 {
		return errors.New("want a command, see main.go")
	}
	command, found := commands[arguments[0]]
	if !found || command.arguments != len(arguments)-1 {
		return fmt.Errorf("unknown arguments %q, see main.go", arguments)
	}
	return command.run(arguments[1:])
}
