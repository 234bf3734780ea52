package server

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
	corev1 "k8s.io/api/core/v1"

	pb "nodewright.dev/controllers/driver/gardener/protocol"
)

// handles knows the volumes of one CSI driver, and leaves out all others.
func handles(spec *corev1.PersistentVolumeSpec) (*driver.GetVolumeIDsResponse, error) {
	response := &driver.GetVolumeIDsResponse{}
	if spec.CSI != nil && spec.CSI.Driver == "own" {
		response.VolumeIDs = []string{spec.CSI.VolumeHandle}
	}
	return response, nil
}

func TestEachVolumeHasItsPlaceInTheAnswer(t *testing.T) {
	drivers := client(t, provider(hostile{volumes: handles}))
	if info := must(drivers.GetInfo(t.Context(), &pb.GetInfoRequest{})); !info.GetKnowsVolumes() {
		t.Errorf("the driver says %v", info)
	}
	specs := []string{`{"nfs":{"path":"/"}}`, `{"csi":{"driver":"own","volumeHandle":"a"}}`, `{}`, `{"csi":{"driver":"own","volumeHandle":"b"}}`}
	answer := must(drivers.GetVolumeIds(t.Context(), &pb.GetVolumeIdsRequest{VolumeSpecs: specs}))
	if ids := answer.GetVolumes().GetIds(); !slices.Equal(ids, []string{"", "a", "", "b"}) {
		t.Errorf("the ids are %q", ids)
	}
	broken := must(drivers.GetVolumeIds(t.Context(), &pb.GetVolumeIdsRequest{VolumeSpecs: []string{"{"}}))
	expectCode(t, broken.GetFailure(), pb.Code_CODE_INVALID_ARGUMENT)
}

func TestAProviderThatCannotSayWhoseAVolumeIsIsNotAsked(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	table := map[string]struct {
		volumes func(*corev1.PersistentVolumeSpec) (*driver.GetVolumeIDsResponse, error)
		code    pb.Code
	}{
		"unimplemented": {nil, pb.Code_CODE_UNIMPLEMENTED},
		"fails": {func(*corev1.PersistentVolumeSpec) (*driver.GetVolumeIDsResponse, error) {
			return nil, errors.New("it broke")
		}, pb.Code_CODE_INTERNAL},
		"panics": {func(*corev1.PersistentVolumeSpec) (*driver.GetVolumeIDsResponse, error) {
			panic("a defect")
		}, pb.Code_CODE_INTERNAL},
		"nothing": {func(*corev1.PersistentVolumeSpec) (*driver.GetVolumeIDsResponse, error) {
			return nil, nil
		}, pb.Code_CODE_INTERNAL},
		"hangs": {func(*corev1.PersistentVolumeSpec) (*driver.GetVolumeIDsResponse, error) {
			<-hang
			return nil, errors.New("too late")
		}, pb.Code_CODE_DEADLINE_EXCEEDED},
	}
	for name, row := range table {
		t.Run(name, func(t *testing.T) {
			served := provider(hostile{volumes: row.volumes})
			served.LongestCall = time.Second
			drivers := client(t, served)
			if info := must(drivers.GetInfo(t.Context(), &pb.GetInfoRequest{})); info.GetKnowsVolumes() {
				t.Errorf("the driver says %v", info)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			answer := must(drivers.GetVolumeIds(ctx, &pb.GetVolumeIdsRequest{VolumeSpecs: []string{"{}"}}))
			expectCode(t, answer.GetFailure(), row.code)
		})
	}
}
