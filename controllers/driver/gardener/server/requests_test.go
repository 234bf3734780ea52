package server

import (
	"context"
	"slices"
	"testing"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/metrics"

	pb "nodewright.dev/controllers/driver/gardener/protocol"
)

// What a provider counts is global, so the names of services are this test's own.
func TestRequestsOfTheProviderAreThoseThatItHasCounted(t *testing.T) {
	const timed, untimed = "requests_test_timed", "requests_test_untimed"
	for _, seconds := range []float64{1. / 512, 1. / 512, 0.25, 16} {
		metrics.APIRequestCount.WithLabelValues("p", timed).Inc()
		metrics.APIRequestDuration.WithLabelValues("p", timed).Observe(seconds)
	}
	metrics.APIFailedRequestCount.WithLabelValues("p", timed).Add(2)
	metrics.APIRequestCount.WithLabelValues("p", untimed).Add(3)

	response, err := newService(Provider{}, newRedactor()).GetProviderRequests(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	find := func(service string) *pb.ProviderRequests {
		at := slices.IndexFunc(response.GetServices(), func(of *pb.ProviderRequests) bool { return of.GetService() == service })
		if at < 0 {
			t.Fatalf("%s is not in %v", service, response)
		}
		return response.GetServices()[at]
	}
	of := find(timed)
	want := []uint64{2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1}
	if of.GetMade() != 4 || of.GetFailed() != 2 || of.GetSeconds() != 16.25390625 || !slices.Equal(of.GetSucceeded(), want) {
		t.Errorf("%v, and not %v", of, want)
	}
	if of := find(untimed); of.GetMade() != 3 || of.GetFailed() != 0 || of.GetSeconds() != 0 {
		t.Errorf("%v", of)
	}
}
