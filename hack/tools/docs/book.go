package main

import (
	"fmt"
	"html"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Writes the sources of the book: each page, and each file that a page links to, at its path in the repository, so that
// relative links are the same here and there; and SUMMARY.md.
func (t *tree) writeSource(into string) error {
	files := map[string]bool{}
	for _, page := range t.pages {
		files[page.path] = true
		for _, link := range page.links {
			if name, _, err := resolve(page.path, link.target); err == nil && name != "" {
				files[name] = true
			}
		}
	}
	for name := range files {
		content, err := os.ReadFile(filepath.Join(t.root, name))
		if err != nil {
			return err
		}
		if err := write(filepath.Join(into, name), content); err != nil {
			return err
		}
	}
	return write(filepath.Join(into, "SUMMARY.md"), []byte(t.summary()))
}

func write(name string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, content, 0o644)
}

// The list of the book's chapters: README.md, the index and its parts, and the pages outside docs.
func (t *tree) summary() string {
	var made strings.Builder
	listed := map[string]bool{"README.md": true, indexPath: true}
	made.WriteString("# Summary\n\n")
	for _, name := range []string{"README.md", indexPath} {
		fmt.Fprintf(&made, "[%s](%s)\n\n", t.page(name).title, name)
	}
	part := ""
	for _, entry := range t.entries() {
		if entry.part != part {
			part = entry.part
			fmt.Fprintf(&made, "\n# %s\n\n", part)
		}
		fmt.Fprintf(&made, "- [%s](%s)\n", entry.label, entry.target)
		listed[entry.target] = true
	}
	made.WriteString("\n# Project\n\n")
	rest := slices.DeleteFunc(slices.Clone(t.pages), func(page *page) bool { return listed[page.path] })
	slices.SortStableFunc(rest, func(a, b *page) int { return strings.Count(a.path, "/") - strings.Count(b.path, "/") })
	for _, page := range rest {
		fmt.Fprintf(&made, "- [%s](%s)\n", page.title, page.path)
	}
	return made.String()
}

var (
	hrefs = regexp.MustCompile(`<a [^>]*?href="([^"]*)"`)
	ids   = regexp.MustCompile(` (?:id|name)="([^"]*)"`)
)

// What is wrong with the links in the HTML of a book.
func checkBook(root string) (problems []string, err error) {
	pages := map[string]string{}
	anchors := map[string]map[string]bool{}
	files := map[string]bool{}
	err = fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		files[name] = true
		if path.Ext(name) != ".html" {
			return nil
		}
		content, err := os.ReadFile(filepath.Join(root, name))
		pages[name] = string(content)
		anchors[name] = map[string]bool{}
		for _, id := range ids.FindAllStringSubmatch(string(content), -1) {
			anchors[name][html.UnescapeString(id[1])] = true
		}
		return err
	})
	if err == nil && len(pages) == 0 {
		err = fmt.Errorf("%s has no pages", root)
	}
	links := 0
	for name, content := range pages {
		for _, href := range hrefs.FindAllStringSubmatch(content, -1) {
			target := html.UnescapeString(href[1])
			to, anchor, err := resolve(name, target)
			switch {
			case err == nil && to == "":
				continue
			case err != nil || !files[to]:
				problems = append(problems, fmt.Sprintf("%s: the link %s leads to no file of the book", name, target))
			case anchor != "" && !anchors[to][anchor]:
				problems = append(problems, fmt.Sprintf("%s: the link %s names no heading", name, target))
			}
			links++
		}
	}
	fmt.Fprintf(os.Stderr, "the book has %d pages with %d links\n", len(pages), links)
	slices.Sort(problems)
	return problems, err
}
