package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// The page that lists the others, and the folder of those.
const (
	indexPath = "docs/README.md"
	docs      = "docs/"
)

// A tree is a checkout of the repository, with its pages in the order of their paths.
type tree struct {
	root  string
	pages []*page
}

func readTree(root string) (*tree, error) {
	read := &tree{root: root}
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if hidden := strings.HasPrefix(entry.Name(), ".") && name != "."; entry.IsDir() && (hidden || entry.Name() == "target") {
			return fs.SkipDir
		}
		if entry.IsDir() || path.Ext(name) != ".md" {
			return nil
		}
		content, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return err
		}
		parsed, err := parsePage(name, content)
		read.pages = append(read.pages, parsed)
		return err
	})
	if err == nil && read.page(indexPath) == nil {
		err = fmt.Errorf("%s has no %s", root, indexPath)
	}
	return read, err
}

func (t *tree) page(name string) *page {
	at := slices.IndexFunc(t.pages, func(page *page) bool { return page.path == name })
	if at < 0 {
		return nil
	}
	return t.pages[at]
}

// The path that a link leads to, and its anchor; no path if it leads out of the repository.
func resolve(from, target string) (name, anchor string, err error) {
	parsed, err := url.Parse(target)
	if err != nil || parsed.Scheme != "" || parsed.Host != "" {
		return "", "", err
	}
	if parsed.Path == "" {
		return from, parsed.Fragment, nil
	}
	name = path.Join(path.Dir(from), parsed.Path)
	if path.IsAbs(parsed.Path) || name == ".." || strings.HasPrefix(name, "../") {
		return "", "", errors.New("is not relative, or leads out of the repository")
	}
	return name, parsed.Fragment, nil
}

// What is wrong with the links of all pages.
func (t *tree) links() (problems []string) {
	for _, page := range t.pages {
		for _, link := range page.links {
			if problem := t.problem(page, link); problem != "" {
				problems = append(problems, fmt.Sprintf("%s:%d: the link %s %s", page.path, link.line, link.target, problem))
			}
		}
	}
	return problems
}

func (t *tree) problem(from *page, link link) string {
	name, anchor, err := resolve(from.path, link.target)
	if err != nil {
		return err.Error()
	}
	if name == "" {
		return ""
	}
	if to := t.page(name); to != nil {
		if anchor != "" && !to.anchors[anchor] {
			return fmt.Sprintf("names no heading of %s", name)
		}
		return ""
	}
	info, err := os.Stat(filepath.Join(t.root, name))
	switch {
	case err != nil:
		return "leads to no file"
	case info.IsDir():
		return "leads to a folder, which is no page of the book: name a file"
	case anchor != "":
		return "has an anchor, and leads to no page"
	}
	return ""
}

// The pages that docs/README.md lists, in order.
func (t *tree) entries() []link {
	entries := slices.Clone(t.page(indexPath).entries)
	for at := range entries {
		entries[at].target, _, _ = resolve(indexPath, entries[at].target)
	}
	return entries
}

// The pages in docs that docs/README.md does not list, or lists twice.
func (t *tree) index() (problems []string) {
	listed := map[string]int{}
	for _, entry := range t.entries() {
		listed[entry.target]++
	}
	for _, page := range t.pages {
		if !strings.HasPrefix(page.path, docs) || page.path == indexPath {
			continue
		}
		switch listed[page.path] {
		case 0:
			problems = append(problems, fmt.Sprintf("%s: %s does not list this page", page.path, indexPath))
		case 1:
		default:
			problems = append(problems, fmt.Sprintf("%s: %s lists this page more than once", page.path, indexPath))
		}
		if page.title == "" {
			problems = append(problems, fmt.Sprintf("%s: the page has no heading", page.path))
		}
	}
	return problems
}
