// Package servertest helps to test a provider behind the drivers' protocol.
package servertest

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "nodewright.dev/controllers/driver/gardener/protocol"
	"nodewright.dev/controllers/driver/gardener/server"
)

// Start serves provider until the test ends, and returns a client of it.
func Start(t *testing.T, provider server.Provider) pb.DriverClient {
	t.Helper()
	path := filepath.Join(t.TempDir(), "driver.sock")
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, provider, path) }()
	connection, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		if err := errors.Join(connection.Close(), <-served); err != nil {
			t.Error(err)
		}
	})
	return pb.NewDriverClient(connection)
}

// List is why the VMs of a class with this providerSpec and Secret cannot be listed; nil if they can.
func List(t *testing.T, driver pb.DriverClient, providerSpec string, secret map[string][]byte) *pb.Failure {
	t.Helper()
	class := &pb.Class{Name: "c", Revision: "1", ProviderSpec: providerSpec, Secrets: &pb.Secrets{Data: secret}}
	pages, err := driver.ListMachines(t.Context(), &pb.ListMachinesRequest{Class: class})
	if err != nil {
		t.Fatal(err)
	}
	page, err := pages.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return page.GetFailure()
}

// Validate fails the test unless exactly the fields of providerSpec at paths are refused, without a word of what is secret.
func Validate(t *testing.T, driver pb.DriverClient, providerSpec string, paths []string, secret ...string) {
	t.Helper()
	answer, err := driver.ValidateClass(t.Context(), &pb.ValidateClassRequest{ProviderSpec: providerSpec})
	if err != nil {
		t.Fatal(err)
	}
	var refused []string
	for _, fault := range answer.GetFaults() {
		refused = append(refused, fault.GetPath())
	}
	if !slices.Equal(refused, paths) {
		t.Errorf("of %s, %q are to be refused, but the answer is %v", providerSpec, paths, answer)
	}
	for _, word := range secret {
		if strings.Contains(answer.String(), word) {
			t.Errorf("%s is in the answer %v", word, answer)
		}
	}
}

// Spoiled is providerSpec after spoil.
func Spoiled(t *testing.T, providerSpec string, spoil func(map[string]any)) string {
	t.Helper()
	var spec map[string]any
	if err := json.Unmarshal([]byte(providerSpec), &spec); err != nil {
		t.Fatal(err)
	}
	spoil(spec)
	spoiled, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return string(spoiled)
}
