// Checks the pages of this repository, and makes mdBook's sources of them. The first argument says what to do:
//
//	check ROOT          fail if a link leads nowhere, a page is missing in docs/README.md, or commands have no mark
//	source ROOT INTO    write the pages, what they link to, and SUMMARY.md
//	built BOOK          fail if a link in the HTML of a book leads nowhere
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	switch {
	case len(arguments) == 2 && arguments[0] == "check":
		tree, err := readTree(arguments[1])
		if err != nil {
			return err
		}
		problems := append(tree.links(), tree.index()...)
		return failed(append(problems, tree.commands()...))
	case len(arguments) == 3 && arguments[0] == "source":
		tree, err := readTree(arguments[1])
		if err != nil {
			return err
		}
		return tree.writeSource(arguments[2])
	case len(arguments) == 2 && arguments[0] == "built":
		problems, err := checkBook(arguments[1])
		if err != nil {
			return err
		}
		return failed(problems)
	}
	return fmt.Errorf("want check ROOT, source ROOT INTO, or built BOOK; got %q", arguments)
}

func failed(problems []string) error {
	if len(problems) == 0 {
		return nil
	}
	return errors.New(strings.Join(problems, "\n"))
}
