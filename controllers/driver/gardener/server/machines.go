package server

import (
	"encoding/json"
	"errors"
	"maps"
	"strings"

	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	pb "nodewright.dev/controllers/driver/gardener/protocol"
)

// Stands for user data where only a creation gets it: some providers refuse a Secret without it in each call.
const noUserData = "# only a creation gets the user data"

// checkMachine returns what a request about a Machine lacks.
func checkMachine(machine *pb.MachineRequest) error {
	if machine.GetName() == "" || machine.GetToken() == "" {
		return errors.New("the request lacks name and token")
	}
	return checkClass(machine.GetClass())
}

func checkClass(class *pb.Class) error {
	if class == nil {
		return errors.New("the request lacks class")
	}
	if !json.Valid([]byte(class.GetProviderSpec())) {
		return errors.New("the provider_spec of the request is no JSON")
	}
	return nil
}

// machineOf returns the Machine as far as providers read it.
func machineOf(machine *pb.MachineRequest, providerID string, notes *string) *v1alpha1.Machine {
	lastKnownState := machine.GetLastKnownState()
	if notes != nil {
		lastKnownState = *notes
	}
	return &v1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Name:      machine.GetName(),
			Namespace: machine.GetNamespace(),
			UID:       types.UID(machine.GetToken()),
		},
		Spec: v1alpha1.MachineSpec{
			ProviderID: providerID,
			Class:      v1alpha1.ClassSpec{Kind: "MachineClass", Name: machine.GetClass().GetName()},
		},
		Status: v1alpha1.MachineStatus{LastKnownState: lastKnownState},
	}
}

func (s *service) classOf(class *pb.Class) *v1alpha1.MachineClass {
	return &v1alpha1.MachineClass{
		ObjectMeta:   metav1.ObjectMeta{Name: class.GetName()},
		Provider:     s.provider.Name,
		ProviderSpec: runtime.RawExtension{Raw: []byte(class.GetProviderSpec())},
	}
}

// secretOf returns the data of the Secrets of a class, with the user data of a creation.
func secretOf(class *pb.Class, userData string) *corev1.Secret {
	data := maps.Clone(class.GetSecrets().GetData())
	if data == nil {
		data = map[string][]byte{}
	}
	if userData != "" {
		data[userDataKey] = []byte(userData)
	} else if len(data[userDataKey]) == 0 {
		data[userDataKey] = []byte(noUserData)
	}
	return &corev1.Secret{Data: data}
}

// vm is what the provider's answers have in common.
type vm struct {
	providerID string
	nodeName   string
	addresses  []corev1.NodeAddress
}

// instance checks and encodes a VM. Notes come along also if it is none: they may be all that leads to what was made.
func (s *service) instance(method string, found vm, notes *string) outcome {
	wrong := ""
	switch {
	case found.providerID == "":
		wrong = "without a provider id"
	case !strings.HasPrefix(found.providerID, s.provider.IDPrefix) || found.providerID == s.provider.IDPrefix:
		wrong = "with a provider id that does not begin with " + s.provider.IDPrefix
	case found.nodeName == "":
		wrong = "without the name of the Node"
	}
	if wrong != "" {
		result := failed(pb.Code_CODE_INTERNAL, method+" of the provider answers "+wrong)
		result.notes = notes
		return result
	}
	instance := &pb.Instance{ProviderId: found.providerID, NodeName: found.nodeName}
	for _, address := range found.addresses {
		instance.Addresses = append(instance.Addresses, &pb.Address{Type: string(address.Type), Address: address.Address})
	}
	return outcome{instance: instance, notes: notes}
}

// notesOf returns notes of an answer; nil if it has none.
func (s *service) notesOf(notes string) *string {
	if notes == "" {
		return nil
	}
	notes = strings.ToValidUTF8(s.redactor.redact(notes), "?")
	return &notes
}
