package main

import (
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v5"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/marketplaceordering/armmarketplaceordering"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v4"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/resourcegraph/armresourcegraph"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/resources/armresources"
	"github.com/gardener/machine-controller-manager-provider-azure/pkg/azure/access"
)

// brokenAzure makes the clients that the provider has in the product, with another transport.
type brokenAzure struct {
	transport transport
}

var _ access.Factory = brokenAzure{}

var clients = access.NewDefaultAccessFactory()

// through changes what the clients, and the one that logs in, send their requests through. The SDK's own retries are left out.
func (b brokenAzure) through(config access.ConnectConfig) access.ConnectConfig {
	config.ClientOptions.Transport = b.transport
	config.ClientOptions.Retry = policy.RetryOptions{MaxRetries: -1}
	return config
}

func (b brokenAzure) GetResourceGroupsAccess(config access.ConnectConfig) (*armresources.ResourceGroupsClient, error) {
	return clients.GetResourceGroupsAccess(b.through(config))
}

func (b brokenAzure) GetVirtualMachinesAccess(config access.ConnectConfig) (*armcompute.VirtualMachinesClient, error) {
	return clients.GetVirtualMachinesAccess(b.through(config))
}

func (b brokenAzure) GetNetworkInterfacesAccess(config access.ConnectConfig) (*armnetwork.InterfacesClient, error) {
	return clients.GetNetworkInterfacesAccess(b.through(config))
}

func (b brokenAzure) GetSubnetAccess(config access.ConnectConfig) (*armnetwork.SubnetsClient, error) {
	return clients.GetSubnetAccess(b.through(config))
}

func (b brokenAzure) GetDisksAccess(config access.ConnectConfig) (*armcompute.DisksClient, error) {
	return clients.GetDisksAccess(b.through(config))
}

func (b brokenAzure) GetResourceGraphAccess(config access.ConnectConfig) (*armresourcegraph.Client, error) {
	return clients.GetResourceGraphAccess(b.through(config))
}

func (b brokenAzure) GetVirtualMachineImagesAccess(config access.ConnectConfig) (*armcompute.VirtualMachineImagesClient, error) {
	return clients.GetVirtualMachineImagesAccess(b.through(config))
}

func (b brokenAzure) GetMarketPlaceAgreementsAccess(config access.ConnectConfig) (*armmarketplaceordering.MarketplaceAgreementsClient, error) {
	return clients.GetMarketPlaceAgreementsAccess(b.through(config))
}
