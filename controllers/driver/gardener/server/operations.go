package server

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"

	pb "nodewright.dev/controllers/driver/gardener/protocol"
)

func (s *service) create(ctx context.Context, message *pb.CreateMachineRequest, notes *string) outcome {
	machine := message.GetMachine()
	// A VM that does not exist has no id.
	wanted := machineOf(machine, "", notes)
	wanted.Spec.NodeTemplateSpec.Annotations = message.GetNodeAnnotations()
	response, err := s.provider.Driver.CreateMachine(ctx, &driver.CreateMachineRequest{
		Machine:      wanted,
		MachineClass: s.classOf(machine.GetClass()),
		Secret:       secretOf(machine.GetClass(), message.GetUserData().GetText()),
	})
	var left *string
	if response != nil {
		left = s.notesOf(response.LastKnownState)
	}
	if err != nil {
		return outcome{failure: s.failure(createMachine, err), notes: left}
	}
	if response == nil {
		return failed(pb.Code_CODE_INTERNAL, "CreateMachine of the provider answers nothing")
	}
	return s.instance(createMachine, vm{response.ProviderID, response.NodeName, response.Addresses}, left)
}

func (s *service) initialize(ctx context.Context, machine *pb.MachineRequest, notes *string) outcome {
	providerID, mismatch, failure := s.provenID(ctx, machine)
	if failure != nil {
		return outcome{failure: failure}
	}
	if mismatch != nil {
		return outcome{failure: mismatch}
	}
	response, err := s.provider.Driver.InitializeMachine(ctx, &driver.InitializeMachineRequest{
		Machine:      machineOf(machine, providerID, notes),
		MachineClass: s.classOf(machine.GetClass()),
		Secret:       secretOf(machine.GetClass(), ""),
	})
	if err != nil {
		return outcome{failure: s.failure(initializeMachine, err)}
	}
	if response == nil {
		return failed(pb.Code_CODE_INTERNAL, "InitializeMachine of the provider answers nothing")
	}
	return s.instance(initializeMachine, vm{response.ProviderID, response.NodeName, response.Addresses}, nil)
}

func (s *service) status(ctx context.Context, machine *pb.MachineRequest, notes *string) outcome {
	providerID, mismatch, failure := s.provenID(ctx, machine)
	if failure != nil {
		return outcome{failure: failure}
	}
	response, err := s.provider.Driver.GetMachineStatus(ctx, &driver.GetMachineStatusRequest{
		Machine:      machineOf(machine, providerID, notes),
		MachineClass: s.classOf(machine.GetClass()),
		Secret:       secretOf(machine.GetClass(), ""),
	})
	uninitialized := false
	if err != nil {
		failure := s.failure(getMachineStatus, err)
		// The Machine has no VM of its own, and the one that it names is another's: that is no reason to forget it.
		if failure.Code == pb.Code_CODE_NOT_FOUND && mismatch != nil {
			return outcome{failure: mismatch}
		}
		uninitialized = failure.Code == pb.Code_CODE_UNINITIALIZED && response != nil && response.ProviderID != ""
		if !uninitialized {
			return outcome{failure: failure}
		}
	}
	if response == nil {
		return failed(pb.Code_CODE_INTERNAL, "GetMachineStatus of the provider answers nothing")
	}
	result := s.instance(getMachineStatus, vm{response.ProviderID, response.NodeName, response.Addresses}, nil)
	if result.instance != nil {
		result.instance.Uninitialized = uninitialized
	}
	return result
}

func (s *service) delete(ctx context.Context, machine *pb.MachineRequest, notes *string) outcome {
	providerID, mismatch, failure := s.provenID(ctx, machine)
	if failure != nil {
		return outcome{failure: failure}
	}
	response, err := s.provider.Driver.DeleteMachine(ctx, &driver.DeleteMachineRequest{
		Machine:      machineOf(machine, providerID, notes),
		MachineClass: s.classOf(machine.GetClass()),
		Secret:       secretOf(machine.GetClass(), ""),
	})
	result := outcome{}
	if response != nil {
		result.notes = s.notesOf(response.LastKnownState)
	}
	switch {
	case err != nil:
		result.failure = s.failure(deleteMachine, err)
		if result.failure.Code == pb.Code_CODE_NOT_FOUND && mismatch != nil {
			result.failure = mismatch
		}
	case response == nil:
		// Success is believed, so it has to be said.
		result.failure = &pb.Failure{Code: pb.Code_CODE_INTERNAL, Message: "DeleteMachine of the provider answers nothing"}
	default:
		result.failure = mismatch
	}
	return result
}

// deleteOrphan deletes a VM if the provider lists it for this name.
func (s *service) deleteOrphan(ctx context.Context, machine *pb.MachineRequest) outcome {
	providerID, mismatch, failure := s.provenID(ctx, machine)
	if failure == nil {
		failure = mismatch
	}
	if failure != nil || providerID == "" {
		return outcome{failure: failure}
	}
	result := s.delete(ctx, machine, nil)
	if result.failure.GetCode() == pb.Code_CODE_NOT_FOUND {
		return outcome{}
	}
	return result
}

// provenID returns the id that a Machine names if it is its own, and else a mismatch if it is known to be another's. What the
// provider does not list is neither, unless it was proven before: such a VM may not show yet.
func (s *service) provenID(ctx context.Context, machine *pb.MachineRequest) (id string, mismatch, failure *pb.Failure) {
	claimed := machine.GetProviderId()
	if claimed == "" {
		return "", nil, nil
	}
	if !strings.HasPrefix(claimed, s.provider.IDPrefix) {
		return "", mismatched(machine, "an id of another provider"), nil
	}
	machines, failure := s.list(ctx, machine.GetClass(), time.Now().Add(-freshList))
	if failure != nil && failure.Code != pb.Code_CODE_UNIMPLEMENTED {
		return "", nil, failure
	}
	owner, isListed := machines[claimed]
	switch {
	case isListed && owner != machine.GetName():
		return "", mismatched(machine, "a VM of another Machine"), nil
	case isListed || machine.GetIsProven():
		return claimed, nil, nil
	default:
		return "", nil, nil
	}
}

func mismatched(machine *pb.MachineRequest, whose string) *pb.Failure {
	return &pb.Failure{
		Code:     pb.Code_CODE_FAILED_PRECONDITION,
		Message:  fmt.Sprintf("the Machine names %s, which is %s", machine.GetProviderId(), whose),
		Mismatch: pb.Mismatch_MISMATCH_MACHINE,
	}
}

// list returns the Machines' names of a class by provider id, of a list that was begun at that time or later.
func (s *service) list(ctx context.Context, class *pb.Class, notBefore time.Time) (map[string]string, *pb.Failure) {
	return s.lists.get(ctx, class, notBefore, func() (machines map[string]string, failure *pb.Failure) {
		ctx, cancel := context.WithTimeout(context.Background(), longestBackground)
		defer cancel()
		defer s.hold(class, "")()
		result := guarded(listMachines, func() outcome {
			machines, failure = s.fetchList(ctx, class)
			return outcome{failure: failure}
		})
		return machines, result.failure
	})
}

// fetchList asks the provider. VMs without the name of a Machine are left out; an id of another provider makes it no list at all.
func (s *service) fetchList(ctx context.Context, class *pb.Class) (map[string]string, *pb.Failure) {
	response, err := s.provider.Driver.ListMachines(ctx, &driver.ListMachinesRequest{
		MachineClass: s.classOf(class),
		Secret:       secretOf(class, ""),
	})
	if err != nil {
		return nil, s.failure(listMachines, err)
	}
	if response == nil {
		return nil, &pb.Failure{Code: pb.Code_CODE_INTERNAL, Message: "ListMachines of the provider answers nothing"}
	}
	machines := make(map[string]string, len(response.MachineList))
	for id, name := range response.MachineList {
		if !strings.HasPrefix(id, s.provider.IDPrefix) || id == s.provider.IDPrefix {
			message := "ListMachines of the provider lists a provider id that does not begin with " + s.provider.IDPrefix
			return nil, &pb.Failure{Code: pb.Code_CODE_INTERNAL, Message: message}
		}
		if name != "" {
			machines[id] = name
		}
	}
	return machines, nil
}
