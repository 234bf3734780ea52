package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "nodewright.dev/controllers/driver/gardener/protocol"
)

// The provider's methods, as they are named in messages.
const (
	createMachine     = "CreateMachine"
	initializeMachine = "InitializeMachine"
	deleteMachine     = "DeleteMachine"
	getMachineStatus  = "GetMachineStatus"
	listMachines      = "ListMachines"
	getVolumeIDs      = "GetVolumeIDs"
)

const (
	version = "v1"
	// The largest message, in bytes. A page of a list has at most half of it.
	messageLimit = 1 << 20
	// An answer leaves this long before the deadline, and at most a tenth of the time before it: both sides end the call then.
	longestMargin = 500 * time.Millisecond
)

// service answers the calls of the protocol.
type service struct {
	pb.UnimplementedDriverServer
	provider Provider
	redactor *redactor
	calls    *calls
	lists    *lists
	tracer   trace.Tracer
}

func newService(provider Provider, redactor *redactor) *service {
	return &service{
		provider: provider.withDefaults(), redactor: redactor, calls: newCalls(), lists: newLists(), tracer: noTraces().tracer,
	}
}

func (s *service) GetInfo(ctx context.Context, _ *pb.GetInfoRequest) (*pb.GetInfoResponse, error) {
	return &pb.GetInfoResponse{
		ProtocolVersion:  version,
		Provider:         s.provider.Name,
		ProviderIdPrefix: s.provider.IDPrefix,
		Identity:         s.provider.Identity,
		LongestCall:      durationpb.New(s.provider.LongestCall),
		Consistency:      durationpb.New(s.provider.Consistency),
		Poll:             durationpb.New(s.provider.Poll),
		Initializes:      s.provider.Initializes,
		Validates:        s.provider.Validate != nil,
		KnowsVolumes:     s.knowsVolumes(ctx),
		CountsRequests:   true,
	}, nil
}

func (s *service) ValidateClass(_ context.Context, request *pb.ValidateClassRequest) (*pb.ValidateClassResponse, error) {
	if s.provider.Validate == nil {
		return nil, status.Error(codes.Unimplemented, "the driver does not check classes")
	}
	faults, checked := s.checkSpec(request.GetProviderSpec())
	if !checked {
		return nil, status.Error(codes.Unknown, "the check of the class has panicked")
	}
	response := &pb.ValidateClassResponse{}
	for _, fault := range faults {
		response.Faults = append(response.Faults, &pb.Fault{Path: fault.Path, Allowed: fault.Allowed})
	}
	return response, nil
}

func (s *service) CreateMachine(ctx context.Context, message *pb.CreateMachineRequest) (*pb.MachineResponse, error) {
	machine := message.GetMachine()
	run := func(ctx context.Context, notes *string) outcome { return s.create(ctx, message, notes) }
	return machineResponse(s.traced(ctx, createMachine, machine, func() outcome {
		return s.call(ctx, createMachine, machine, message.GetUserData().GetText(), run)
	})), nil
}

func (s *service) InitializeMachine(ctx context.Context, machine *pb.MachineRequest) (*pb.MachineResponse, error) {
	if !s.provider.Initializes {
		return machineResponse(failed(pb.Code_CODE_UNIMPLEMENTED, "the provider's VMs need no initialization")), nil
	}
	run := func(ctx context.Context, notes *string) outcome { return s.initialize(ctx, machine, notes) }
	return machineResponse(s.traced(ctx, initializeMachine, machine, func() outcome {
		return s.call(ctx, initializeMachine, machine, "", run)
	})), nil
}

func (s *service) DeleteMachine(ctx context.Context, machine *pb.MachineRequest) (*pb.DeleteMachineResponse, error) {
	run := func(ctx context.Context, notes *string) outcome { return s.delete(ctx, machine, notes) }
	return deleteResponse(s.traced(ctx, deleteMachine, machine, func() outcome {
		return s.call(ctx, deleteMachine, machine, "", run)
	})), nil
}

func (s *service) GetMachineStatus(ctx context.Context, machine *pb.MachineRequest) (*pb.MachineResponse, error) {
	run := func(ctx context.Context, notes *string) outcome { return s.status(ctx, machine, notes) }
	// It is asked too often to be worth a span each.
	return machineResponse(s.call(ctx, getMachineStatus, machine, "", run)), nil
}

func (s *service) ListMachines(message *pb.ListMachinesRequest, stream grpc.ServerStreamingServer[pb.ListMachinesResponse]) error {
	if err := checkClass(message.GetClass()); err != nil {
		return stream.Send(&pb.ListMachinesResponse{Failure: refused(err).failure})
	}
	ctx, cancel := s.untilDeadline(stream.Context())
	defer cancel()
	machines, failure := s.list(ctx, message.GetClass(), time.Now())
	if failure != nil {
		return stream.Send(&pb.ListMachinesResponse{Failure: failure})
	}
	return sendList(machines, stream.Send)
}

func (s *service) DeleteOrphan(ctx context.Context, orphan *pb.DeleteOrphanRequest) (*pb.DeleteMachineResponse, error) {
	if !s.provider.DeletesByID {
		return deleteResponse(failed(pb.Code_CODE_UNIMPLEMENTED, "the provider cannot delete a single VM")), nil
	}
	if orphan.GetProviderId() == "" || orphan.GetName() == "" {
		return deleteResponse(refused(fmt.Errorf("the request lacks provider_id and name"))), nil
	}
	// A Machine without a token of its own: nothing but the name leads to the VM.
	machine := &pb.MachineRequest{Name: orphan.GetName(), Token: "orphan", ProviderId: orphan.GetProviderId(), Class: orphan.GetClass()}
	run := func(ctx context.Context, _ *string) outcome { return s.deleteOrphan(ctx, machine) }
	return deleteResponse(s.call(ctx, deleteMachine, machine, "", run)), nil
}

// call makes a call about a Machine, and answers before its deadline.
func (s *service) call(ctx context.Context, method string, machine *pb.MachineRequest, userData string, run func(context.Context, *string) outcome) outcome {
	if err := checkMachine(machine); err != nil {
		return refused(err)
	}
	ctx, cancel := s.untilDeadline(ctx)
	defer cancel()
	return s.calls.do(ctx, request{
		method:   method,
		machine:  machine.GetName(),
		token:    machine.GetToken(),
		identity: identity(method, machine),
		changes:  method != getMachineStatus,
		hold:     func() func() { return s.hold(machine.GetClass(), userData) },
		run:      run,
	})
}

// untilDeadline ends a little before the caller's deadline, or the longest call.
func (s *service) untilDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	longest := s.provider.LongestCall
	if deadline, has := ctx.Deadline(); has {
		longest = min(longest, time.Until(deadline))
	}
	return context.WithTimeout(ctx, longest-min(longest/10, longestMargin))
}

// identity is equal for calls that ask for the same thing, with the same class and credentials. The class is a checksum in it: the
// identity outlives the call.
func identity(method string, machine *pb.MachineRequest) string {
	class := machine.GetClass()
	checksum := sha256.Sum256([]byte(class.GetRevision() + "\x00" + class.GetProviderSpec()))
	parts := []string{
		method, machine.GetNamespace(), machine.GetToken(), machine.GetProviderId(), fmt.Sprint(machine.GetIsProven()),
		class.GetName(), hex.EncodeToString(checksum[:]),
	}
	return strings.Join(parts, "\x00")
}

func refused(err error) outcome {
	return failed(pb.Code_CODE_INVALID_ARGUMENT, err.Error())
}

func machineResponse(result outcome) *pb.MachineResponse {
	if result.failure != nil {
		return &pb.MachineResponse{Outcome: &pb.MachineResponse_Failure{Failure: failureWith(result)}}
	}
	instance := result.instance
	return &pb.MachineResponse{Outcome: &pb.MachineResponse_Instance{Instance: &pb.Instance{
		ProviderId: instance.GetProviderId(), NodeName: instance.GetNodeName(), Addresses: instance.GetAddresses(),
		LastKnownState: result.notes, Uninitialized: instance.GetUninitialized(),
	}}}
}

func deleteResponse(result outcome) *pb.DeleteMachineResponse {
	if result.failure != nil {
		return &pb.DeleteMachineResponse{Outcome: &pb.DeleteMachineResponse_Failure{Failure: failureWith(result)}}
	}
	return &pb.DeleteMachineResponse{Outcome: &pb.DeleteMachineResponse_Deleted{Deleted: &pb.Deleted{LastKnownState: result.notes}}}
}

// failureWith returns a failure with its notes. It is a new message: the outcome may be that of several callers.
func failureWith(result outcome) *pb.Failure {
	failure := result.failure
	return &pb.Failure{
		Code: failure.GetCode(), Message: failure.GetMessage(), Mismatch: failure.GetMismatch(), LastKnownState: result.notes,
		Exhausted: failure.GetExhausted(), Throttled: failure.GetThrottled(),
	}
}

// sendList sends messages of at most half the size that is allowed, of which the last one is complete.
func sendList(machines map[string]string, send func(*pb.ListMachinesResponse) error) error {
	page, size := &pb.ListMachinesResponse{}, 0
	for id, name := range machines {
		size += len(id) + len(name) + 32
		if size > messageLimit/2 {
			if err := send(page); err != nil {
				return err
			}
			page, size = &pb.ListMachinesResponse{}, len(id)+len(name)+32
		}
		page.Machines = append(page.Machines, &pb.ListedMachine{ProviderId: id, Name: name})
	}
	page.Complete = true
	return send(page)
}
