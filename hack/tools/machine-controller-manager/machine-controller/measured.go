package main

import (
	"context"
	"strconv"
	"time"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/metrics"

	"nodewright.dev/hack/tools/machine-controller-manager/cloud"
)

// The label provider of all metrics.
const providerLabel = "simulated"

// measured records the calls of a driver as machine-controller-manager's providers for AWS, Azure and GCP do, in the families of its
// library and by these providers' names of the operations. A driver without InitializeMachine does not record that.
type measured struct{ driver.Driver }

func (m measured) CreateMachine(ctx context.Context, request *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	return record(ctx, "create_machine", m.Driver.CreateMachine, request)
}

func (m measured) DeleteMachine(ctx context.Context, request *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	return record(ctx, "delete_machine", m.Driver.DeleteMachine, request)
}

func (m measured) GetMachineStatus(ctx context.Context, request *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	return record(ctx, "get_machine_status", m.Driver.GetMachineStatus, request)
}

func (m measured) ListMachines(ctx context.Context, request *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	return record(ctx, "list_machine", m.Driver.ListMachines, request)
}

func (m measured) GetVolumeIDs(ctx context.Context, request *driver.GetVolumeIDsRequest) (*driver.GetVolumeIDsResponse, error) {
	return record(ctx, "get_volume_ids", m.Driver.GetVolumeIDs, request)
}

func record[Request, Response any](ctx context.Context, operation string, call func(context.Context, Request) (Response, error), request Request) (Response, error) {
	begun := time.Now()
	response, err := call(ctx, request)
	if err == nil {
		metrics.DriverAPIRequestDuration.WithLabelValues(providerLabel, operation).Observe(time.Since(begun).Seconds())
		return response, nil
	}
	code := strconv.FormatUint(uint64(cloud.CodeOf(err)), 10)
	metrics.DriverFailedAPIRequests.WithLabelValues(providerLabel, operation, code).Inc()
	return response, err
}

// recordRequest records a request to the cloud, as these providers do.
func recordRequest(service string, begun time.Time, err error) {
	if cloud.CodeOf(err) != codes.OK {
		metrics.APIFailedRequestCount.WithLabelValues(providerLabel, service).Inc()
		return
	}
	metrics.APIRequestCount.WithLabelValues(providerLabel, service).Inc()
	metrics.APIRequestDuration.WithLabelValues(providerLabel, service).Observe(time.Since(begun).Seconds())
}
