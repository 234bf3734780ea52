// Package files is a provider for tests: its VMs are files in a folder. It is as good and as bad as machine-controller-manager's
// providers: it has no tokens, finds a VM by its name, ignores the context, and says too much in its errors.
package files

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"nodewright.dev/controllers/driver/gardener/server"
)

const (
	// Password is the token that the cloud accepts.
	Password = "correct-horse-battery"
	idPrefix = "files:///"
	// The CSI driver of the cloud's volumes.
	csiDriver = "csi.files.example.com"
	// The file in the folder that says how the cloud fails: silent, failing or full.
	outage = "outage"
	// How often a silent cloud looks whether it still is.
	pause = 10 * time.Millisecond
)

// Driver makes VMs in a folder: the file CLUSTER/NAME is one.
type Driver struct {
	Folder string
}

var _ driver.Driver = Driver{}

// Provider returns what a server needs to know.
func Provider(folder string) server.Provider {
	return server.Provider{
		Name:        "files",
		IDPrefix:    idPrefix,
		Identity:    []string{"cluster"},
		Driver:      Driver{Folder: folder},
		LongestCall: 2 * time.Second,
		Consistency: 100 * time.Millisecond,
		Poll:        100 * time.Millisecond,
		DeletesByID: true,
		Validate:    validate,
	}
}

type providerSpec struct {
	Cluster string `json:"cluster"`
	Size    string `json:"size"`
}

func validate(raw []byte) []server.Fault {
	var spec providerSpec
	if err := json.Unmarshal(raw, &spec); err != nil {
		return []server.Fault{{Allowed: "an object with the texts cluster and size"}}
	}
	if spec.Size != "small" && spec.Size != "large" {
		return []server.Fault{{Path: "size", Allowed: "small or large"}}
	}
	return nil
}

// login reads the cluster of a class, and checks its credentials, as each call does.
func login(class *v1alpha1.MachineClass, secret *corev1.Secret) (string, error) {
	var spec providerSpec
	if err := json.Unmarshal(class.ProviderSpec.Raw, &spec); err != nil {
		return "", status.Error(codes.InvalidArgument, err.Error())
	}
	if len(secret.Data["userData"]) == 0 {
		return "", status.Error(codes.InvalidArgument, "must provide userData")
	}
	if token := string(secret.Data["token"]); token != Password {
		return "", status.Error(codes.Unauthenticated, fmt.Sprintf("the cloud rejects the token %s", token))
	}
	return spec.Cluster, nil
}

// request waits for the cloud's answer.
func (d Driver) request() error {
	for {
		how, err := os.ReadFile(filepath.Join(d.Folder, outage))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case string(how) == "failing":
			return errors.New("the cloud says: [500] [internal] [server error]")
		case string(how) != "silent":
			return nil
		}
		for string(how) == "silent" {
			time.Sleep(pause)
			how, _ = os.ReadFile(filepath.Join(d.Folder, outage))
		}
		return status.Error(codes.Unavailable, "the connection to the cloud has timed out")
	}
}

func (d Driver) isFull() bool {
	how, err := os.ReadFile(filepath.Join(d.Folder, outage))
	return err == nil && string(how) == "full"
}

// CreateMachine makes a file, or finds the one of the name.
func (d Driver) CreateMachine(_ context.Context, request *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	cluster, err := login(request.MachineClass, request.Secret)
	if err != nil {
		return nil, err
	}
	for _, fault := range validate(request.MachineClass.ProviderSpec.Raw) {
		return nil, status.Error(codes.InvalidArgument, fault.Path+" must be "+fault.Allowed)
	}
	klog.Infof("creating %s with %s", request.Machine.Name, request.Secret.Data)
	if err := d.request(); err != nil {
		return nil, err
	}
	if d.isFull() {
		return nil, status.Error(codes.ResourceExhausted, "there is no capacity")
	}
	path := filepath.Join(d.Folder, cluster, request.Machine.Name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	id := providerID(cluster, request.Machine.Name)
	return &driver.CreateMachineResponse{ProviderID: id, NodeName: request.Machine.Name, LastKnownState: "created " + id}, file.Close()
}

// InitializeMachine has nothing to do.
func (Driver) InitializeMachine(context.Context, *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
	return nil, status.Error(codes.Unimplemented, "files need no initialization")
}

// DeleteMachine removes the file of the name.
func (d Driver) DeleteMachine(_ context.Context, request *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	cluster, err := login(request.MachineClass, request.Secret)
	if err != nil {
		return nil, err
	}
	if err := d.request(); err != nil {
		return nil, err
	}
	err = os.Remove(filepath.Join(d.Folder, cluster, request.Machine.Name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return &driver.DeleteMachineResponse{}, nil
}

// GetMachineStatus looks for the file of the name.
func (d Driver) GetMachineStatus(_ context.Context, request *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	cluster, err := login(request.MachineClass, request.Secret)
	if err != nil {
		return nil, err
	}
	if err := d.request(); err != nil {
		return nil, err
	}
	name := request.Machine.Name
	_, err = os.Lstat(filepath.Join(d.Folder, cluster, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, status.Error(codes.NotFound, "there is no such file")
	}
	if err != nil {
		return nil, err
	}
	return &driver.GetMachineStatusResponse{ProviderID: providerID(cluster, name), NodeName: name}, nil
}

// ListMachines reads the folder of the cluster.
func (d Driver) ListMachines(_ context.Context, request *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	cluster, err := login(request.MachineClass, request.Secret)
	if err != nil {
		return nil, err
	}
	if err := d.request(); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(filepath.Join(d.Folder, cluster))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	machines := make(map[string]string, len(entries))
	for _, entry := range entries {
		machines[providerID(cluster, entry.Name())] = entry.Name()
	}
	return &driver.ListMachinesResponse{MachineList: machines}, nil
}

// GetVolumeIDs leaves out volumes of other CSI drivers, as providers do.
func (Driver) GetVolumeIDs(_ context.Context, request *driver.GetVolumeIDsRequest) (*driver.GetVolumeIDsResponse, error) {
	response := &driver.GetVolumeIDsResponse{}
	for _, spec := range request.PVSpecs {
		if spec.CSI != nil && spec.CSI.Driver == csiDriver {
			response.VolumeIDs = append(response.VolumeIDs, spec.CSI.VolumeHandle)
		}
	}
	return response, nil
}

func providerID(cluster, name string) string {
	return idPrefix + cluster + "/" + name
}
