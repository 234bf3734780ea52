package main

import (
	"strings"
	"testing"

	"nodewright.dev/controllers/driver/gardener/protocol"
	"nodewright.dev/controllers/driver/gardener/server/servertest"
)

// A MachineClass's providerSpec as Gardener writes it.
const class = `{
	"canIpForward": true, "deletionProtection": false, "description": "a worker", "machineType": "n1-standard-2", "region": "europe-west1",
	"zone": "europe-west1-b", "labels": {"name": "shoot--a"},
	"disks": [{"autoDelete": true, "boot": true, "sizeGb": 50, "type": "pd-standard", "image": "projects/a/global/images/b"}],
	"networkInterfaces": [{"network": "shoot--a", "subnetwork": "shoot--a-nodes"}],
	"scheduling": {"automaticRestart": true, "onHostMaintenance": "MIGRATE", "preemptible": false},
	"serviceAccounts": [{"email": "a@b.iam.gserviceaccount.com", "scopes": ["https://www.googleapis.com/auth/compute"]}],
	"tags": ["kubernetes-io-cluster-shoot--a", "kubernetes-io-role-mcm"]
}`

func TestTheProviderAnswersOverTheProtocol(t *testing.T) {
	driver := servertest.Start(t, provider())
	info, err := driver.GetInfo(t.Context(), &protocol.GetInfoRequest{})
	if err != nil || info.GetProviderIdPrefix() != "gce://" || !info.GetValidates() {
		t.Errorf("its answer is %v, %v", info, err)
	}
	// Credentials that are none reach no cloud.
	const secret = "hunter2-is-no-password"
	failure := servertest.List(t, driver, class, map[string][]byte{"serviceAccountJSON": []byte(secret), "userData": []byte("-")})
	if failure == nil || strings.Contains(failure.String(), secret) {
		t.Errorf("a list that nobody has made is reported with %v", failure)
	}
}

func TestAWrongClassIsRefused(t *testing.T) {
	driver := servertest.Start(t, provider())
	servertest.Validate(t, driver, class, nil)
	const secret = "hunter2-is-no-password"
	for path, spoil := range map[string]func(map[string]any){
		"machineType":                  func(it map[string]any) { delete(it, "machineType") },
		"zone":                         func(it map[string]any) { it["zone"] = "" },
		"disks":                        func(it map[string]any) { it["disks"] = []any{} },
		"disks.sizeGb":                 func(it map[string]any) { it["disks"].([]any)[0].(map[string]any)["sizeGb"] = secret },
		"scheduling.onHostMaintenance": func(it map[string]any) { it["scheduling"].(map[string]any)["onHostMaintenance"] = secret },
	} {
		servertest.Validate(t, driver, servertest.Spoiled(t, class, spoil), []string{path}, secret)
	}
}
