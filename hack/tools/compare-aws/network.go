package main

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// network is what classes name: their names stand for moto's ids.
type network struct{ ids map[string]string }

// Each step makes one thing. Values that are names of earlier things stand for their ids.
var steps = []struct {
	name, id, action string
	parameters       map[string]string
}{
	{"vpc", "vpcId", "CreateVpc", map[string]string{"CidrBlock": "10.0.0.0/16", "AmazonProvidedIpv6CidrBlock": "true"}},
	{"subnet-a", "subnetId", "CreateSubnet", map[string]string{"VpcId": "vpc", "CidrBlock": "10.0.0.0/20", "AvailabilityZone": "eu-west-1a"}},
	{"subnet-b", "subnetId", "CreateSubnet", map[string]string{"VpcId": "vpc", "CidrBlock": "10.0.16.0/20", "AvailabilityZone": "eu-west-1b"}},
	{"sg-nodes", "groupId", "CreateSecurityGroup", map[string]string{"GroupName": "nodes", "GroupDescription": "nodes", "VpcId": "vpc"}},
	{"sg-storage", "groupId", "CreateSecurityGroup", map[string]string{"GroupName": "storage", "GroupDescription": "storage", "VpcId": "vpc"}},
	{"vol-data", "volumeId", "CreateVolume", map[string]string{"Size": "10", "AvailabilityZone": "eu-west-1a"}},
	{"snap-data", "snapshotId", "CreateSnapshot", map[string]string{"VolumeId": "vol-data"}},
	{"h-dedicated", "item", "AllocateHosts", map[string]string{"AvailabilityZone": "eu-west-1a", "InstanceType": "m5.large", "Quantity": "1"}},
	{"ami-nodes", "imageId", "DescribeImages", map[string]string{"Filter.1.Name": "root-device-name", "Filter.1.Value.1": "/dev/xvda"}},
	{"key-nodes", "keyName", "CreateKeyPair", map[string]string{"KeyName": "key-nodes"}},
}

func openNetwork(ctx context.Context, moto *moto) (*network, error) {
	network := &network{ids: map[string]string{}}
	for _, step := range steps {
		parameters := map[string]string{}
		for name, value := range step.parameters {
			parameters[name] = network.id(value)
		}
		id, err := moto.made(ctx, step.id, step.action, parameters)
		if err != nil {
			return nil, err
		}
		network.ids[step.name] = id
	}
	_, err := moto.ask(ctx, "iam", "CreateInstanceProfile", map[string]string{"InstanceProfileName": "nodes"})
	return network, err
}

func (n *network) id(name string) string {
	if id, known := n.ids[name]; known {
		return id
	}
	return name
}

// insert puts moto's ids in the place of names: each name is a whole text of the class.
func (n *network) insert(providerSpec string) string {
	for name, id := range n.ids {
		providerSpec = strings.ReplaceAll(providerSpec, quoted(name), quoted(id))
	}
	return providerSpec
}

func quoted(text string) string {
	// A text can be written.
	written, _ := json.Marshal(text)
	return string(written)
}

// names are the names by their ids.
func (n *network) names() map[string]string {
	names := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(n.ids)) {
		names[n.ids[name]] = name
	}
	return names
}
