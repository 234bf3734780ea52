package server

import (
	"strings"
	"testing"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/status"

	pb "nodewright.dev/controllers/driver/gardener/protocol"
)

func TestWhatIsWrongInAClassIsNotQuoted(t *testing.T) {
	table := []struct {
		fault, spec string
		isQuoted    bool
	}{
		{"size", `{"size":"p4ssword-in-size"}`, false},
		{"disks[1].name", `{"disks":[{"name":"a"},{"name":"p4ssword-in-a-list"}]}`, false},
		{"disks", `{"disks":[{"name":"p4ssword-below-the-fault"}]}`, false},
		{"size", `{"sizes":"other-than-the-fault"}`, true},
		{"size", `{"image":"other-than-the-fault"}`, true},
	}
	for _, row := range table {
		quoting := provider(hostile{create: func(request *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
			return nil, status.Error(codes.InvalidArgument, row.fault+": invalid value in "+string(request.MachineClass.ProviderSpec.Raw))
		}})
		quoting.Validate = func([]byte) []Fault { return []Fault{{Path: row.fault, Allowed: "another value"}} }
		request := creation()
		request.Machine.Class.ProviderSpec = row.spec
		failure := must(client(t, quoting).CreateMachine(t.Context(), request)).GetFailure()
		isQuoted := !strings.Contains(failure.GetMessage(), replacement)
		if isQuoted != row.isQuoted || strings.Contains(failure.GetMessage(), "p4ssword") {
			t.Errorf("%q is wrong, and the answer is %q", row.fault, failure.GetMessage())
		}
	}
}

func TestAClassWhoseCheckPanicsIsNotJudged(t *testing.T) {
	panics := provider(hostile{})
	panics.Validate = func([]byte) []Fault { panic("at the disco") }
	service := newService(panics, newRedactor())
	if texts := service.misplaced(`{"size":"large"}`); texts != nil {
		t.Errorf("it finds %v", texts)
	}
	if _, err := service.ValidateClass(t.Context(), &pb.ValidateClassRequest{ProviderSpec: "{}"}); err == nil || !strings.Contains(err.Error(), "panicked") {
		t.Errorf("the answer is %v", err)
	}
}
