package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

const introduction = `# The AWS driver and machine-controller-manager's

<!-- Written by make test-aws-compare, which fails when this page says something else than the comparison. -->

machine-controller-manager's provider for AWS (v0.29.0-dev, commit ` + "`9dd2b7a8`" + `) runs behind [the bridge](../tasks/mcm-providers.md) as a driver,
beside [ours](../tasks/aws.md). Both make a VM of each of %d MachineClasses (` + "`hack/tools/compare-aws/classes`" + `), one after the other, in the same network
of one moto. Compared are:

* the parameters of all requests that change something, as a proxy sees them: moto forgets many of them;
* the VM, its volumes, network interfaces, tags and user data as moto shows them, and what is left of them after the deletion;
* the provider id and the Node's name in the driver's answer.

Ids, addresses and times are left out, and the order of tags. Of the %d classes %d differ in nothing but the client token, %d differ for a reason below.

## Reasons

| | machine-controller-manager's provider | this driver | why |
|---|---|---|---|
`

const table = `
## Classes

The columns count the parameters and the values that are equal. Where a driver makes no VM, they say what it answers: theirs / ours.

| class | | asked for | shown | differs in |
|---|---|---|---|---|
`

func render(results []result, reasons []*reason) []byte {
	equal := 0
	var rows bytes.Buffer
	for _, result := range results {
		names := differing(result)
		if len(names) == 0 {
			equal++
		}
		asked, shown := agreeing(result)
		fmt.Fprintf(&rows, "| `%s` | %s | %s | %s | %s |\n", result.class.name, result.class.about, asked, shown, strings.Join(names, ", "))
	}
	var page bytes.Buffer
	fmt.Fprintf(&page, introduction, len(results), len(results), equal, len(results)-equal)
	for _, reason := range reasons {
		fmt.Fprintf(&page, "| %s | %s | %s | %s |\n", reason.Name, reason.Theirs, reason.Ours, reason.Why)
	}
	page.WriteString(table)
	page.Write(rows.Bytes())
	return page.Bytes()
}

// differing are the reasons of a class's own differences.
func differing(result result) []string {
	var names []string
	for _, reason := range result.differences {
		if len(reason.Classes) > 0 && !slices.Contains(names, reason.Name) {
			names = append(names, reason.Name)
		}
	}
	slices.Sort(names)
	return names
}

// agreeing says how many values of the requests and of the VM are equal, or that there is no VM.
func agreeing(result result) (asked, shown string) {
	requests, vm := 0, 0
	for path, value := range result.theirs {
		if ours, known := result.ours[path]; !known || ours != value {
			continue
		}
		if strings.HasPrefix(path, "request.") {
			requests++
		} else {
			vm++
		}
	}
	if theirs, ours := result.theirs[outcome], result.ours[outcome]; theirs != created || ours != created {
		shown = theirs
		if theirs != ours {
			shown = theirs + " / " + ours
		}
		if requests == 0 {
			return "", shown
		}
		return fmt.Sprint(requests), shown
	}
	return fmt.Sprint(requests), fmt.Sprint(vm)
}
