package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Languages of blocks with commands.
var shells = map[string]bool{"console": true, "sh": true, "bash": true, "shell": true}

var (
	runBy  = regexp.MustCompile(`^run by: make ([a-z0-9-]+), in (\S+)$`)
	notRun = regexp.MustCompile(`^not run: .{10,}$`)
	// Begins a line for each part but the first.
	parts = strings.NewReplacer("; run by: ", "\nrun by: ", "; not run: ", "\nnot run: ")
)

// The blocks with commands before which no comment has the test that runs them, or why none does:
//
//	<!-- run by: make test-chart, in hack/test-chart-releases.sh -->
//	<!-- not run: needs an account of AWS -->
//
// A comment may have several such parts, between semicolons, if some of the commands are run and others are not.
func (t *tree) commands() (problems []string) {
	makefile, err := os.ReadFile(filepath.Join(t.root, "Makefile"))
	if err != nil {
		return []string{err.Error()}
	}
	for _, page := range t.pages {
		for _, block := range page.blocks {
			problem := ""
			switch {
			case block.language == "":
				problem = "this block of code names no language, such as console, yaml or text"
			case shells[block.language]:
				problem = t.mark(block.comment, string(makefile))
			}
			if problem != "" {
				problems = append(problems, fmt.Sprintf("%s:%d: %s", page.path, block.line, problem))
			}
		}
	}
	return problems
}

// What is wrong with the comment before a block of commands.
func (t *tree) mark(comment, makefile string) string {
	for part := range strings.SplitSeq(parts.Replace(comment), "\n") {
		if notRun.MatchString(part) {
			continue
		}
		found := runBy.FindStringSubmatch(part)
		if found == nil {
			return "these commands want a comment before them: <!-- run by: make TARGET, in FILE -->, or <!-- not run: WHY -->"
		}
		if !regexp.MustCompile(`(?m)^` + found[1] + `:`).MatchString(makefile) {
			return fmt.Sprintf("the comment names make %s, and the Makefile has no such target", found[1])
		}
		if _, err := os.Stat(filepath.Join(t.root, found[2])); err != nil {
			return fmt.Sprintf("the comment names %s, which does not exist", found[2])
		}
	}
	return ""
}
