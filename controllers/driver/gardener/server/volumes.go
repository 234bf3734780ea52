package server

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
	corev1 "k8s.io/api/core/v1"

	pb "nodewright.dev/controllers/driver/gardener/protocol"
)

// How long the provider may take to show that it has GetVolumeIDs. It answers from the specs alone.
const volumesProbe = time.Second

// volumeIDs is an answer: an id for each volume, empty if it is not the provider's, or a failure.
type volumeIDs struct {
	ids     []string
	failure *pb.Failure
}

func (s *service) GetVolumeIds(ctx context.Context, request *pb.GetVolumeIdsRequest) (*pb.GetVolumeIdsResponse, error) {
	answer := volumeIDs{failure: refused(errors.New("a spec of the request is no PersistentVolumeSpec")).failure}
	if specs, err := readSpecs(request.GetVolumeSpecs()); err == nil {
		ctx, cancel := s.untilDeadline(ctx)
		defer cancel()
		answer = s.askVolumeIDs(ctx, specs)
	}
	if answer.failure != nil {
		return &pb.GetVolumeIdsResponse{Outcome: &pb.GetVolumeIdsResponse_Failure{Failure: answer.failure}}, nil
	}
	return &pb.GetVolumeIdsResponse{Outcome: &pb.GetVolumeIdsResponse_Volumes{Volumes: &pb.VolumeIds{Ids: answer.ids}}}, nil
}

// knowsVolumes says whether the provider has GetVolumeIDs: whether it can be asked about a volume that is nobody's.
func (s *service) knowsVolumes(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, volumesProbe)
	defer cancel()
	return s.askVolumeIDs(ctx, []*corev1.PersistentVolumeSpec{{}}).failure == nil
}

func readSpecs(texts []string) ([]*corev1.PersistentVolumeSpec, error) {
	specs := make([]*corev1.PersistentVolumeSpec, len(texts))
	for i, text := range texts {
		specs[i] = &corev1.PersistentVolumeSpec{}
		if err := json.Unmarshal([]byte(text), specs[i]); err != nil {
			return nil, err
		}
	}
	return specs, nil
}

// askVolumeIDs waits until the context ends. The provider's code is left to end in its own time.
func (s *service) askVolumeIDs(ctx context.Context, specs []*corev1.PersistentVolumeSpec) volumeIDs {
	answers := make(chan volumeIDs, 1)
	go func() {
		answer := volumeIDs{ids: make([]string, len(specs))}
		answer.failure = guarded(getVolumeIDs, func() outcome {
			return outcome{failure: s.fetchVolumeIDs(ctx, specs, answer.ids)}
		}).failure
		answers <- answer
	}()
	select {
	case answer := <-answers:
		return answer
	case <-ctx.Done():
		return volumeIDs{failure: failed(pb.Code_CODE_DEADLINE_EXCEEDED, getVolumeIDs+" has not ended within its deadline").failure}
	}
}

// fetchVolumeIDs asks the provider about one volume at a time: its answers leave out volumes that are not its own.
func (s *service) fetchVolumeIDs(ctx context.Context, specs []*corev1.PersistentVolumeSpec, ids []string) *pb.Failure {
	for i, spec := range specs {
		response, err := s.provider.Driver.GetVolumeIDs(ctx, &driver.GetVolumeIDsRequest{PVSpecs: []*corev1.PersistentVolumeSpec{spec}})
		if err != nil {
			return s.failure(getVolumeIDs, err)
		}
		if response == nil {
			return failed(pb.Code_CODE_INTERNAL, "GetVolumeIDs of the provider answers nothing").failure
		}
		if len(response.VolumeIDs) > 0 {
			ids[i] = response.VolumeIDs[0]
		}
	}
	return nil
}
