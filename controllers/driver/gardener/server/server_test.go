package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	pb "nodewright.dev/controllers/driver/gardener/protocol"
)

const (
	password = "p4ss-word-of-the-cloud"
	userData = "#!/bin/sh\ntoken=abcdef.0123456789abcdef"
)

// hostile is a provider that does what a test says. Nil functions are not expected to be called.
type hostile struct {
	driver.Driver
	create     func(*driver.CreateMachineRequest) (*driver.CreateMachineResponse, error)
	initialize func(*driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error)
	delete     func(*driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error)
	status     func(*driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error)
	list       func() (*driver.ListMachinesResponse, error)
	volumes    func(*corev1.PersistentVolumeSpec) (*driver.GetVolumeIDsResponse, error)
}

func (h hostile) CreateMachine(_ context.Context, request *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	return h.create(request)
}

func (h hostile) InitializeMachine(_ context.Context, request *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
	return h.initialize(request)
}

func (h hostile) DeleteMachine(_ context.Context, request *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	return h.delete(request)
}

func (h hostile) GetMachineStatus(_ context.Context, request *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	return h.status(request)
}

func (h hostile) ListMachines(context.Context, *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	return h.list()
}

func (h hostile) GetVolumeIDs(_ context.Context, request *driver.GetVolumeIDsRequest) (*driver.GetVolumeIDsResponse, error) {
	if h.volumes == nil {
		return nil, status.Error(codes.Unimplemented, "it has none")
	}
	if len(request.PVSpecs) != 1 {
		panic("its answer would not say which volume it means")
	}
	return h.volumes(request.PVSpecs[0])
}

func provider(driver driver.Driver) Provider {
	return Provider{Name: "p", IDPrefix: "p:///", Driver: driver}
}

// client serves a provider on a socket, and returns a client of it.
func client(t *testing.T, provider Provider) pb.DriverClient {
	t.Helper()
	return pb.NewDriverClient(connection(t, newService(provider, newRedactor())))
}

func connection(t *testing.T, service *service) *grpc.ClientConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "driver.sock")
	socket, err := bind(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- serve(ctx, service, socket) }()
	connection, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		if err := errors.Join(connection.Close(), <-served); err != nil {
			t.Error(err)
		}
	})
	return connection
}

func machine() *pb.MachineRequest {
	return &pb.MachineRequest{
		Name: "m", Namespace: "n", Token: "uid", LastKnownState: "notes",
		Class: &pb.Class{
			Name: "c", Revision: "1", ProviderSpec: `{"cluster":"a"}`,
			Secrets: &pb.Secrets{Data: map[string][]byte{"password": []byte(password), "userData": []byte("of the class")}},
		},
	}
}

func creation() *pb.CreateMachineRequest {
	return &pb.CreateMachineRequest{
		Machine: machine(), UserData: &pb.UserData{Text: userData}, NodeAnnotations: map[string]string{"a": "b"},
	}
}

// must returns an answer of the protocol: failures are in it.
func must[T any](answer T, err error) T {
	if err != nil {
		panic(err)
	}
	return answer
}

func made() (*driver.CreateMachineResponse, error) {
	return &driver.CreateMachineResponse{ProviderID: "p:///1", NodeName: "node", LastKnownState: "made"}, nil
}

func notFound() error {
	return status.Error(codes.NotFound, "there is none")
}

func expectCode(t *testing.T, failure *pb.Failure, code pb.Code) {
	t.Helper()
	if failure.GetCode() != code || failure.GetMessage() == "" {
		t.Fatalf("the answer is %v, and should be %v", failure, code)
	}
}

func TestAProviderGetsWhatTheRequestHas(t *testing.T) {
	var got *driver.CreateMachineRequest
	drivers := client(t, provider(hostile{create: func(request *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
		got = request
		return &driver.CreateMachineResponse{
			ProviderID: "p:///1", NodeName: "node", LastKnownState: "made",
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}},
		}, nil
	}}))
	answer := must(drivers.CreateMachine(t.Context(), creation())).GetInstance()
	if answer.GetProviderId() != "p:///1" || answer.GetNodeName() != "node" || answer.GetLastKnownState() != "made" ||
		answer.GetAddresses()[0].GetAddress() != "10.0.0.1" {
		t.Errorf("the answer is %v", answer)
	}
	if got.Machine.Name != "m" || got.Machine.Namespace != "n" || got.Machine.UID != "uid" || got.Machine.Status.LastKnownState != "notes" ||
		got.MachineClass.Name != "c" || got.MachineClass.Provider != "p" || string(got.MachineClass.ProviderSpec.Raw) != `{"cluster":"a"}` {
		t.Errorf("the provider gets %v of class %v", got.Machine, got.MachineClass)
	}
	if got.Machine.Spec.NodeTemplateSpec.Annotations["a"] != "b" {
		t.Errorf("the provider gets the annotations %v", got.Machine.Spec.NodeTemplateSpec.Annotations)
	}
	if string(got.Secret.Data["password"]) != password || string(got.Secret.Data["userData"]) != userData {
		t.Error("the provider gets other secrets")
	}
}

func TestUserDataIsForCreationsAndOtherCallsHaveAStandIn(t *testing.T) {
	var got *driver.GetMachineStatusRequest
	drivers := client(t, provider(hostile{status: func(request *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
		got = request
		return nil, notFound()
	}}))
	request := machine()
	delete(request.Class.Secrets.Data, "userData")
	expectCode(t, must(drivers.GetMachineStatus(t.Context(), request)).GetFailure(), pb.Code_CODE_NOT_FOUND)
	if string(got.Secret.Data["userData"]) != noUserData {
		t.Error("the provider has no user data, and some refuse that")
	}
}

func TestARequestThatLacksAPartIsRefused(t *testing.T) {
	drivers := client(t, provider(hostile{}))
	for name, change := range map[string]func(*pb.MachineRequest){
		"name":          func(it *pb.MachineRequest) { it.Name = "" },
		"token":         func(it *pb.MachineRequest) { it.Token = "" },
		"class":         func(it *pb.MachineRequest) { it.Class = nil },
		"provider_spec": func(it *pb.MachineRequest) { it.Class.ProviderSpec = "{" },
	} {
		request := machine()
		change(request)
		failure := must(drivers.DeleteMachine(t.Context(), request)).GetFailure()
		expectCode(t, failure, pb.Code_CODE_INVALID_ARGUMENT)
		if !strings.Contains(failure.GetMessage(), name) {
			t.Errorf("%s is missing, and the answer is %v", name, failure)
		}
	}
	expectCode(t, must(drivers.CreateMachine(t.Context(), &pb.CreateMachineRequest{})).GetFailure(), pb.Code_CODE_INVALID_ARGUMENT)
}

func TestACallThatHangsIsAnsweredAndTheNextOneGetsItsOutcome(t *testing.T) {
	release, count := make(chan struct{}), 0
	hanging := provider(hostile{create: func(*driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
		count++
		<-release
		return made()
	}})
	hanging.LongestCall = time.Second
	drivers := client(t, hanging)
	late := must(drivers.CreateMachine(t.Context(), creation())).GetFailure()
	expectCode(t, late, pb.Code_CODE_DEADLINE_EXCEEDED)
	busy := must(drivers.GetMachineStatus(t.Context(), machine())).GetFailure()
	expectCode(t, busy, pb.Code_CODE_UNAVAILABLE)
	if !strings.Contains(busy.GetMessage(), "still running") {
		t.Errorf("the message is %q", busy.GetMessage())
	}
	close(release)
	answer := must(drivers.CreateMachine(t.Context(), creation()))
	if answer.GetInstance().GetProviderId() != "p:///1" || count != 1 {
		t.Errorf("the answer is %v after %d calls", answer, count)
	}
}

func TestAnAnswerLeavesBeforeTheDeadlineOfItsCaller(t *testing.T) {
	service := newService(provider(hostile{}), newRedactor())
	for _, row := range []struct{ timeout, latest time.Duration }{
		{10 * time.Second, 10*time.Second - longestMargin},
		{time.Second, 900 * time.Millisecond},
		{time.Hour, 2 * time.Minute},
	} {
		theirs, cancelTheirs := context.WithTimeout(t.Context(), row.timeout)
		ours, cancel := service.untilDeadline(theirs)
		end, _ := ours.Deadline()
		if time.Until(end) > row.latest {
			t.Errorf("a call of %v may last until %v", row.timeout, time.Until(end))
		}
		cancel()
		cancelTheirs()
	}
}

func TestALateOutcomeIsUsedOnceAndItsNotesAlways(t *testing.T) {
	calls := newCalls()
	outcomes := make(chan outcome)
	notes := "half-way"
	do := func(ctx context.Context, identity string, changes bool) outcome {
		return calls.do(ctx, request{
			method: "M", machine: "m", token: "uid", identity: identity, changes: changes,
			hold: func() func() { return func() {} },
			run:  func(context.Context, *string) outcome { return <-outcomes },
		})
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	// The select may see the end of the context or of the call: neither has the call's outcome.
	expectCode(t, do(gone, "create", true).failure, pb.Code_CODE_DEADLINE_EXCEEDED)
	current := calls.running["m"]
	outcomes <- outcome{failure: &pb.Failure{Code: pb.Code_CODE_RESOURCE_EXHAUSTED, Message: "no"}, notes: &notes}
	<-current.done
	go func() { outcomes <- outcome{failure: &pb.Failure{Code: pb.Code_CODE_NOT_FOUND, Message: "none"}} }()
	status := do(t.Context(), "status", false)
	if status.failure.GetCode() != pb.Code_CODE_NOT_FOUND || status.notes == nil || *status.notes != notes {
		t.Errorf("another call answers %v", status)
	}
	expectCode(t, do(t.Context(), "create", true).failure, pb.Code_CODE_RESOURCE_EXHAUSTED)
	go func() { outcomes <- outcome{instance: &pb.Instance{ProviderId: "p:///1"}} }()
	if again := do(t.Context(), "create", true); again.instance == nil {
		t.Errorf("the provider is not asked again: %v", again)
	}
}

func TestALateOutcomeOfAnotherClassOrMachineIsNotUsed(t *testing.T) {
	base := machine()
	for name, change := range map[string]func(*pb.MachineRequest){
		"token":    func(it *pb.MachineRequest) { it.Token = "other" },
		"revision": func(it *pb.MachineRequest) { it.Class.Revision = "2" },
		"spec":     func(it *pb.MachineRequest) { it.Class.ProviderSpec = `{}` },
		"claim":    func(it *pb.MachineRequest) { it.ProviderId = "p:///1" },
	} {
		other := machine()
		change(other)
		if identity(createMachine, base) == identity(createMachine, other) {
			t.Errorf("a request with another %s is taken for the same", name)
		}
	}
	if identity(createMachine, base) != identity(createMachine, machine()) || identity(createMachine, base) == identity(deleteMachine, base) {
		t.Error("equal requests are equal, and those of other methods are not")
	}
}

func TestCallsForOneMachineDoNotOverlap(t *testing.T) {
	var mutex sync.Mutex
	running, most := 0, 0
	enter := func() {
		mutex.Lock()
		running++
		most = max(most, running)
		mutex.Unlock()
		runtime.Gosched()
		mutex.Lock()
		running--
		mutex.Unlock()
	}
	drivers := client(t, provider(hostile{
		create: func(*driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) { enter(); return made() },
		delete: func(*driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
			enter()
			return &driver.DeleteMachineResponse{}, nil
		},
	}))
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() { must(drivers.CreateMachine(t.Context(), creation())) })
		group.Go(func() { must(drivers.DeleteMachine(t.Context(), machine())) })
	}
	group.Wait()
	if most != 1 {
		t.Errorf("%d calls for one Machine were under way at once", most)
	}
}

func TestAPanicIsAnErrorOfItsCallAndTellsNoSecret(t *testing.T) {
	var log bytes.Buffer
	service := newService(provider(hostile{
		create: func(request *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
			panic("cannot log in with " + string(request.Secret.Data["password"]))
		},
		status: func(*driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
			runtime.Goexit()
			return nil, nil
		},
		list: func() (*driver.ListMachinesResponse, error) { panic("list") },
	}), newRedactor())
	logTo(&writer{redactor: service.redactor, inner: &log}, 0)
	drivers := pb.NewDriverClient(connection(t, service))
	expectCode(t, must(drivers.CreateMachine(t.Context(), creation())).GetFailure(), pb.Code_CODE_INTERNAL)
	expectCode(t, must(drivers.GetMachineStatus(t.Context(), machine())).GetFailure(), pb.Code_CODE_INTERNAL)
	page := must(must(drivers.ListMachines(t.Context(), &pb.ListMachinesRequest{Class: machine().Class})).Recv())
	expectCode(t, page.GetFailure(), pb.Code_CODE_INTERNAL)
	if !strings.Contains(log.String(), "cannot log in with [secret]") || strings.Contains(log.String(), password) {
		t.Errorf("the log is %q", log.String())
	}
}

func TestWhatIsNoVMIsAnErrorAndLeavesItsNotes(t *testing.T) {
	for name, response := range map[string]*driver.CreateMachineResponse{
		"nothing":           nil,
		"no provider id":    {NodeName: "node", LastKnownState: "made"},
		"the prefix alone":  {ProviderID: "p:///", NodeName: "node", LastKnownState: "made"},
		"another provider":  {ProviderID: "q:///1", NodeName: "node", LastKnownState: "made"},
		"no name of a Node": {ProviderID: "p:///1", LastKnownState: "made"},
	} {
		drivers := client(t, provider(hostile{create: func(*driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
			return response, nil
		}}))
		failure := must(drivers.CreateMachine(t.Context(), creation())).GetFailure()
		expectCode(t, failure, pb.Code_CODE_INTERNAL)
		if name == "no provider id" && !strings.Contains(failure.GetMessage(), "without a provider id") {
			t.Errorf("the message is %q", failure.GetMessage())
		}
		if response != nil && failure.GetLastKnownState() != "made" {
			t.Errorf("%s: the notes are lost", name)
		}
	}
	drivers := client(t, provider(hostile{delete: func(*driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) { return nil, nil }}))
	expectCode(t, must(drivers.DeleteMachine(t.Context(), machine())).GetFailure(), pb.Code_CODE_INTERNAL)
}

func TestErrorsHaveTheCodeThatTheyMean(t *testing.T) {
	table := []struct {
		err  error
		code pb.Code
	}{
		{status.Error(codes.ResourceExhausted, "no [capacity] in [zone] [a]"), pb.Code_CODE_RESOURCE_EXHAUSTED},
		{fmt.Errorf("wrapped: %w", status.Error(codes.Unauthenticated, "no")), pb.Code_CODE_UNAUTHENTICATED},
		{errors.New("machine codes error: code = [Aborted] message = [later]"), pb.Code_CODE_ABORTED},
		{errors.New("something"), pb.Code_CODE_INTERNAL},
		{errors.New(""), pb.Code_CODE_INTERNAL},
		{status.Error(codes.OK, "not ok"), pb.Code_CODE_INTERNAL},
		{status.Error(codes.Code(99), "what"), pb.Code_CODE_INTERNAL},
		{status.Error(codes.Code(1<<31), "what"), pb.Code_CODE_INTERNAL},
		{status.Error(codes.NotFound, "the subnet"), pb.Code_CODE_FAILED_PRECONDITION},
		{fmt.Errorf("get: %w", context.DeadlineExceeded), pb.Code_CODE_DEADLINE_EXCEEDED},
		{fmt.Errorf("get: %w", context.Canceled), pb.Code_CODE_UNKNOWN},
		{status.WrapError(codes.Internal, "failed to create", errThrottled), pb.Code_CODE_UNAVAILABLE},
	}
	var err error
	throttling := provider(hostile{create: func(*driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
		return &driver.CreateMachineResponse{LastKnownState: "half-way"}, err
	}})
	throttling.Classify = func(err error) (Class, bool) {
		return Class{Code: codes.Unavailable, Throttled: true}, errors.Is(err, errThrottled)
	}
	drivers := client(t, throttling)
	for _, row := range table {
		err = row.err
		failure := must(drivers.CreateMachine(t.Context(), creation())).GetFailure()
		expectCode(t, failure, row.code)
		if failure.GetLastKnownState() != "half-way" || failure.GetThrottled() != (row.code == pb.Code_CODE_UNAVAILABLE) {
			t.Errorf("%v becomes %v", err, failure)
		}
	}
}

var errThrottled = errors.New("too many requests")

func TestSecretsStayOutOfErrorsNotesAndLogs(t *testing.T) {
	var log bytes.Buffer
	service := newService(provider(hostile{create: func(request *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
		data := request.Secret.Data
		klog.Errorf("request: %s %s", data["password"], data["userData"])
		klog.InfoS("request", "userData", string(data["userData"]))
		message := fmt.Sprintf("refused: %s %q\n%s", data["password"], data["userData"], strings.Repeat("ü", 5000))
		return &driver.CreateMachineResponse{LastKnownState: "with " + string(data["password"])}, status.Error(codes.Internal, message)
	}}), newRedactor())
	logTo(&writer{redactor: service.redactor, inner: &log}, 0)
	drivers := pb.NewDriverClient(connection(t, service))
	failure := must(drivers.CreateMachine(t.Context(), creation())).GetFailure()
	for _, text := range []string{failure.GetMessage(), failure.GetLastKnownState(), log.String()} {
		if strings.Contains(text, password) || strings.Contains(text, "abcdef.0123456789abcdef") || !strings.Contains(text, replacement) {
			t.Errorf("a secret is in %q", text)
		}
	}
	if len(failure.GetMessage()) > longestMessage || strings.Contains(failure.GetMessage(), "\n") {
		t.Errorf("the message has %d bytes", len(failure.GetMessage()))
	}
	if service.redactor.redact(password) != password || len(service.redactor.uses) != 0 {
		t.Error("secrets are kept when their calls have ended")
	}
}

func TestAClaimIsPassedOnOnlyIfItIsProven(t *testing.T) {
	var passed string
	listed := map[string]string{"p:///own": "m", "p:///other": "x", "p:///untagged": ""}
	drivers := client(t, provider(hostile{
		list: func() (*driver.ListMachinesResponse, error) {
			return &driver.ListMachinesResponse{MachineList: listed}, nil
		},
		delete: func(request *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
			passed = request.Machine.Spec.ProviderID
			return &driver.DeleteMachineResponse{}, nil
		},
		status: func(request *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
			return nil, notFound()
		},
	}))
	table := []struct {
		claim    string
		isProven bool
		passed   string
		mismatch pb.Mismatch
	}{
		{"", false, "", pb.Mismatch_MISMATCH_NONE},
		{"p:///own", false, "p:///own", pb.Mismatch_MISMATCH_NONE},
		{"p:///other", false, "", pb.Mismatch_MISMATCH_MACHINE},
		{"p:///other", true, "", pb.Mismatch_MISMATCH_MACHINE},
		{"q:///1", true, "", pb.Mismatch_MISMATCH_MACHINE},
		{"p:///untagged", false, "", pb.Mismatch_MISMATCH_NONE},
		{"p:///hidden", false, "", pb.Mismatch_MISMATCH_NONE},
		{"p:///hidden", true, "p:///hidden", pb.Mismatch_MISMATCH_NONE},
	}
	for _, row := range table {
		request := machine()
		request.ProviderId, request.IsProven = row.claim, row.isProven
		passed = "not called"
		deleted := must(drivers.DeleteMachine(t.Context(), request)).GetFailure()
		if passed != row.passed || deleted.GetMismatch() != row.mismatch {
			t.Errorf("%+v: the provider gets %q, and the answer is %v", row, passed, deleted)
		}
		failure := must(drivers.GetMachineStatus(t.Context(), request)).GetFailure()
		isForgotten := failure.GetCode() == pb.Code_CODE_NOT_FOUND
		if failure.GetMismatch() != row.mismatch || isForgotten == (row.mismatch != pb.Mismatch_MISMATCH_NONE) {
			t.Errorf("%+v: status answers %v", row, failure)
		}
	}
}

func TestAnOrphanIsDeletedIfItIsListedForItsName(t *testing.T) {
	deleted := 0
	able := provider(hostile{
		list: func() (*driver.ListMachinesResponse, error) {
			return &driver.ListMachinesResponse{MachineList: map[string]string{"p:///1": "m", "p:///2": "x"}}, nil
		},
		delete: func(*driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
			deleted++
			return nil, notFound()
		},
	})
	orphan := func(id string) *pb.DeleteOrphanRequest {
		return &pb.DeleteOrphanRequest{ProviderId: id, Name: "m", Class: machine().Class}
	}
	expectCode(t, must(client(t, able).DeleteOrphan(t.Context(), orphan("p:///1"))).GetFailure(), pb.Code_CODE_UNIMPLEMENTED)
	able.DeletesByID = true
	drivers := client(t, able)
	for id, count := range map[string]int{"p:///1": 1, "p:///gone": 0} {
		deleted = 0
		if answer := must(drivers.DeleteOrphan(t.Context(), orphan(id))); answer.GetDeleted() == nil || deleted != count {
			t.Errorf("%s: the answer is %v after %d deletions", id, answer, deleted)
		}
	}
	deleted = 0
	failure := must(drivers.DeleteOrphan(t.Context(), orphan("p:///2"))).GetFailure()
	if failure.GetMismatch() != pb.Mismatch_MISMATCH_MACHINE || deleted != 0 {
		t.Errorf("another's VM: the answer is %v after %d deletions", failure, deleted)
	}
	expectCode(t, must(drivers.DeleteOrphan(t.Context(), orphan(""))).GetFailure(), pb.Code_CODE_INVALID_ARGUMENT)
}

func TestAListIsWholeOrNone(t *testing.T) {
	machines, err := map[string]string{"p:///untagged": ""}, error(nil)
	for number := range 20_000 {
		machines[fmt.Sprintf("p:///%d-%s", number, strings.Repeat("x", 100))] = fmt.Sprintf("m-%d", number)
	}
	drivers := client(t, provider(hostile{list: func() (*driver.ListMachinesResponse, error) {
		return &driver.ListMachinesResponse{MachineList: machines}, err
	}}))
	read := func() (int, int, *pb.ListMachinesResponse) {
		stream := must(drivers.ListMachines(t.Context(), &pb.ListMachinesRequest{Class: machine().Class}))
		for count, pages := 0, 1; ; pages++ {
			page := must(stream.Recv())
			count += len(page.GetMachines())
			if page.GetComplete() || page.GetFailure() != nil {
				return count, pages, page
			}
		}
	}
	if count, pages, last := read(); count != 20_000 || pages < 3 || !last.GetComplete() {
		t.Errorf("there are %d VMs on %d pages", count, pages)
	}
	machines["q:///1"] = "m"
	_, _, foreign := read()
	expectCode(t, foreign.GetFailure(), pb.Code_CODE_INTERNAL)
	err = status.Error(codes.Unavailable, "later")
	_, _, failed := read()
	expectCode(t, failed.GetFailure(), pb.Code_CODE_UNAVAILABLE)
}

func TestAListThatHangsHasNoSecondOneBesideIt(t *testing.T) {
	release := make(chan struct{})
	var count atomic.Int32
	hanging := provider(hostile{list: func() (*driver.ListMachinesResponse, error) {
		count.Add(1)
		<-release
		return &driver.ListMachinesResponse{MachineList: map[string]string{"p:///1": "m"}}, nil
	}})
	hanging.LongestCall = time.Second
	drivers := client(t, hanging)
	list := func() *pb.ListMachinesResponse {
		return must(must(drivers.ListMachines(t.Context(), &pb.ListMachinesRequest{Class: machine().Class})).Recv())
	}
	for range 2 {
		expectCode(t, list().GetFailure(), pb.Code_CODE_DEADLINE_EXCEEDED)
	}
	if count.Load() != 1 {
		t.Errorf("%d lists are under way", count.Load())
	}
	close(release)
	if last := list(); len(last.GetMachines()) != 1 || count.Load() != 2 {
		t.Errorf("the answer is %v of list %d: one that was begun before the call may be out of date", last, count.Load())
	}
}

func TestAnUninitializedVMIsAVM(t *testing.T) {
	response := &driver.GetMachineStatusResponse{ProviderID: "p:///1", NodeName: "node"}
	uninitialized := provider(hostile{
		status: func(*driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
			return response, status.Error(codes.Uninitialized, "not yet")
		},
		initialize: func(*driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
			return &driver.InitializeMachineResponse{ProviderID: "p:///1", NodeName: "node"}, nil
		},
	})
	expectCode(t, must(client(t, uninitialized).InitializeMachine(t.Context(), machine())).GetFailure(), pb.Code_CODE_UNIMPLEMENTED)
	uninitialized.Initializes = true
	drivers := client(t, uninitialized)
	if found := must(drivers.GetMachineStatus(t.Context(), machine())).GetInstance(); !found.GetUninitialized() {
		t.Errorf("the answer is %v", found)
	}
	if found := must(drivers.InitializeMachine(t.Context(), machine())).GetInstance(); found.GetProviderId() != "p:///1" {
		t.Errorf("the answer is %v", found)
	}
	response = nil
	expectCode(t, must(drivers.GetMachineStatus(t.Context(), machine())).GetFailure(), pb.Code_CODE_UNINITIALIZED)
}

func TestTheServerSaysWhatItIs(t *testing.T) {
	validating := provider(hostile{})
	validating.Identity = []string{"cluster"}
	validating.Validate = func(spec []byte) []Fault {
		if string(spec) == "panic" {
			panic(password)
		}
		return []Fault{{Path: "size", Allowed: "small"}}
	}
	connection := connection(t, newService(validating, newRedactor()))
	drivers := pb.NewDriverClient(connection)
	info := must(drivers.GetInfo(t.Context(), &pb.GetInfoRequest{}))
	if info.GetProtocolVersion() != "v1" || info.GetProvider() != "p" || info.GetProviderIdPrefix() != "p:///" || info.GetIdentity()[0] != "cluster" ||
		info.GetLongestCall().AsDuration() != 2*time.Minute || info.GetConsistency().AsDuration() != 30*time.Second ||
		info.GetPoll().AsDuration() != 5*time.Second || info.GetInitializes() || !info.GetValidates() || info.GetKnowsVolumes() {
		t.Errorf("the driver says %v", info)
	}
	faults := must(drivers.ValidateClass(t.Context(), &pb.ValidateClassRequest{ProviderSpec: "{}"})).GetFaults()
	if len(faults) != 1 || faults[0].GetPath() != "size" || faults[0].GetAllowed() != "small" {
		t.Errorf("the faults are %v", faults)
	}
	if _, err := drivers.ValidateClass(t.Context(), &pb.ValidateClassRequest{ProviderSpec: "panic"}); err == nil || strings.Contains(err.Error(), password) {
		t.Errorf("a check that panics answers %v", err)
	}
	health := must(healthpb.NewHealthClient(connection).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "nodewright.driver.v1.Driver"}))
	if health.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("the driver is %v", health)
	}
}

func TestTheSocketIsTheUsersAloneAndGoesWithItsServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "driver.sock")
	first := must(bind(path))
	if mode := must(os.Lstat(path)).Mode().Perm(); mode != 0o600 {
		t.Errorf("its mode is %o", mode)
	}
	if _, err := bind(path); err == nil || !strings.Contains(err.Error(), "another process serves it") {
		t.Errorf("a second server gets %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second := must(bind(path))
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := net.Dial("unix", path); err != nil {
		t.Errorf("the successor's socket is gone: %v", err)
	}
	// A process that is killed removes nothing.
	if err := second.Listener.Close(); err != nil {
		t.Fatal(err)
	}
	third := must(bind(path))
	if err := third.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Error("the socket stays")
	}
	if err := os.WriteFile(path, []byte("notes"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := bind(path); err == nil || !strings.Contains(err.Error(), "another kind") {
		t.Errorf("another file is taken for a socket: %v", err)
	}
}

func TestTheCommandLine(t *testing.T) {
	base := Provider{}.withDefaults()
	read, err := parse([]string{"d", "--socket=/s", "--stop-with-stdin", "--longest-call=2s", "--v=3"}, &base, &bytes.Buffer{})
	if err != nil || read.socket != "/s" || !read.stopWithStdin || read.verbosity != 3 || base.LongestCall != 2*time.Second {
		t.Errorf("read %+v and %v: %v", read, base.LongestCall, err)
	}
	for _, wrong := range [][]string{{"d"}, {"d", "--socket=/s", "more"}, {"d", "--socket=/s", "--longest-call=soon"}, {"d", "--other"},
		{"d", "--socket=/s", "--longest-call=20m"}, {"d", "--socket=/s", "--longest-call=0.1s"}, {"d", "--socket=/s", "--consistency=11m"}} {
		if _, err := parse(wrong, &base, &bytes.Buffer{}); err == nil {
			t.Errorf("%v is accepted", wrong)
		}
	}
}
