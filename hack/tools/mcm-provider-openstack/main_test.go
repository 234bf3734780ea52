package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"nodewright.dev/controllers/driver/gardener/protocol"
	"nodewright.dev/controllers/driver/gardener/server"
	"nodewright.dev/controllers/driver/gardener/server/servertest"
)

// A MachineClass's providerSpec as Gardener writes it.
const class = `{
	"apiVersion": "openstack.machine.gardener.cloud/v1alpha1", "kind": "MachineProviderConfig",
	"spec": {
		"availabilityZone": "eu-nl-1b", "flavorName": "m1.xmedium", "imageID": "a40dff99-e78a-4c83-af12-26b97e13fc9f", "keyName": "shoot--a",
		"networkID": "378c4e98-dcf9-438a-bf7f-89d964d18793", "podNetworkCidr": "100.96.0.0/11", "region": "eu-nl-1",
		"securityGroups": ["shoot--a"], "tags": {"kubernetes.io-cluster-shoot--a": "1", "kubernetes.io-role-node": "1"}
	}
}`

const secret = "hunter2-is-no-password"

func tested(t *testing.T) server.Provider {
	t.Helper()
	provider, err := provider()
	if err != nil {
		t.Fatal(err)
	}
	return provider
}

func TestTheProviderAnswersOverTheProtocol(t *testing.T) {
	driver := servertest.Start(t, tested(t))
	info, err := driver.GetInfo(t.Context(), &protocol.GetInfoRequest{})
	if err != nil || info.GetProviderIdPrefix() != "openstack:///" || !info.GetValidates() {
		t.Errorf("its answer is %v, %v", info, err)
	}
}

// The provider asks Keystone first, and names the kind of its refusal.
func TestARefusalOfKeystoneIsReported(t *testing.T) {
	driver := servertest.Start(t, tested(t))
	for status, expected := range map[int]protocol.Code{
		http.StatusUnauthorized: protocol.Code_CODE_UNAUTHENTICATED,
		http.StatusForbidden:    protocol.Code_CODE_PERMISSION_DENIED,
	} {
		asked := false
		keystone := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, _ *http.Request) {
			asked = true
			http.Error(answer, secret, status)
		}))
		failure := servertest.List(t, driver, class, map[string][]byte{
			"authURL": []byte(keystone.URL + "/v3"), "username": []byte("a"), "password": []byte(secret), "domainName": []byte("b"),
			"tenantName": []byte("c"), "userData": []byte("-"),
		})
		keystone.Close()
		if !asked || failure.GetCode() != expected || strings.Contains(failure.String(), secret) {
			t.Errorf("Keystone answers %d, and the driver %v", status, failure)
		}
	}
}

func TestAWrongClassIsRefused(t *testing.T) {
	driver := servertest.Start(t, tested(t))
	servertest.Validate(t, driver, class, nil)
	spec := func(it map[string]any) map[string]any { return it["spec"].(map[string]any) }
	for path, spoil := range map[string]func(map[string]any){
		"":                     func(it map[string]any) { it[secret] = secret },
		"spec.flavorName":      func(it map[string]any) { delete(spec(it), "flavorName") },
		"spec.region":          func(it map[string]any) { spec(it)["region"] = "" },
		"spec.networkID":       func(it map[string]any) { delete(spec(it), "networkID") },
		"spec.podNetworkCIDRs": func(it map[string]any) { delete(spec(it), "podNetworkCidr") },
	} {
		servertest.Validate(t, driver, servertest.Spoiled(t, class, spoil), []string{path}, secret)
	}
}
