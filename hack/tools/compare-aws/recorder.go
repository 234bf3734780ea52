package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
)

// recorder passes requests on to moto, and keeps those that change something.
type recorder struct {
	proxy *httputil.ReverseProxy
	mutex sync.Mutex
	forms []url.Values
}

func newRecorder(target string) (*recorder, error) {
	to, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	return &recorder{proxy: httputil.NewSingleHostReverseProxy(to)}, nil
}

func (r *recorder) ServeHTTP(answer http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		http.Error(answer, err.Error(), http.StatusBadRequest)
		return
	}
	request.Body = io.NopCloser(bytes.NewReader(body))
	if form, err := url.ParseQuery(string(body)); err == nil && !strings.HasPrefix(form.Get("Action"), "Describe") {
		r.mutex.Lock()
		r.forms = append(r.forms, form)
		r.mutex.Unlock()
	}
	r.proxy.ServeHTTP(answer, request)
}

// take returns what was kept since the last call.
func (r *recorder) take() []url.Values {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	forms := r.forms
	r.forms = nil
	return forms
}
