// Renders a pool with machine-config-operator's own code. hack/mcd.sh compiles this within its source tree.
//
// Standard input is JSON with a pool, the MachineConfigs that there are, and the ControllerConfig; standard output is JSON with
// the pool and its rendered MachineConfig, as machine-config-operator stores them.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/openshift/machine-config-operator/pkg/controller/render"
	"github.com/openshift/machine-config-operator/pkg/daemon/constants"
	"github.com/openshift/machine-config-operator/pkg/version"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type input struct {
	Pool             *mcfgv1.MachineConfigPool `json:"pool"`
	Configs          []*mcfgv1.MachineConfig   `json:"configs"`
	ControllerConfig *mcfgv1.ControllerConfig  `json:"controllerConfig"`
}

type output struct {
	Pool   *mcfgv1.MachineConfigPool `json:"pool"`
	Config *mcfgv1.MachineConfig     `json:"config"`
}

func run() error {
	var in input
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		return err
	}
	// It takes no ControllerConfig of another version of itself.
	metav1.SetMetaDataAnnotation(&in.ControllerConfig.ObjectMeta, constants.GeneratedByVersionAnnotationKey, version.Raw)
	pools, configs, err := render.RunBootstrap(context.Background(), []*mcfgv1.MachineConfigPool{in.Pool}, in.Configs,
		in.ControllerConfig, nil, nil)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(output{Pool: pools[0], Config: configs[0]})
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
