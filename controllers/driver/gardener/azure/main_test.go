package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/gardener/machine-controller-manager-provider-azure/pkg/azure/api"
	azure "github.com/gardener/machine-controller-manager-provider-azure/pkg/azure/provider"
	"github.com/gardener/machine-controller-manager-provider-azure/pkg/azure/testhelp"
	"github.com/gardener/machine-controller-manager-provider-azure/pkg/azure/testhelp/fakes"
	"github.com/gardener/machine-controller-manager-provider-azure/pkg/azure/utils"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"

	pb "nodewright.dev/controllers/driver/gardener/protocol"
	"nodewright.dev/controllers/driver/gardener/server"
	"nodewright.dev/controllers/driver/gardener/server/servertest"
)

const (
	resourceGroup = "rg"
	namespace     = "shoot--a"
	vmName        = "vm-0"
	providerID    = "azure:///" + testhelp.Location + "/" + vmName
)

// faults says which of the fake's clients fail, and how.
type faults struct {
	vms, nics *fakes.APIBehaviorSpec
	// The longest call; zero for the default.
	longest time.Duration
}

// cloud is the provider's own fake of Azure, with the provider behind the protocol.
type cloud struct {
	pb.DriverClient
	state *fakes.ClusterState
	spec  api.AzureProviderSpec
}

func newCloud(t *testing.T, faults faults) cloud {
	t.Helper()
	spec := providerSpec(resourceGroup)
	state := newState(spec)
	factory, err := newFactory(state, faults)
	if err != nil {
		t.Fatal(err)
	}
	provider := provider(azure.NewDefaultDriver(factory))
	provider.LongestCall = faults.longest
	return cloud{DriverClient: servertest.Start(t, provider), state: state, spec: spec}
}

// newState returns an Azure with what a VM of the class needs.
func newState(spec api.AzureProviderSpec) *fakes.ClusterState {
	state := fakes.NewClusterState(spec)
	state.WithSubnet(spec.ResourceGroup, fakes.CreateSubnetName(namespace), namespace)
	return state.WithDefaultVMImageSpec().WithAgreementTerms(true)
}

func newFactory(state *fakes.ClusterState, faults faults) (*fakes.Factory, error) {
	factory := fakes.NewFactory(state.ProviderSpec.ResourceGroup)
	var failures []error
	add := func(err error) { failures = append(failures, err) }
	var err error
	factory.VMAccess, err = factory.NewVirtualMachineAccessBuilder().WithClusterState(state).WithAPIBehaviorSpec(faults.vms).Build()
	add(err)
	factory.InterfaceAccess, err = factory.NewNICAccessBuilder().WithClusterState(state).WithAPIBehaviorSpec(faults.nics).Build()
	add(err)
	factory.ResourceGroupAccess, err = factory.NewResourceGroupsAccessBuilder().Build()
	add(err)
	factory.DisksAccess, err = factory.NewDiskAccessBuilder().WithClusterState(state).Build()
	add(err)
	factory.SubnetAccess, err = factory.NewSubnetAccessBuilder().WithClusterState(state).Build()
	add(err)
	factory.VMImageAccess, err = factory.NewImageAccessBuilder().WithClusterState(state).Build()
	add(err)
	factory.MarketplaceAgreementsAccess, err = factory.NewMarketPlaceAgreementAccessBuilder().WithClusterState(state).Build()
	add(err)
	factory.ResourceGraphAccess, err = factory.NewResourceGraphAccessBuilder().WithClusterState(state).Build()
	add(err)
	return factory, errors.Join(failures...)
}

func (c cloud) machine(t *testing.T) *pb.MachineRequest {
	t.Helper()
	spec, err := json.Marshal(c.spec)
	if err != nil {
		t.Fatal(err)
	}
	data := fakes.CreateProviderSecret().Data
	// As with a class whose Secret has no user data: only a creation gets it.
	delete(data, api.UserData)
	class := &pb.Class{Name: "c", Revision: "1", ProviderSpec: string(spec), Secrets: &pb.Secrets{Data: data}}
	return &pb.MachineRequest{Name: vmName, Namespace: namespace, Token: "uid", Class: class}
}

func (c cloud) create(t *testing.T) *pb.MachineResponse {
	t.Helper()
	answer, err := c.CreateMachine(t.Context(), &pb.CreateMachineRequest{Machine: c.machine(t), UserData: &pb.UserData{Text: "#cloud-config"}})
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func TestAVMComesAndGoesWithWhatBelongsToIt(t *testing.T) {
	cloud := newCloud(t, faults{})
	made := cloud.create(t).GetInstance()
	if made.GetProviderId() != providerID || made.GetNodeName() != vmName {
		t.Fatalf("the VM is %v", made)
	}
	if again := cloud.create(t).GetInstance(); again.GetProviderId() != providerID || len(cloud.state.GetAllVMNamesFromMachineResources()) != 1 {
		t.Fatalf("a second creation answers %v", again)
	}
	request := cloud.machine(t)
	request.ProviderId = providerID
	found, err := cloud.GetMachineStatus(t.Context(), request)
	if err != nil || found.GetInstance().GetProviderId() != providerID {
		t.Fatalf("status answers %v, %v", found, err)
	}
	stream, err := cloud.ListMachines(t.Context(), &pb.ListMachinesRequest{Class: request.Class})
	if err != nil {
		t.Fatal(err)
	}
	page, err := stream.Recv()
	if err != nil || !page.GetComplete() || len(page.GetMachines()) != 1 || page.GetMachines()[0].GetProviderId() != providerID || page.GetMachines()[0].GetName() != vmName {
		t.Fatalf("list answers %v, %v", page, err)
	}
	deleted, err := cloud.DeleteMachine(t.Context(), request)
	if err != nil || deleted.GetDeleted() == nil {
		t.Fatalf("delete answers %v, %v", deleted, err)
	}
	gone, err := cloud.GetMachineStatus(t.Context(), request)
	if err != nil || gone.GetFailure().GetCode() != pb.Code_CODE_NOT_FOUND || cloud.state.GetNIC(utils.CreateNICName(vmName)) != nil {
		t.Fatalf("status after the deletion answers %v, %v", gone, err)
	}
}

func TestAVMOfAnotherMachineIsLeftAlone(t *testing.T) {
	cloud := newCloud(t, faults{})
	cloud.create(t)
	request := cloud.machine(t)
	request.Name, request.ProviderId = "vm-1", providerID
	status, err := cloud.GetMachineStatus(t.Context(), request)
	if err != nil || status.GetFailure().GetMismatch() != pb.Mismatch_MISMATCH_MACHINE {
		t.Errorf("status answers %v, %v", status, err)
	}
	deleted, err := cloud.DeleteMachine(t.Context(), request)
	if err != nil || deleted.GetFailure().GetMismatch() != pb.Mismatch_MISMATCH_MACHINE || cloud.state.GetVM(vmName) == nil {
		t.Errorf("delete answers %v, %v", deleted, err)
	}
}

func TestAnOrphanGoesByItsID(t *testing.T) {
	cloud := newCloud(t, faults{})
	cloud.create(t)
	orphan := &pb.DeleteOrphanRequest{ProviderId: providerID, Name: vmName, Class: cloud.machine(t).Class}
	deleted, err := cloud.DeleteOrphan(t.Context(), orphan)
	if err != nil || deleted.GetDeleted() == nil || cloud.state.GetVM(vmName) != nil {
		t.Errorf("the answer is %v, %v", deleted, err)
	}
}

func TestACallThatAzureDoesNotAnswerEndsAtItsDeadline(t *testing.T) {
	hang := fakes.NewAPIBehaviorSpec().AddContextTimeoutResourceReaction(vmName, testhelp.AccessMethodBeginCreateOrUpdate, 2*time.Second)
	cloud := newCloud(t, faults{vms: hang, longest: time.Second})
	if failure := cloud.create(t).GetFailure(); failure.GetCode() != pb.Code_CODE_DEADLINE_EXCEEDED {
		t.Fatalf("the answer is %v", failure)
	}
	// The same creation, which is still under way or has ended meanwhile.
	failure := cloud.create(t).GetFailure()
	for strings.Contains(failure.GetMessage(), "goes on") {
		failure = cloud.create(t).GetFailure()
	}
	if !strings.Contains(failure.GetMessage(), "context deadline exceeded") {
		t.Errorf("its outcome is lost: %v", failure)
	}
}

func TestAPanicOfTheProviderIsAnError(t *testing.T) {
	panics := fakes.NewAPIBehaviorSpec().AddPanicResourceReaction(vmName, testhelp.AccessMethodGet)
	cloud := newCloud(t, faults{vms: panics})
	answer, err := cloud.GetMachineStatus(t.Context(), cloud.machine(t))
	if err != nil || answer.GetFailure() == nil || answer.GetFailure().GetCode() == pb.Code_CODE_NOT_FOUND {
		t.Errorf("the answer is %v, %v", answer, err)
	}
}

func TestFailuresOfAzureHaveTheirCodes(t *testing.T) {
	answered := func(status int, code string) error { return &azcore.ResponseError{StatusCode: status, ErrorCode: code} }
	table := []struct {
		err   error
		known bool
		class server.Class
	}{
		{answered(401, "InvalidAuthenticationToken"), true, server.Class{Code: codes.Unauthenticated}},
		{answered(403, "AuthorizationFailed"), true, server.Class{Code: codes.PermissionDenied}},
		{answered(429, "TooManyRequests"), true, server.Class{Code: codes.Unavailable, Throttled: true}},
		{answered(503, "ServiceUnavailable"), true, server.Class{Code: codes.Unavailable}},
		// The provider tells capacity and quotas apart by itself.
		{answered(409, "ZonalAllocationFailed"), false, server.Class{}},
		{errors.New("no answer of Azure"), false, server.Class{}},
		{&azidentity.AuthenticationFailedError{RawResponse: &http.Response{StatusCode: 401}}, true, server.Class{Code: codes.Unauthenticated}},
		// The place to log in cannot be reached, or found.
		{fmt.Errorf("log in: %w", &azidentity.AuthenticationFailedError{}), true, server.Class{Code: codes.Unavailable}},
	}
	for _, row := range table {
		if class, known := classify(row.err); known != row.known || class != row.class {
			t.Errorf("%v becomes %v, %v", row.err, class, known)
		}
	}
	failing := fakes.NewAPIBehaviorSpec().AddErrorResourceReaction(vmName, testhelp.AccessMethodGet, testhelp.InternalServerError("ServerBusy"))
	cloud := newCloud(t, faults{vms: failing})
	answer, err := cloud.GetMachineStatus(t.Context(), cloud.machine(t))
	if err != nil || answer.GetFailure().GetCode() != pb.Code_CODE_UNAVAILABLE {
		t.Errorf("the provider calls it Internal, and the answer is %v, %v", answer, err)
	}
}

func TestAClassIsJudgedByTheProvidersRules(t *testing.T) {
	cloud := newCloud(t, faults{})
	if faults := validate([]byte(cloud.machine(t).GetClass().GetProviderSpec())); len(faults) != 0 {
		t.Errorf("a good class has %v", faults)
	}
	const secret = "hunter2-is-no-password"
	table := map[string]func(map[string]any){
		"location":                                     func(it map[string]any) { it["location"] = "" },
		"properties.hardwareProfile.vmSize":            func(it map[string]any) { part(it, "properties", "hardwareProfile")["vmSize"] = "" },
		"properties.osProfile.adminUsername":           func(it map[string]any) { part(it, "properties", "osProfile")["adminUsername"] = 7 },
		"properties.storageProfile.imageReference.urn": func(it map[string]any) { part(it, "properties", "storageProfile", "imageReference")["urn"] = secret },
		"properties.storageProfile.osDisk.diskSizeGB":  func(it map[string]any) { part(it, "properties", "storageProfile", "osDisk")["diskSizeGB"] = -1 },
		"cloudConfiguration.name":                      func(it map[string]any) { it["cloudConfiguration"] = map[string]any{"name": secret} },
		"subnetInfo.vnetName":                          func(it map[string]any) { part(it, "subnetInfo")["vnetName"] = "" },
		"tags.kubernetes.io-cluster-":                  func(it map[string]any) { it["tags"] = map[string]any{"kubernetes.io-role-node": "1"} },
		"properties.capacityReservation.capacityReservationGroupID": func(it map[string]any) {
			part(it, "properties")["capacityReservation"] = map[string]any{"capacityReservationGroupID": secret}
		},
	}
	for path, spoil := range table {
		var spec map[string]any
		if err := json.Unmarshal([]byte(cloud.machine(t).GetClass().GetProviderSpec()), &spec); err != nil {
			t.Fatal(err)
		}
		spoil(spec)
		spoiled, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := cloud.ValidateClass(t.Context(), &pb.ValidateClassRequest{ProviderSpec: string(spoiled)})
		if err != nil || len(answer.GetFaults()) != 1 || answer.GetFaults()[0].GetPath() != path || strings.Contains(answer.String(), secret) {
			t.Errorf("%s is wrong, and the answer is %v, %v", path, answer, err)
		}
	}
}

func part(object map[string]any, path ...string) map[string]any {
	for _, name := range path {
		object, _ = object[name].(map[string]any)
	}
	return object
}
