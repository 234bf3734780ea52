// machine-controller is machine-controller-manager's provider process for the fake cloud: the library's controllers with
// the driver of this directory.
package main

import (
	"fmt"
	"os"

	_ "github.com/gardener/machine-controller-manager/pkg/util/client/metrics/prometheus"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/app"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/app/options"
	_ "github.com/gardener/machine-controller-manager/pkg/util/reflector/prometheus"
	_ "github.com/gardener/machine-controller-manager/pkg/util/workqueue/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"

	"nodewright.dev/hack/tools/machine-controller-manager/cloud"
)

func main() {
	server := options.NewMCServer()
	server.AddFlags(pflag.CommandLine)
	url := pflag.String("simulated-cloud-url", "", "URL of the fake cloud, such as http://127.0.0.1:8080")
	flag.InitFlags()
	logs.InitLogs()
	defer logs.FlushLogs()
	if *url == "" {
		fail("--simulated-cloud-url is missing: it is the URL of nodewright-cloud")
	}
	client := cloud.New(*url)
	client.Requested = recordRequest
	if err := app.Run(server, measured{&simulated{cloud: client}}); err != nil {
		fail(err.Error())
	}
}

func fail(message string) {
	fmt.Fprintln(os.Stderr, message)
	os.Exit(1)
}
