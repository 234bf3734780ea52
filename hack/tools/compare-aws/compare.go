package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"

	pb "nodewright.dev/controllers/driver/gardener/protocol"
)

// A Machine's UID.
const uid = "7f1c7a52-3f3e-4f0e-9a62-0f5f7e7b7c01"

// The path of what became of a class, and its beginnings.
const (
	outcome      = "answer"
	created      = "made"
	refused      = "refused"
	refusedByEC2 = "refused by EC2"
)

// result is what both drivers made of a class.
type result struct {
	class        class
	theirs, ours values
	// Paths with different values, and why.
	differences map[string]*reason
}

// compare makes the VM of a class with one driver after the other: the network is the same, and no VM is there beside it.
func (b *bench) compare(ctx context.Context, class class) (result, error) {
	theirs, err := b.observe(ctx, b.theirs, class)
	if err != nil {
		return result{}, fmt.Errorf("their driver: %w", err)
	}
	ours, err := b.observe(ctx, b.ours, class)
	if err != nil {
		return result{}, fmt.Errorf("our driver: %w", err)
	}
	if kind(theirs) != kind(ours) {
		// A VM and none have no more to compare.
		theirs, ours = values{outcome: theirs[outcome]}, values{outcome: ours[outcome]}
	}
	return result{class: class, theirs: theirs, ours: ours}, nil
}

// observe makes a VM, reads it, and deletes it.
func (b *bench) observe(ctx context.Context, driver *driver, class class) (values, error) {
	machine := b.machine(class)
	made, err := driver.create(ctx, machine, class)
	if err != nil {
		return nil, err
	}
	names := b.network.names()
	names[uid] = "(the Machine's UID)"
	seen := values{outcome: answered(made)}
	if made.failure != nil {
		seen.addForms(made.forms, names)
		return seen, nil
	}
	id := made.instance.GetProviderId()[strings.LastIndex(made.instance.GetProviderId(), "/")+1:]
	names[id] = "(instance)"
	if err := b.read(ctx, id, seen, names); err != nil {
		return nil, err
	}
	seen.addForms(made.forms, names)
	seen["answer.providerID"] = strings.ReplaceAll(made.instance.GetProviderId(), id, "(instance)")
	seen["answer.nodeName"] = name("dnsName", made.instance.GetNodeName(), names)
	if err := driver.delete(ctx, machine); err != nil {
		return nil, err
	}
	return seen, b.readLeft(ctx, seen, names)
}

// answered is what became of a class: the code is written as in the docs.
func answered(made made) string {
	if made.failure == nil {
		return created
	}
	var code strings.Builder
	for word := range strings.SplitSeq(strings.TrimPrefix(made.failure.GetCode().String(), "CODE_"), "_") {
		code.WriteString(word[:1] + strings.ToLower(word[1:]))
	}
	if len(made.forms) == 0 {
		return refused + ": " + code.String()
	}
	return refusedByEC2 + ": " + code.String()
}

// kind is the outcome without the code.
func kind(values values) string {
	kind, _, _ := strings.Cut(values[outcome], ":")
	return kind
}

func (b *bench) machine(class class) *pb.MachineRequest {
	data := map[string][]byte{}
	for key, value := range class.secret {
		data[key] = []byte(value)
	}
	return &pb.MachineRequest{
		Name: "machine-of-" + class.name, Namespace: "default", Token: uid,
		Class: &pb.Class{
			Name: class.name, Revision: class.name, ProviderSpec: b.network.insert(class.providerSpec), Secrets: &pb.Secrets{Data: data},
		},
	}
}

// read adds a VM, its volumes, network interfaces and user data, and the names of what belongs to it.
func (b *bench) read(ctx context.Context, id string, seen values, names map[string]string) error {
	answer, err := b.moto.ask(ctx, "ec2", "DescribeInstances", map[string]string{"InstanceId.1": id})
	if err != nil {
		return err
	}
	vm := &answer.items("instancesSet")[0]
	names[vm.text("privateDnsName")] = "(private DNS name)"
	volumes, interfaces := map[string]string{}, map[string]string{}
	for at, device := range vm.items("blockDeviceMapping") {
		volumes[fmt.Sprintf("VolumeId.%d", at+1)] = device.text("volumeId")
		names[device.text("volumeId")] = "(volume " + device.text("deviceName") + ")"
	}
	for at, device := range vm.items("networkInterfaceSet") {
		interfaces[fmt.Sprintf("NetworkInterfaceId.%d", at+1)] = device.text("networkInterfaceId")
		names[device.text("networkInterfaceId")] = "(interface " + device.text("deviceIndex") + ")"
	}
	seen.add("vm", vm, names)
	if err := b.readSet(ctx, "volume", "DescribeVolumes", "volumeSet", "volumeId", volumes, seen, names); err != nil {
		return err
	}
	if err := b.readSet(ctx, "interface", "DescribeNetworkInterfaces", "networkInterfaceSet", "networkInterfaceId", interfaces, seen, names); err != nil {
		return err
	}
	return b.readUserData(ctx, id, seen)
}

// readSet adds things that have ids.
func (b *bench) readSet(
	ctx context.Context, kind, action, set, id string, parameters map[string]string, seen values, names map[string]string,
) error {
	if len(parameters) == 0 {
		return nil
	}
	answer, err := b.moto.ask(ctx, "ec2", action, parameters)
	if err != nil {
		return err
	}
	for _, item := range answer.items(set) {
		seen.add(fmt.Sprintf("%s[%s]", kind, name(id, item.text(id), names)), &item, names)
	}
	return nil
}

func (b *bench) readUserData(ctx context.Context, id string, seen values) error {
	answer, err := b.moto.ask(ctx, "ec2", "DescribeInstanceAttribute", map[string]string{"InstanceId": id, "Attribute": "userData"})
	if err != nil {
		return err
	}
	if found := answer.find("userData"); found != nil {
		text, err := base64.StdEncoding.DecodeString(found.text("value"))
		if err != nil {
			return err
		}
		seen["userData"] = string(text)
	}
	return nil
}

// readLeft adds what still shows after the VM was deleted: the VM itself, and volumes and interfaces that stay by the will of the class.
func (b *bench) readLeft(ctx context.Context, seen values, names map[string]string) error {
	for set, what := range map[string]struct{ action, id, state string }{
		"instancesSet":        {"DescribeInstances", "instanceId", "name"},
		"volumeSet":           {"DescribeVolumes", "volumeId", "status"},
		"networkInterfaceSet": {"DescribeNetworkInterfaces", "networkInterfaceId", "status"},
	} {
		answer, err := b.moto.ask(ctx, "ec2", what.action, nil)
		if err != nil {
			return err
		}
		for _, item := range answer.all(set) {
			if name, known := names[item.text(what.id)]; known && strings.HasPrefix(name, "(") {
				seen["left."+name] = item.text(what.state)
			}
		}
	}
	return nil
}
