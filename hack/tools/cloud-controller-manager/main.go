// cloud-controller-manager is Kubernetes' cloud controller manager for the fake cloud, nodewright-cloud, whose URL is in
// NODEWRIGHT_CLOUD_URL. It initializes Nodes with the taint node.cloudprovider.kubernetes.io/uninitialized, keeps their addresses
// up to date, and deletes those whose VM is gone.
//
// Without ports, and without leader election:
//
//	cloud-controller-manager --cloud-provider=nodewright-fake --kubeconfig=FILE --secure-port=0 --leader-elect=false
//
// Of its controllers, those for services and routes end by themselves. The field manager of its writes is the name of the
// executable.
package main

import (
	"errors"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/util/wait"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	"k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	"k8s.io/cloud-provider/options"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"
)

const (
	providerName = "nodewright-fake"
	urlVariable  = "NODEWRIGHT_CLOUD_URL"
)

func main() {
	cloudprovider.RegisterCloudProvider(providerName, func(io.Reader) (cloudprovider.Interface, error) {
		url := os.Getenv(urlVariable)
		if url == "" {
			return nil, errors.New(urlVariable + " is missing: it is the URL of nodewright-cloud, such as http://127.0.0.1:8080")
		}
		return newProvider(url), nil
	})
	settings, err := options.NewCloudControllerManagerOptions()
	if err != nil {
		klog.Fatal(err)
	}
	command := app.NewCloudControllerManagerCommand(settings, initialize, app.DefaultInitFuncConstructors,
		names.CCMControllerAliases(), flag.NamedFlagSets{}, wait.NeverStop)
	os.Exit(cli.Run(command))
}

// initialize makes the provider that --cloud-provider names.
func initialize(config *config.CompletedConfig) cloudprovider.Interface {
	settings := config.ComponentConfig.KubeCloudShared.CloudProvider
	cloud, err := cloudprovider.InitCloudProvider(settings.Name, settings.CloudConfigFile)
	if err != nil {
		klog.Fatal(err)
	}
	return cloud
}
