package main

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

const (
	region  = "eu-west-1"
	account = "123456789012"
	// The version of each interface.
	ec2Version = "2016-11-15"
	iamVersion = "2010-05-08"
)

// moto is a client of moto's server, which looks at no signature.
type moto struct{ url string }

// ask makes a request of EC2 or IAM. Each parameter is a name and a value.
func (m *moto) ask(ctx context.Context, service, action string, parameters map[string]string) (*element, error) {
	form := url.Values{"Action": {action}, "Version": {ec2Version}}
	if service == "iam" {
		form.Set("Version", iamVersion)
	}
	for name, value := range parameters {
		form.Set(name, value)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, m.url, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Authorization", fmt.Sprintf(
		"AWS4-HMAC-SHA256 Credential=AKIATEST/20260101/%s/%s/aws4_request, SignedHeaders=host, Signature=0", region, service))
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s: %s", action, answer.Status, text)
	}
	root := new(element)
	return root, xml.Unmarshal(text, root)
}

// element is any element of an answer.
type element struct {
	XMLName  xml.Name
	Text     string    `xml:",chardata"`
	Children []element `xml:",any"`
}

func (e *element) name() string { return e.XMLName.Local }

// find is the first element with this name, in the order of the text.
func (e *element) find(name string) *element {
	for at := range e.Children {
		child := &e.Children[at]
		if child.name() == name {
			return child
		}
		if found := child.find(name); found != nil {
			return found
		}
	}
	return nil
}

// text is that of the first element with this name; empty without it.
func (e *element) text(name string) string {
	if found := e.find(name); found != nil {
		return strings.TrimSpace(found.Text)
	}
	return ""
}

// items are the members of the first list with this name.
func (e *element) items(name string) []element {
	if found := e.find(name); found != nil {
		return found.Children
	}
	return nil
}

// all are the members of all lists with this name that are no parts of each other.
func (e *element) all(name string) []element {
	if e.name() == name {
		return e.Children
	}
	var found []element
	for at := range e.Children {
		found = append(found, e.Children[at].all(name)...)
	}
	return found
}

// made asks for something, and returns the id that is in the answer.
func (m *moto) made(ctx context.Context, id, action string, parameters map[string]string) (string, error) {
	answer, err := m.ask(ctx, "ec2", action, parameters)
	if err != nil {
		return "", err
	}
	if answer.text(id) == "" {
		return "", errors.New(action + ": moto's answer has no " + id)
	}
	return answer.text(id), nil
}
