package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/status"

	"nodewright.dev/hack/tools/machine-controller-manager/cloud"
)

// simulated is the driver of the fake cloud. A VM has the name of its Machine, and belongs to it by the tags cluster and
// machine, as with our own driver. As with the drivers of the large clouds, no tag has the UID of the Machine, and each call
// has a token of its own: nothing but the tags leads to the VM of an earlier call.
type simulated struct {
	cloud *cloud.Client
}

var _ driver.Driver = &simulated{}

// providerSpec is the providerSpec of a MachineClass.
type providerSpec struct {
	Cluster     string            `json:"cluster"`
	Size        string            `json:"size"`
	BootSeconds *float64          `json:"bootSeconds"`
	Labels      map[string]string `json:"labels"`
	Taints      []cloud.Taint     `json:"taints"`
}

func readSpec(class *v1alpha1.MachineClass) (providerSpec, error) {
	var spec providerSpec
	if err := json.Unmarshal(class.ProviderSpec.Raw, &spec); err != nil {
		return spec, status.Error(codes.InvalidArgument, fmt.Sprintf("failed to read providerSpec: %v", err))
	}
	if spec.Cluster == "" {
		return spec, status.Error(codes.InvalidArgument, "failed to read providerSpec: cluster is missing")
	}
	return spec, nil
}

func (d *simulated) CreateMachine(ctx context.Context, request *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	spec, err := readSpec(request.MachineClass)
	if err != nil {
		return nil, err
	}
	name := request.Machine.Name
	vm, err := d.cloud.Create(ctx, cloud.CreateVM{
		Name:        name,
		Token:       rand.Text(),
		Tags:        map[string]string{cloud.TagCluster: spec.Cluster, cloud.TagMachine: name},
		Node:        cloud.Node{Labels: orEmpty(spec.Labels), Taints: append([]cloud.Taint{}, spec.Taints...)},
		Size:        spec.Size,
		BootSeconds: spec.BootSeconds,
		UserData:    string(request.Secret.Data["userData"]),
	})
	if err != nil {
		return nil, err
	}
	return &driver.CreateMachineResponse{ProviderID: vm.ProviderID, NodeName: vm.NodeName}, nil
}

func (d *simulated) InitializeMachine(context.Context, *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
	return nil, status.Error(codes.Unimplemented, "a simulated vm needs no initialization")
}

func (d *simulated) DeleteMachine(ctx context.Context, request *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	spec, err := readSpec(request.MachineClass)
	if err != nil {
		return nil, err
	}
	vms, err := d.owned(ctx, spec.Cluster, request.Machine.Name)
	if err != nil {
		return nil, err
	}
	isClaimed := func(vm cloud.VM) bool { return vm.ProviderID == request.Machine.Spec.ProviderID }
	if claimed := request.Machine.Spec.ProviderID; claimed != "" && !slices.ContainsFunc(vms, isClaimed) {
		vm, err := d.claimed(ctx, spec.Cluster, request.Machine.Name, claimed)
		switch cloud.CodeOf(err) {
		case codes.OK:
			vms = append(vms, vm)
		case codes.NotFound:
		default:
			return nil, err
		}
	}
	for _, vm := range vms {
		if vm.State == cloud.StateDeleting {
			continue
		}
		if err := d.cloud.Delete(ctx, vm.ID); err != nil {
			return nil, err
		}
	}
	return &driver.DeleteMachineResponse{}, nil
}

func (d *simulated) GetMachineStatus(ctx context.Context, request *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	spec, err := readSpec(request.MachineClass)
	if err != nil {
		return nil, err
	}
	vm, err := d.find(ctx, spec.Cluster, request.Machine)
	if err != nil {
		return nil, err
	}
	return &driver.GetMachineStatusResponse{ProviderID: vm.ProviderID, NodeName: vm.NodeName}, nil
}

func (d *simulated) ListMachines(ctx context.Context, request *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	spec, err := readSpec(request.MachineClass)
	if err != nil {
		return nil, err
	}
	vms, err := d.cloud.List(ctx, map[string]string{cloud.TagCluster: spec.Cluster})
	if err != nil {
		return nil, err
	}
	machines := make(map[string]string, len(vms))
	for _, vm := range vms {
		machines[vm.ProviderID] = vm.Tags[cloud.TagMachine]
	}
	return &driver.ListMachinesResponse{MachineList: machines}, nil
}

func (d *simulated) GetVolumeIDs(_ context.Context, request *driver.GetVolumeIDsRequest) (*driver.GetVolumeIDsResponse, error) {
	var ids []string
	for _, spec := range request.PVSpecs {
		if spec.CSI != nil {
			ids = append(ids, spec.CSI.VolumeHandle)
		}
	}
	return &driver.GetVolumeIDsResponse{VolumeIDs: ids}, nil
}

// find returns the VM of a Machine: the one of its provider ID, else the one with its tags.
func (d *simulated) find(ctx context.Context, cluster string, machine *v1alpha1.Machine) (cloud.VM, error) {
	if claimed := machine.Spec.ProviderID; claimed != "" {
		vm, err := d.claimed(ctx, cluster, machine.Name, claimed)
		if cloud.CodeOf(err) != codes.NotFound {
			return vm, err
		}
	}
	return d.only(ctx, cluster, machine.Name)
}

// claimed returns the VM of a provider ID, if its tags prove that it is the Machine's.
func (d *simulated) claimed(ctx context.Context, cluster, machine, providerID string) (cloud.VM, error) {
	id, err := cloud.ID(providerID)
	if err != nil {
		return cloud.VM{}, err
	}
	vm, err := d.cloud.Get(ctx, id)
	if err != nil {
		return vm, err
	}
	if vm.Tags[cloud.TagCluster] != cluster || vm.Tags[cloud.TagMachine] != machine {
		message := fmt.Sprintf("vm %s is not this machine's: its tags: cluster %q, machine %q",
			vm.ID, vm.Tags[cloud.TagCluster], vm.Tags[cloud.TagMachine])
		return vm, status.Error(codes.FailedPrecondition, message)
	}
	return vm, nil
}

// only returns the VM with the tags of a Machine. One that is being deleted counts if there is no other.
func (d *simulated) only(ctx context.Context, cluster, machine string) (cloud.VM, error) {
	vms, err := d.owned(ctx, cluster, machine)
	if err != nil {
		return cloud.VM{}, err
	}
	var staying, deleting []cloud.VM
	for _, vm := range vms {
		if vm.State == cloud.StateDeleting {
			deleting = append(deleting, vm)
		} else {
			staying = append(staying, vm)
		}
	}
	switch {
	case len(staying) == 1:
		return staying[0], nil
	case len(staying) > 1:
		var ids []string
		for _, vm := range staying {
			ids = append(ids, vm.ID)
		}
		message := fmt.Sprintf("machine %s has several vms: %s", machine, strings.Join(ids, ", "))
		return cloud.VM{}, status.Error(codes.OutOfRange, message)
	case len(deleting) > 0:
		return deleting[0], nil
	}
	message := fmt.Sprintf("there is no vm for machine %s in cluster %s", machine, cluster)
	return cloud.VM{}, status.Error(codes.NotFound, message)
}

func (d *simulated) owned(ctx context.Context, cluster, machine string) ([]cloud.VM, error) {
	return d.cloud.List(ctx, map[string]string{cloud.TagCluster: cluster, cloud.TagMachine: machine})
}

func orEmpty(labels map[string]string) map[string]string {
	if labels == nil {
		return map[string]string{}
	}
	return labels
}
