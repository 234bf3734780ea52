// Command compare-aws makes a VM of each class with two drivers for AWS at one server of moto, and writes what differs as a page:
//
//	compare-aws --theirs=DRIVER --ours=DRIVER --moto=MOTO_SERVER --page=FILE [--update]
//
// A driver is a program that serves the drivers' protocol. Between each of them and moto is a proxy that keeps the requests that change
// something: moto forgets much of what it is asked for. Then the VM, its volumes, network interfaces and user data are read from moto,
// ids, addresses and times are left out, and all of it is compared as pairs of a path and a value.
//
// A difference that reasons.yaml does not explain is an error, and so is a reason without a difference, or a page that says something
// else; --update writes the page.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
)

func main() {
	var arguments arguments
	flag.StringVar(&arguments.theirs, "theirs", "", "the driver with machine-controller-manager's provider")
	flag.StringVar(&arguments.ours, "ours", "", "our driver")
	flag.StringVar(&arguments.moto, "moto", "", "the program moto_server")
	flag.StringVar(&arguments.page, "page", "", "the page with the comparison")
	flag.StringVar(&arguments.only, "only", "", "compare classes with this in their names, print all values, and leave the page alone")
	flag.BoolVar(&arguments.update, "update", false, "write the page")
	flag.Parse()
	if err := run(context.Background(), arguments); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type arguments struct {
	theirs, ours, moto, page, only string
	update                         bool
}

func run(ctx context.Context, arguments arguments) error {
	classes, err := readClasses()
	if err != nil {
		return err
	}
	reasons, err := readReasons()
	if err != nil {
		return err
	}
	bench, err := start(ctx, arguments)
	if err != nil {
		return err
	}
	defer bench.stop()
	var results []result
	for _, class := range classes {
		if !strings.Contains(class.name, arguments.only) {
			continue
		}
		compared, err := bench.compare(ctx, class)
		if err != nil {
			return fmt.Errorf("class %s: %w\n%s", class.name, err, bench.logs())
		}
		results = append(results, compared)
	}
	problems := explain(results, reasons)
	if arguments.only != "" {
		printAll(results)
		return errors.Join(problems...)
	}
	problems = append(problems, unused(results, reasons)...)
	return errors.Join(append(problems, publish(arguments, render(results, reasons)))...)
}

// publish writes the page, or compares it with what is there.
func publish(arguments arguments, page []byte) error {
	if arguments.update {
		return os.WriteFile(arguments.page, page, 0o644)
	}
	found, err := os.ReadFile(arguments.page)
	if err != nil {
		return err
	}
	if !bytes.Equal(found, page) {
		return fmt.Errorf("%s says something else than this comparison: make test-aws-compare UPDATE=1 writes it, git diff shows what changed", arguments.page)
	}
	return nil
}

func printAll(results []result) {
	for _, result := range results {
		for _, path := range paths(result.theirs, result.ours) {
			mark := " "
			if result.theirs[path] != result.ours[path] {
				mark = "!"
			}
			fmt.Printf("%s %s %s: %s | %s\n", mark, result.class.name, path, shown(result.theirs, path), shown(result.ours, path))
		}
	}
}
