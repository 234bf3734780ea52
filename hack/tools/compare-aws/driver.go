package main

import (
	"context"
	"fmt"
	"net/url"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "nodewright.dev/controllers/driver/gardener/protocol"
)

// driver is a process with a proxy before it.
type driver struct {
	client   pb.DriverClient
	recorder *recorder
}

func connect(ctx context.Context, socket string, recorder *recorder) (*driver, error) {
	connection, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	driver := &driver{client: pb.NewDriverClient(connection), recorder: recorder}
	_, err = driver.client.GetInfo(ctx, &pb.GetInfoRequest{})
	return driver, err
}

// made is what a driver did for a Machine.
type made struct {
	instance *pb.Instance
	failure  *pb.Failure
	forms    []url.Values
}

// create makes a VM as the manager does: it is initialized if the driver says that it is not.
func (d *driver) create(ctx context.Context, machine *pb.MachineRequest, class class) (made, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	d.recorder.take()
	request := &pb.CreateMachineRequest{
		Machine: machine, UserData: &pb.UserData{Text: class.secret["userData"]}, NodeAnnotations: class.annotations,
	}
	answer, err := d.client.CreateMachine(ctx, request)
	if err != nil || answer.GetFailure() != nil {
		return made{failure: answer.GetFailure(), forms: d.recorder.take()}, err
	}
	instance := answer.GetInstance()
	machine.ProviderId, machine.IsProven = instance.GetProviderId(), true
	if err := d.initialize(ctx, machine); err != nil {
		return made{}, err
	}
	return made{instance: instance, forms: d.recorder.take()}, nil
}

// initialize does what the manager does with a VM that a driver has not set up yet.
func (d *driver) initialize(ctx context.Context, machine *pb.MachineRequest) error {
	found, err := d.client.GetMachineStatus(ctx, machine)
	if err != nil {
		return err
	}
	if found.GetFailure() != nil {
		return fmt.Errorf("GetMachineStatus fails: %s", found.GetFailure().GetMessage())
	}
	if !found.GetInstance().GetUninitialized() {
		return nil
	}
	answer, err := d.client.InitializeMachine(ctx, machine)
	if err == nil && answer.GetFailure() != nil {
		err = fmt.Errorf("InitializeMachine fails: %s", answer.GetFailure().GetMessage())
	}
	return err
}

// delete deletes the VM of a Machine. moto ends it at once.
func (d *driver) delete(ctx context.Context, machine *pb.MachineRequest) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer, err := d.client.DeleteMachine(ctx, machine)
	if err == nil && answer.GetFailure() != nil {
		err = fmt.Errorf("DeleteMachine fails: %s", answer.GetFailure().GetMessage())
	}
	return err
}
