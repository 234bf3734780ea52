// Package server serves a provider of machine-controller-manager, a driver.Driver, over Nodewright's drivers' protocol. A driver's main:
//
//	func main() {
//		os.Exit(server.Main(server.Provider{Name: "MyCloud", IDPrefix: "mycloud:///", Driver: mycloud.NewDriver()}))
//	}
//
//	manager ──socket── service ── calls ──one at a time for each Machine── driver.Driver
//	                               └─ what ends too late is kept for the call that is made again
//
// # Guarantees
//   - A call is answered at its deadline, whatever the provider does. The provider's code is left to end in its own time, as
//     machine-controller-manager would leave it: no creation is cut off halfway. Until then no other call for the Machine begins.
//   - What ends after its deadline is not lost: the next call for the same VM gets the outcome, and notes are never dropped.
//   - A panic, an answer without a VM, and an answer with another provider's VM are errors of that call.
//   - A provider gets the id of a VM only if it is proven, or the provider lists it for this Machine.
//   - Values of Secrets and user data of 8 bytes and more are replaced in errors, notes, and lines that are logged with klog, log or slog.
//     So are texts in those fields of a class that Validate finds wrong.
//
// # Caveats
//   - An interface without tokens cannot promise that one token makes one VM: providers find the VM of an earlier call by its name
//     or tags. So do the manager's calls of GetMachineStatus before each creation.
//   - The owner of a VM that the provider does not list, such as one of another cluster, cannot be known.
//   - A panic in a goroutine that the provider has started ends the process. It is started again.
//   - A call that never ends blocks its Machine until the driver is started again.
//   - What a provider prints to the standard output is not examined for secrets.
package server

import (
	"time"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
)

// Provider is a provider of machine-controller-manager, and what its interface leaves unsaid.
type Provider struct {
	// Name is the value of MachineClass.provider, such as "Azure".
	Name string
	// IDPrefix is the beginning of each provider id, such as "azure:///". Answers with others are refused.
	IDPrefix string
	// Identity names the fields of a providerSpec by which VMs are found, as JSON paths; see GetInfoResponse.identity. They cannot
	// be changed while Machines use the class.
	Identity []string
	// Driver makes the calls.
	Driver driver.Driver

	// LongestCall is the deadline of a call, from 1 s to 10 min; 2 min if it is zero. It is how long the manager waits, and not
	// how long the provider may take.
	LongestCall time.Duration
	// Consistency is how long a new VM may be missing in GetMachineStatus and ListMachines, at most 10 min; 30 s if it is zero.
	Consistency time.Duration
	// Poll is the pause between two questions whether a VM that is being deleted is gone, from 100 ms to 1 min; 5 s if it is zero.
	Poll time.Duration

	// Initializes says that InitializeMachine is to be called.
	Initializes bool
	// DeletesByID says that DeleteMachine, with a provider id and the name that is listed with it, deletes that VM and no other, not
	// even one of the same name. Without it orphaned VMs are reported and kept.
	DeletesByID bool

	// Validate says what is wrong with a providerSpec, without the provider. It may be nil.
	Validate func(providerSpec []byte) []Fault
	// Classify improves on the code of an error of the provider; false keeps the error as it is. It may be nil.
	Classify func(err error) (Class, bool)
}

// Fault is one thing that is wrong with a providerSpec.
type Fault struct {
	// Path is the JSON path below providerSpec; empty for all of it.
	Path string
	// Allowed is what is allowed there. It quotes no value: users put passwords into wrong fields.
	Allowed string
}

// Class is what kind of failure an error is.
type Class struct {
	// Code takes the place of the error's own.
	Code codes.Code
	// Throttled says that the cloud has asked for fewer calls.
	Throttled bool
}

func (p Provider) withDefaults() Provider {
	p.LongestCall = orDefault(p.LongestCall, 2*time.Minute)
	p.Consistency = orDefault(p.Consistency, 30*time.Second)
	p.Poll = orDefault(p.Poll, 5*time.Second)
	return p
}

func orDefault(value, otherwise time.Duration) time.Duration {
	if value == 0 {
		return otherwise
	}
	return value
}
