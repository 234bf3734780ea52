// Package cloud is a client of the fake cloud, nodewright-cloud. The crate e2e/cloud documents the HTTP API.
package cloud

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/status"
)

const (
	// TagCluster is the tag with the name of the cluster that a VM belongs to.
	TagCluster = "cluster"
	// TagMachine is the tag with the name of the Machine that a VM belongs to.
	TagMachine = "machine"

	// StateDeleting is the state of a VM that is being deleted.
	StateDeleting = "deleting"

	providerIDPrefix = "simulated:///"
	callTimeout      = 15 * time.Second
	answerLimit      = 16 << 20
	vmsPerPage       = 500
	// As many connections as machine-controller has workers.
	idleConnections = 50
)

// Node says how the kubelet of a VM registers.
type Node struct {
	Labels map[string]string `json:"labels"`
	Taints []Taint           `json:"taints"`
}

// Taint is a taint of a Node at its registration.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

// CreateVM is the order of a VM.
type CreateVM struct {
	Name        string            `json:"name"`
	Token       string            `json:"token"`
	Tags        map[string]string `json:"tags"`
	Node        Node              `json:"node"`
	Size        string            `json:"size,omitempty"`
	BootSeconds *float64          `json:"bootSeconds,omitempty"`
	UserData    string            `json:"userData,omitempty"`
}

// VM is a virtual machine.
type VM struct {
	ID         string            `json:"id"`
	Name       string            `json:"name"`
	State      string            `json:"state"`
	Tags       map[string]string `json:"tags"`
	ProviderID string            `json:"providerID"`
	NodeName   string            `json:"nodeName"`
}

// Client calls one cloud. Its errors are those of machine-controller-manager's drivers: they have a code.
type Client struct {
	// Requested, if it is not nil, is called for each request about VMs that has ended: instance_create, instance_get,
	// instance_delete or instance_list, when it began, and its error.
	Requested func(service string, begun time.Time, err error)

	url  string
	http *http.Client
}

// New returns a client of the cloud at a URL such as http://127.0.0.1:8080.
func New(url string) *Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = idleConnections
	return &Client{url: strings.TrimRight(url, "/"), http: &http.Client{Timeout: callTimeout, Transport: transport}}
}

// ID returns the id of the VM with this provider ID.
func ID(providerID string) (string, error) {
	id, found := strings.CutPrefix(providerID, providerIDPrefix)
	if !found || id == "" {
		message := fmt.Sprintf("provider id %q is not of this provider; it must begin %s", providerID, providerIDPrefix)
		return "", status.Error(codes.InvalidArgument, message)
	}
	return id, nil
}

// Create creates a VM. The cloud creates one VM for a token, and returns the same VM for a repeated order.
func (c *Client) Create(ctx context.Context, order CreateVM) (VM, error) {
	var vm VM
	return vm, c.request(ctx, "instance_create", http.MethodPost, "/vms", order, &vm)
}

// Get returns a VM.
func (c *Client) Get(ctx context.Context, id string) (VM, error) {
	var vm VM
	return vm, c.request(ctx, "instance_get", http.MethodGet, "/vms/"+url.PathEscape(id), nil, &vm)
}

// Delete starts the deletion of a VM. A VM that is gone is no error.
func (c *Client) Delete(ctx context.Context, id string) error {
	err := c.request(ctx, "instance_delete", http.MethodDelete, "/vms/"+url.PathEscape(id), nil, nil)
	if CodeOf(err) == codes.NotFound {
		return nil
	}
	return err
}

// SetSilent has the kubelet of a VM report nothing, or report again.
func (c *Client) SetSilent(ctx context.Context, id string, silent bool) error {
	action := "revive"
	if silent {
		action = "silence"
	}
	order := map[string]string{"action": action}
	return c.call(ctx, http.MethodPost, "/vms/"+url.PathEscape(id)+"/kubelet", order, nil)
}

// List returns all VMs with these tags.
func (c *Client) List(ctx context.Context, tags map[string]string) ([]VM, error) {
	query := url.Values{"limit": {fmt.Sprint(vmsPerPage)}}
	for key, value := range tags {
		query.Set("tag."+key, value)
	}
	var vms []VM
	for {
		var page struct {
			Items []VM   `json:"items"`
			Next  string `json:"next"`
		}
		if err := c.request(ctx, "instance_list", http.MethodGet, "/vms?"+query.Encode(), nil, &page); err != nil {
			return nil, err
		}
		vms = append(vms, page.Items...)
		if page.Next == "" {
			return vms, nil
		}
		query.Set("after", page.Next)
	}
}

// CodeOf returns the code of an error, OK without one.
func CodeOf(err error) codes.Code {
	var coded *status.Status
	switch {
	case err == nil:
		return codes.OK
	case errors.As(err, &coded):
		return coded.Code()
	default:
		return codes.Unknown
	}
}

func (c *Client) request(ctx context.Context, service, method, path string, order, answer any) error {
	begun := time.Now()
	err := c.call(ctx, method, path, order, answer)
	if c.Requested != nil {
		c.Requested(service, begun, err)
	}
	return err
}

func (c *Client) call(ctx context.Context, method, path string, order, answer any) error {
	failed := func(code codes.Code, err error) error {
		return status.WrapError(code, fmt.Sprintf("failed to %s %s: %v", method, path, err), err)
	}
	var body io.Reader
	if order != nil {
		encoded, err := json.Marshal(order)
		if err != nil {
			return failed(codes.Internal, err)
		}
		body = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, body)
	if err != nil {
		return failed(codes.InvalidArgument, err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		// The request may have had an effect. Both codes have machine-controller try again.
		var timeout interface{ Timeout() bool }
		if errors.As(err, &timeout) && timeout.Timeout() {
			return failed(codes.DeadlineExceeded, err)
		}
		return failed(codes.Unavailable, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, answerLimit))
	if err != nil {
		return failed(codes.Unknown, err)
	}
	if response.StatusCode/100 != 2 {
		return refusal(response.StatusCode, text, failed)
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return failed(codes.Unknown, err)
	}
	return nil
}

func refusal(status int, text []byte, failed func(codes.Code, error) error) error {
	var failure struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	if err := json.Unmarshal(text, &failure); err != nil || failure.Code == "" {
		return failed(codes.Unavailable, fmt.Errorf("status %d without a reason", status))
	}
	return failed(codes.StringToCode(failure.Code), errors.New(failure.Message))
}
