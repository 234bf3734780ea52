package server

import (
	"context"
	"sort"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/metrics"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	pb "nodewright.dev/controllers/driver/gardener/protocol"
)

// GetProviderRequests answers with what the provider has counted in machine-controller-manager's metrics.
func (s *service) GetProviderRequests(context.Context, *pb.GetProviderRequestsRequest) (*pb.GetProviderRequestsResponse, error) {
	return &pb.GetProviderRequestsResponse{Services: providerRequests()}, nil
}

// providerRequests are the requests of the provider by service.
func providerRequests() []*pb.ProviderRequests {
	all := map[string]*pb.ProviderRequests{}
	of := func(metric *dto.Metric) *pb.ProviderRequests {
		service := label(metric, "service")
		if all[service] == nil {
			all[service] = &pb.ProviderRequests{Service: service, Succeeded: make([]uint64, len(prometheus.DefBuckets)+1)}
		}
		return all[service]
	}
	for _, metric := range collect(metrics.APIRequestCount) {
		of(metric).Made += uint64(metric.GetCounter().GetValue())
	}
	for _, metric := range collect(metrics.APIFailedRequestCount) {
		of(metric).Failed += uint64(metric.GetCounter().GetValue())
	}
	for _, metric := range collect(metrics.APIRequestDuration) {
		requests, histogram := of(metric), metric.GetHistogram()
		requests.Seconds += histogram.GetSampleSum()
		before := uint64(0)
		for i, bucket := range histogram.GetBucket() {
			requests.Succeeded[i] += bucket.GetCumulativeCount() - before
			before = bucket.GetCumulativeCount()
		}
		requests.Succeeded[len(prometheus.DefBuckets)] += histogram.GetSampleCount() - before
	}
	sorted := make([]*pb.ProviderRequests, 0, len(all))
	for _, requests := range all {
		sorted = append(sorted, requests)
	}
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].Service < sorted[j].Service })
	return sorted
}

func label(metric *dto.Metric, name string) string {
	for _, pair := range metric.GetLabel() {
		if pair.GetName() == name {
			return pair.GetValue()
		}
	}
	return ""
}

// collect reads the series of a family.
func collect(family prometheus.Collector) []*dto.Metric {
	series := make(chan prometheus.Metric)
	go func() {
		defer close(series)
		family.Collect(series)
	}()
	var all []*dto.Metric
	for one := range series {
		metric := &dto.Metric{}
		if err := one.Write(metric); err == nil {
			all = append(all, metric)
		}
	}
	return all
}
