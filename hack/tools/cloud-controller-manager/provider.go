package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"
)

const (
	providerIDPrefix = "simulated:///"
	callTimeout      = 15 * time.Second
	vmsPerPage       = "500"
)

// provider knows the VMs of the fake cloud, and has neither load balancers nor routes. e2e/cloud documents the HTTP API.
type provider struct {
	url  string
	http http.Client
}

var (
	_ cloudprovider.Interface   = &provider{}
	_ cloudprovider.InstancesV2 = &provider{}
)

func newProvider(url string) *provider {
	return &provider{url: strings.TrimRight(url, "/"), http: http.Client{Timeout: callTimeout}}
}

func (p *provider) Initialize(cloudprovider.ControllerClientBuilder, <-chan struct{}) {}
func (p *provider) LoadBalancer() (cloudprovider.LoadBalancer, bool)                  { return nil, false }
func (p *provider) Instances() (cloudprovider.Instances, bool)                        { return nil, false }
func (p *provider) InstancesV2() (cloudprovider.InstancesV2, bool)                    { return p, true }
func (p *provider) Zones() (cloudprovider.Zones, bool)                                { return nil, false }
func (p *provider) Clusters() (cloudprovider.Clusters, bool)                          { return nil, false }
func (p *provider) Routes() (cloudprovider.Routes, bool)                              { return nil, false }
func (p *provider) ProviderName() string                                              { return providerName }
func (p *provider) HasClusterID() bool                                                { return true }

// InstanceExists is true until the VM is gone: one that is stopped or is being deleted exists.
func (p *provider) InstanceExists(ctx context.Context, node *v1.Node) (bool, error) {
	_, err := p.find(ctx, node)
	if errors.Is(err, cloudprovider.InstanceNotFound) {
		return false, nil
	}
	return err == nil, err
}

func (p *provider) InstanceShutdown(ctx context.Context, node *v1.Node) (bool, error) {
	found, err := p.find(ctx, node)
	return err == nil && found.State == "stopped", err
}

// InstanceMetadata describes a VM as our own driver does, and adds the hostname, as large clouds do. A VM without addresses gets
// no hostname either: then the controller leaves the addresses of the Node as they are.
func (p *provider) InstanceMetadata(ctx context.Context, node *v1.Node) (*cloudprovider.InstanceMetadata, error) {
	found, err := p.find(ctx, node)
	if err != nil {
		return nil, err
	}
	addresses := found.Addresses
	isHostname := func(address v1.NodeAddress) bool { return address.Type == v1.NodeHostName }
	if len(addresses) > 0 && !slices.ContainsFunc(addresses, isHostname) {
		addresses = append(addresses, v1.NodeAddress{Type: v1.NodeHostName, Address: node.Name})
	}
	return &cloudprovider.InstanceMetadata{
		ProviderID:    found.ProviderID,
		InstanceType:  found.Size,
		NodeAddresses: addresses,
		Zone:          found.Zone,
		Region:        found.Region,
	}, nil
}

// vm is a VM of the cloud.
type vm struct {
	State      string           `json:"state"`
	ProviderID string           `json:"providerID"`
	NodeName   string           `json:"nodeName"`
	Size       string           `json:"size"`
	Addresses  []v1.NodeAddress `json:"addresses"`
	Zone       string           `json:"zone"`
	Region     string           `json:"region"`
}

// find returns the VM of a Node: the one of its provider ID, or, if it has none yet, the newest one that registers its name. Its
// error is InstanceNotFound only if the cloud says so: then the controllers may delete the Node.
func (p *provider) find(ctx context.Context, node *v1.Node) (*vm, error) {
	providerID := node.Spec.ProviderID
	if providerID == "" {
		return p.newest(ctx, node.Name)
	}
	id, isOurs := strings.CutPrefix(providerID, providerIDPrefix)
	if !isOurs || id == "" {
		return nil, fmt.Errorf("provider id %q is not of this cloud; it must begin %s", providerID, providerIDPrefix)
	}
	found := &vm{}
	err := p.get(ctx, "/vms/"+url.PathEscape(id), found)
	return found, err
}

// newest returns the newest VM that registers a Node of this name. The cloud lists VMs in order of creation.
func (p *provider) newest(ctx context.Context, nodeName string) (*vm, error) {
	var newest *vm
	query := url.Values{"limit": {vmsPerPage}}
	for {
		var page struct {
			Items []*vm  `json:"items"`
			Next  string `json:"next"`
		}
		if err := p.get(ctx, "/vms?"+query.Encode(), &page); err != nil {
			return nil, err
		}
		for _, it := range page.Items {
			if it.NodeName == nodeName {
				newest = it
			}
		}
		switch {
		case page.Next != "":
			query.Set("after", page.Next)
		case newest == nil:
			return nil, cloudprovider.InstanceNotFound
		default:
			return newest, nil
		}
	}
}

// get reads a resource of the cloud.
func (p *provider) get(ctx context.Context, path string, answer any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, nil)
	if err != nil {
		return err
	}
	response, err := p.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
		return json.NewDecoder(response.Body).Decode(answer)
	case http.StatusNotFound:
		return cloudprovider.InstanceNotFound
	default:
		return fmt.Errorf("failed to get %s: %s", path, response.Status)
	}
}
