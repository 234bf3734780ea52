package server

import (
	"encoding/base64"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	pb "nodewright.dev/controllers/driver/gardener/protocol"
)

const (
	// Shorter values are words of daily use, such as names of regions, and no passwords.
	shortestSecret = 8
	// Shorter lines of a value do not tell it.
	shortestLine = 16
	replacement  = "[secret]"
	// The key of user data in a Secret.
	userDataKey = "userData"
)

// redactor replaces the secrets of calls that are under way in what providers say.
type redactor struct {
	mutex sync.RWMutex
	// uses counts the calls that have a value.
	uses map[string]int
	// values has the keys of uses, the longest first: one may be a part of another.
	values []string
}

func newRedactor() *redactor {
	return &redactor{uses: map[string]int{}}
}

// hold replaces the secrets of a call, and other texts, until the result is called.
func (r *redactor) hold(class *pb.Class, userData string, others []string) func() {
	forms := map[string]bool{}
	for _, text := range others {
		addForms(forms, text, false)
	}
	addForms(forms, userData, false)
	for key, value := range class.GetSecrets().GetData() {
		addForms(forms, string(value), key != userDataKey)
	}
	r.count(forms, 1)
	return func() { r.count(forms, -1) }
}

func (r *redactor) count(forms map[string]bool, change int) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	before := len(r.uses)
	for form := range forms {
		r.uses[form] += change
		if r.uses[form] == 0 {
			delete(r.uses, form)
		}
	}
	if len(r.uses) == before && len(r.values) == before && change > 0 {
		return
	}
	r.values = r.values[:0:0]
	for form := range r.uses {
		r.values = append(r.values, form)
	}
	slices.SortFunc(r.values, func(a, b string) int { return len(b) - len(a) })
}

// redact returns a text without the secrets.
func (r *redactor) redact(text string) string {
	r.mutex.RLock()
	defer r.mutex.RUnlock()
	for _, value := range r.values {
		if len(value) <= len(text) {
			text = strings.ReplaceAll(text, value, replacement)
		}
	}
	return text
}

// addForms adds the ways in which a value may be written: as it is, in quotes, in base64, in a URL, and line by line.
func addForms(forms map[string]bool, value string, withLines bool) {
	trimmed := strings.TrimSpace(value)
	if len(trimmed) < shortestSecret {
		return
	}
	quoted := strconv.Quote(trimmed)
	encoded := base64.StdEncoding.EncodeToString([]byte(value))
	for _, form := range []string{trimmed, quoted[1 : len(quoted)-1], encoded, strings.TrimRight(encoded, "="), url.QueryEscape(trimmed)} {
		forms[form] = true
	}
	if !withLines {
		return
	}
	for line := range strings.Lines(trimmed) {
		if line = strings.TrimSpace(line); len(line) >= shortestLine {
			forms[line] = true
		}
	}
}

// writer redacts what is written to another one. Each Write is a line of a log.
type writer struct {
	redactor *redactor
	inner    io.Writer
}

func (w writer) Write(line []byte) (int, error) {
	if _, err := io.WriteString(w.inner, w.redactor.redact(string(line))); err != nil {
		return 0, err
	}
	return len(line), nil
}
