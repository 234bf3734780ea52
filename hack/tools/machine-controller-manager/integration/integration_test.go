// Package integration runs machine-controller-manager's own integration suite, as its providers do, on whatever controllers
// the Makefile in the working directory starts. e2e/scenarios/tests/mcm/suite.rs prepares that directory.
package integration

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
	"github.com/gardener/machine-controller-manager/pkg/test/integration/common"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"

	"nodewright.dev/hack/tools/machine-controller-manager/cloud"
)

// seconds returns the number in an environment variable, or the default of the suite.
func seconds(variable string, otherwise int64) int64 {
	if number, err := strconv.ParseInt(os.Getenv(variable), 10, 64); err == nil {
		return number
	}
	return otherwise
}

var framework = common.NewIntegrationTestFramework(&tracker{}, seconds("TIMEOUT_SECONDS", 300), seconds("POLLING_SECONDS", 2))

var _ = ginkgo.Describe("Machine controllers test", func() {
	framework.BeforeEachCheck()
	framework.ControllerTests()
})

var _ = ginkgo.BeforeSuite(func() {
	framework.SetupBeforeSuite()
	ctx, stop := context.WithCancel(context.Background())
	ginkgo.DeferCleanup(stop)
	silenced := kubelets{cloud: cloud.New(os.Getenv("NODEWRIGHT_CLOUD_URL")), policies: framework.TargetCluster.Clientset}
	go silenced.follow(ctx)
})

var _ = ginkgo.AfterSuite(framework.Cleanup)

func TestIntegration(t *testing.T) {
	gomega.RegisterFailHandler(ginkgo.Fail)
	ginkgo.RunSpecs(t, "machine-controller-manager's integration suite")
}

// tracker looks for VMs that were left over in the fake cloud.
type tracker struct {
	cloud   *cloud.Client
	cluster string
}

// InitializeResourcesTracker fails if there are VMs before the suite.
func (t *tracker) InitializeResourcesTracker(_ *v1alpha1.MachineClass, _ map[string][]byte, cluster string) error {
	t.cloud, t.cluster = cloud.New(os.Getenv("NODEWRIGHT_CLOUD_URL")), cluster
	vms, err := t.vms()
	if err == nil && len(vms) > 0 {
		err = fmt.Errorf("%d vms are left over from before", len(vms))
	}
	return err
}

// IsOrphanedResourcesAvailable returns whether VMs exist, or could not be listed.
func (t *tracker) IsOrphanedResourcesAvailable() bool {
	vms, err := t.vms()
	return err != nil || len(vms) > 0
}

func (t *tracker) vms() ([]cloud.VM, error) {
	return t.cloud.List(context.Background(), map[string]string{cloud.TagCluster: t.cluster})
}
