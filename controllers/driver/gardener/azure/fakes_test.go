package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gardener/machine-controller-manager-provider-azure/pkg/azure/access"
	"github.com/gardener/machine-controller-manager-provider-azure/pkg/azure/api"
	azure "github.com/gardener/machine-controller-manager-provider-azure/pkg/azure/provider"
	"github.com/gardener/machine-controller-manager-provider-azure/pkg/azure/testhelp"
	"github.com/gardener/machine-controller-manager-provider-azure/pkg/azure/testhelp/fakes"
	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"nodewright.dev/controllers/driver/gardener/server"
)

// The variable with the Unix socket of orders. With it the test binary is the driver, whose Azure is the provider's own fakes: so the
// contract suite calls the same code as in the product, over the wire and from another process.
const ordersVariable = "NODEWRIGHT_AZURE_FAKES"

func TestMain(m *testing.M) {
	if orders := os.Getenv(ordersVariable); orders != "" {
		os.Exit(serveFakes(orders))
	}
	os.Exit(m.Run())
}

func serveFakes(orders string) int {
	listener, err := net.Listen("unix", orders)
	if err != nil {
		klog.Error(err)
		return 1
	}
	azure := &fakeAzure{clouds: map[string]*fakeCloud{}}
	go azure.takeOrders(listener)
	provider := provider(azure)
	provider.LongestCall, provider.Consistency, provider.Poll = 10*time.Second, 100*time.Millisecond, 100*time.Millisecond
	return server.Main(provider)
}

// fakeAzure has a fake of the provider for each resource group, and fails as a whole.
type fakeAzure struct {
	mutex  sync.Mutex
	clouds map[string]*fakeCloud
	// What Azure answers to each request of an outage; nil without one, and while there only is no capacity.
	outage access.Factory
	isFull bool
	// Is closed when the silence ends.
	over chan struct{}
}

// fakeCloud is the provider with a fake of its own. Calls at once are not safe with it.
type fakeCloud struct {
	sync.Mutex
	driver.Driver
	state     *fakes.ClusterState
	reactions *fakes.APIBehaviorSpec
}

var _ driver.Driver = &fakeAzure{}

// orderAnswer is what the test gets.
type orderAnswer struct {
	ProviderSpec api.AzureProviderSpec `json:"providerSpec"`
	Secret       map[string]string     `json:"secret"`
	VMs          []string              `json:"vms"`
	Error        string                `json:"error"`
}

// takeOrders reads a line of each connection: `class RESOURCE-GROUP`, `vms`, or `outage KIND`.
func (a *fakeAzure) takeOrders(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			klog.Error(err)
			return
		}
		go func() {
			defer connection.Close()
			line, _ := bufio.NewReader(connection).ReadString('\n')
			if err := json.NewEncoder(connection).Encode(a.obey(strings.TrimSpace(line))); err != nil {
				klog.Error(err)
			}
		}()
	}
}

func (a *fakeAzure) obey(order string) (answer orderAnswer) {
	what, argument, _ := strings.Cut(order, " ")
	switch what {
	case "class":
		answer.ProviderSpec, answer.Secret = providerSpec(argument), map[string]string{}
		for key, value := range fakes.CreateProviderSecret().Data {
			answer.Secret[key] = string(value)
		}
	case "vms":
		answer.VMs = a.vms()
	case "outage":
		answer.Error = a.setOutage(argument)
	default:
		answer.Error = "there is no order " + what
	}
	return answer
}

func providerSpec(resourceGroup string) api.AzureProviderSpec {
	return testhelp.NewProviderSpecBuilder(resourceGroup, namespace, "pool").WithDefaultValues().Build()
}

func (a *fakeAzure) vms() []string {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	ids := []string{}
	for _, cloud := range a.clouds {
		cloud.Lock()
		for name, resources := range cloud.state.MachineResourcesMap {
			if resources.VM != nil {
				ids = append(ids, "azure:///"+testhelp.Location+"/"+name)
			}
		}
		cloud.Unlock()
	}
	return ids
}

func (a *fakeAzure) setOutage(kind string) string {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.over != nil {
		close(a.over)
	}
	a.outage, a.isFull, a.over = nil, false, nil
	switch kind {
	case "none":
	case "full":
		a.isFull = true
	case "failing":
		a.outage = brokenAzure{answers(http.StatusServiceUnavailable, `{"error":{"code":"ServerBusy"}}`)}
	case "silent":
		a.over = make(chan struct{})
		a.outage = brokenAzure{silence(a.over)}
	default:
		return "there is no outage " + kind
	}
	return ""
}

// enter returns the provider for a call, and what to do after it. Credentials, class and outage decide what Azure it has.
func (a *fakeAzure) enter(class *v1alpha1.MachineClass, secret *corev1.Secret, machine string) (driver.Driver, func(), error) {
	if string(secret.Data[api.ClientSecret]) != testhelp.ClientSecret {
		return azure.NewDefaultDriver(brokenAzure{refusesSecret}), func() {}, nil
	}
	cloud, outage, isFull, err := a.cloudOf(class)
	if err != nil {
		return nil, nil, err
	}
	if outage != nil {
		return azure.NewDefaultDriver(outage), func() {}, nil
	}
	cloud.Lock()
	var refusal error
	if isFull {
		refusal = testhelp.ConflictErr("ZonalAllocationFailed")
	}
	cloud.reactions.AddErrorResourceReaction(machine, testhelp.AccessMethodBeginCreateOrUpdate, refusal)
	return cloud, cloud.Unlock, nil
}

func (a *fakeAzure) cloudOf(class *v1alpha1.MachineClass) (*fakeCloud, access.Factory, bool, error) {
	var spec struct{ ResourceGroup string }
	if err := json.Unmarshal(class.ProviderSpec.Raw, &spec); err != nil {
		return nil, nil, false, err
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	cloud := a.clouds[spec.ResourceGroup]
	if cloud == nil {
		state := newState(providerSpec(spec.ResourceGroup))
		reactions := fakes.NewAPIBehaviorSpec()
		factory, err := newFactory(state, faults{vms: reactions})
		if err != nil {
			return nil, nil, false, err
		}
		cloud = &fakeCloud{Driver: azure.NewDefaultDriver(factory), state: state, reactions: reactions}
		a.clouds[spec.ResourceGroup] = cloud
	}
	return cloud, a.outage, a.isFull, nil
}

func (a *fakeAzure) CreateMachine(ctx context.Context, request *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	inner, leave, err := a.enter(request.MachineClass, request.Secret, request.Machine.Name)
	if err != nil {
		return nil, err
	}
	defer leave()
	return inner.CreateMachine(ctx, request)
}

func (a *fakeAzure) InitializeMachine(ctx context.Context, request *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
	inner, leave, err := a.enter(request.MachineClass, request.Secret, request.Machine.Name)
	if err != nil {
		return nil, err
	}
	defer leave()
	return inner.InitializeMachine(ctx, request)
}

func (a *fakeAzure) DeleteMachine(ctx context.Context, request *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	inner, leave, err := a.enter(request.MachineClass, request.Secret, request.Machine.Name)
	if err != nil {
		return nil, err
	}
	defer leave()
	return inner.DeleteMachine(ctx, request)
}

func (a *fakeAzure) GetMachineStatus(ctx context.Context, request *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	inner, leave, err := a.enter(request.MachineClass, request.Secret, request.Machine.Name)
	if err != nil {
		return nil, err
	}
	defer leave()
	return inner.GetMachineStatus(ctx, request)
}

func (a *fakeAzure) ListMachines(ctx context.Context, request *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	inner, leave, err := a.enter(request.MachineClass, request.Secret, "")
	if err != nil {
		return nil, err
	}
	defer leave()
	return inner.ListMachines(ctx, request)
}

// GetVolumeIDs is the provider's own: it reads specs, and calls nobody.
func (a *fakeAzure) GetVolumeIDs(ctx context.Context, request *driver.GetVolumeIDsRequest) (*driver.GetVolumeIDsResponse, error) {
	return azure.NewDefaultDriver(nil).GetVolumeIDs(ctx, request)
}

// transport is what answers the requests of Azure's SDK.
type transport func(*http.Request) (*http.Response, error)

func (t transport) Do(request *http.Request) (*http.Response, error) { return t(request) }

func answers(status int, body string) transport {
	return func(request *http.Request) (*http.Response, error) {
		header := http.Header{"Content-Type": {"application/json"}}
		return &http.Response{
			Status: fmt.Sprintf("%d %s", status, http.StatusText(status)), StatusCode: status, Header: header,
			Body: io.NopCloser(strings.NewReader(body)), Request: request,
		}, nil
	}
}

// refusesSecret answers as the servers that log clients in do to a wrong secret: what they tell about themselves is for everybody.
func refusesSecret(request *http.Request) (*http.Response, error) {
	authority := "https://" + request.URL.Host + "/tenant"
	switch path := request.URL.Path; {
	case strings.HasSuffix(path, "/discovery/instance"):
		return answers(http.StatusOK, `{"tenant_discovery_endpoint":"`+authority+`/v2.0/.well-known/openid-configuration"}`)(request)
	case strings.HasSuffix(path, "/openid-configuration"):
		return answers(http.StatusOK, `{"authorization_endpoint":"`+authority+`/oauth2/v2.0/authorize",
			"token_endpoint":"`+authority+`/oauth2/v2.0/token","issuer":"`+authority+`/v2.0"}`)(request)
	default:
		return answers(http.StatusUnauthorized, `{"error":"invalid_client","error_description":"AADSTS7000215"}`)(request)
	}
}

func silence(over <-chan struct{}) transport {
	return func(request *http.Request) (*http.Response, error) {
		select {
		case <-request.Context().Done():
			return nil, request.Context().Err()
		case <-over:
			return nil, errors.New("connection reset by peer")
		}
	}
}
