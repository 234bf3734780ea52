// The oracle of `make templates-oracle`: renders templates with machine-config-operator's own code. It is a part of no module:
// hack/mco.sh builds it as if it stood in machine-config-operator's source, by Go's -overlay.
//
// Each line of standard input is a cluster in JSON. The answer is a line with the MachineConfigs, or with an error.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"

	configv1 "github.com/openshift/api/config/v1"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/openshift/machine-config-operator/pkg/controller/template"
	"k8s.io/klog/v2"
)

type cluster struct {
	// Templates is the folder of the templates.
	Templates string `json:"templates"`
	// Spec is the spec of the ControllerConfig.
	Spec mcfgv1.ControllerConfigSpec `json:"spec"`
	// PullSecret is the content of the Secret that the spec names.
	PullSecret string `json:"pullSecret"`
	// TLSSecurityProfile is that of the APIServer. Without it there is no such object.
	TLSSecurityProfile *configv1.TLSSecurityProfile `json:"tlsSecurityProfile"`
}

type machineConfig struct {
	Name string                   `json:"name"`
	Role string                   `json:"role"`
	Spec mcfgv1.MachineConfigSpec `json:"spec"`
}

type answer struct {
	MachineConfigs []machineConfig `json:"machineConfigs"`
	Error          string          `json:"error"`
}

func render(of cluster) (result answer) {
	defer func() {
		if reason := recover(); reason != nil {
			result = answer{Error: fmt.Sprint(reason)}
		}
	}()
	var server *configv1.APIServer
	if of.TLSSecurityProfile != nil {
		server = &configv1.APIServer{}
		server.Spec.TLSSecurityProfile = of.TLSSecurityProfile
	}
	config := mcfgv1.ControllerConfig{Spec: of.Spec}
	made, err := template.RunBootstrap(of.Templates, &config, []byte(of.PullSecret), server)
	if err != nil {
		return answer{Error: err.Error()}
	}
	for _, each := range made {
		role := each.Labels[mcfgv1.MachineConfigRoleLabelKey]
		result.MachineConfigs = append(result.MachineConfigs, machineConfig{Name: each.Name, Role: role, Spec: each.Spec})
	}
	return result
}

func main() {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := flags.Set("logtostderr", "false"); err != nil {
		log.Fatal(err)
	}
	klog.SetOutput(io.Discard)
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var of cluster
		if err := in.Decode(&of); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			log.Fatalf("failed to read a cluster: %v", err)
		}
		if err := out.Encode(render(of)); err != nil {
			log.Fatalf("failed to write an answer: %v", err)
		}
	}
}
