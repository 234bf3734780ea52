package main

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

// A page is a file of Markdown.
type page struct {
	path    string
	content []byte
	title   string
	anchors map[string]bool
	links   []link
	// The links that begin the items of lists: a table of contents, with the paragraphs before each list.
	entries []link
	blocks  []block
}

type link struct {
	line   int
	target string
	label  string
	// The bold words before the list of an entry.
	part string
}

// A block is a fenced block of code.
type block struct {
	line     int
	language string
	// The comment directly before it, without its marks.
	comment string
}

func parsePage(path string, content []byte) (*page, error) {
	made := &page{path: path, content: content, anchors: map[string]bool{}}
	parser := goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser()
	part := ""
	err := ast.Walk(parser.Parse(text.NewReader(content)), func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch node := node.(type) {
		case *ast.Heading:
			made.addHeading(node)
		case *ast.Emphasis:
			if node.Level == 2 {
				part = made.words(node)
			}
		case *ast.Link:
			found := link{made.line(node), string(node.Destination), made.words(node), part}
			made.links = append(made.links, found)
			if begins := node.PreviousSibling() == nil && node.Parent().PreviousSibling() == nil; begins {
				if _, ok := node.Parent().Parent().(*ast.ListItem); ok {
					made.entries = append(made.entries, found)
				}
			}
		case *ast.Image:
			made.links = append(made.links, link{line: made.line(node), target: string(node.Destination)})
		case *ast.FencedCodeBlock:
			found := block{line: made.line(node), language: string(node.Language(content))}
			if before, ok := node.PreviousSibling().(*ast.HTMLBlock); ok {
				found.comment = made.comment(before)
			}
			made.blocks = append(made.blocks, found)
		}
		return ast.WalkContinue, nil
	})
	return made, err
}

// Code hosts and mdBook agree on how an anchor follows from a heading, for the headings that are here.
func (p *page) addHeading(node *ast.Heading) {
	words := p.words(node)
	if p.title == "" {
		p.title = words
	}
	var anchor strings.Builder
	for _, letter := range strings.ToLower(words) {
		switch {
		case unicode.IsSpace(letter):
			anchor.WriteByte('-')
		case unicode.IsLetter(letter), unicode.IsDigit(letter), letter == '-', letter == '_':
			anchor.WriteRune(letter)
		}
	}
	name := anchor.String()
	for number := 1; p.anchors[name]; number++ {
		name = fmt.Sprintf("%s-%d", anchor.String(), number)
	}
	p.anchors[name] = true
}

// The text of a node, without marks.
func (p *page) words(node ast.Node) string {
	var words strings.Builder
	_ = ast.Walk(node, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		if found, ok := node.(*ast.Text); ok && entering {
			words.Write(found.Segment.Value(p.content))
			if found.SoftLineBreak() {
				words.WriteByte(' ')
			}
		}
		return ast.WalkContinue, nil
	})
	return words.String()
}

// The line on which a node, or the block that it is in, begins.
func (p *page) line(node ast.Node) int {
	start := -1
	for ; node != nil && start < 0; node = node.Parent() {
		if node.Type() == ast.TypeInline {
			if found, ok := node.FirstChild().(*ast.Text); ok {
				start = found.Segment.Start
			}
		} else if fenced, ok := node.(*ast.FencedCodeBlock); ok && fenced.Info != nil {
			start = fenced.Info.Segment.Start
		} else if lines := node.Lines(); lines.Len() > 0 {
			start = lines.At(0).Start
		}
	}
	return 1 + bytes.Count(p.content[:max(start, 0)], []byte{'\n'})
}

func (p *page) comment(node *ast.HTMLBlock) string {
	comment := string(node.Lines().Value(p.content))
	if node.HasClosure() {
		comment += string(node.ClosureLine.Value(p.content))
	}
	comment = strings.TrimSpace(comment)
	if !strings.HasPrefix(comment, "<!--") || !strings.HasSuffix(comment, "-->") {
		return ""
	}
	return strings.Join(strings.Fields(comment[len("<!--"):len(comment)-len("-->")]), " ")
}
