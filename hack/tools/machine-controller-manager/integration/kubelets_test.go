package integration

import (
	"context"
	"regexp"
	"time"

	"github.com/onsi/ginkgo/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"nodewright.dev/hack/tools/machine-controller-manager/cloud"
)

const policyPeriod = 500 * time.Millisecond

// nodeUser finds the users of kubelets in an expression of a policy.
var nodeUser = regexp.MustCompile(`"system:node:([^"]+)"`)

// kubelets are those of the fake cloud. Suites after v0.62 have kubelets fail by a ValidatingAdmissionPolicy that refuses what
// their users write. Those of the fake cloud are no such users: they are silenced while such a policy exists.
type kubelets struct {
	cloud    *cloud.Client
	policies kubernetes.Interface
	// The ids of the VMs whose kubelets are silent.
	silent map[string]bool
}

// follow does what the policies say until the context ends.
func (k *kubelets) follow(ctx context.Context) {
	for ctx.Err() == nil {
		if err := k.once(ctx); err != nil && ctx.Err() == nil {
			ginkgo.GinkgoWriter.Printf("failed to silence kubelets, trying again: %v\n", err)
		}
		time.Sleep(policyPeriod)
	}
}

func (k *kubelets) once(ctx context.Context) error {
	refused, err := k.refused(ctx)
	if err != nil || len(refused)+len(k.silent) == 0 {
		return err
	}
	vms, err := k.cloud.List(ctx, nil)
	if err != nil {
		return err
	}
	silent := map[string]bool{}
	for _, vm := range vms {
		if vm.State != cloud.StateDeleting && refused[vm.NodeName] != k.silent[vm.ID] {
			if err := k.cloud.SetSilent(ctx, vm.ID, refused[vm.NodeName]); err != nil {
				return err
			}
		}
		if refused[vm.NodeName] {
			silent[vm.ID] = true
		}
	}
	k.silent = silent
	return nil
}

// refused returns the names of the Nodes whose kubelets a policy refuses.
func (k *kubelets) refused(ctx context.Context) (map[string]bool, error) {
	policies, err := k.policies.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	refused := map[string]bool{}
	for _, policy := range policies.Items {
		for _, validation := range policy.Spec.Validations {
			for _, found := range nodeUser.FindAllStringSubmatch(validation.Expression, -1) {
				refused[found[1]] = true
			}
		}
	}
	return refused, nil
}
