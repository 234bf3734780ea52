// Package generate makes the Go code of a protocol. Neither protoc nor a plugin has to be installed: the compiler is a library, and
// the plugins are tools of this module.
package generate

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

// The plugins, as they are called by `go tool`.
var plugins = []string{"protoc-gen-go", "protoc-gen-go-grpc"}

// Code returns the files that the plugins make of one file in a folder, by name. They get the import path of the Go package, which the
// protocol itself leaves to each language.
func Code(ctx context.Context, folder, file, importPath string) (map[string]string, error) {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{folder}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	compiled, err := compiler.Compile(ctx, file)
	if err != nil {
		return nil, fmt.Errorf("failed to compile %s: %w", file, err)
	}
	request := &pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{file},
		Parameter:      proto.String(fmt.Sprintf("paths=source_relative,M%s=%s", file, importPath)),
		ProtoFile:      withImports(compiled.FindFileByPath(file), map[string]bool{}),
	}
	input, err := proto.Marshal(request)
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for _, plugin := range plugins {
		if err := run(ctx, plugin, input, files); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// withImports returns a file after those that it imports, as plugins expect them.
func withImports(file protoreflect.FileDescriptor, seen map[string]bool) []*descriptorpb.FileDescriptorProto {
	if seen[file.Path()] {
		return nil
	}
	seen[file.Path()] = true
	var files []*descriptorpb.FileDescriptorProto
	for i := range file.Imports().Len() {
		files = append(files, withImports(file.Imports().Get(i).FileDescriptor, seen)...)
	}
	return append(files, protodesc.ToFileDescriptorProto(file))
}

func run(ctx context.Context, plugin string, input []byte, files map[string]string) error {
	command := exec.CommandContext(ctx, "go", "tool", plugin)
	command.Stdin = bytes.NewReader(input)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		return fmt.Errorf("%s failed: %w: %s", plugin, err, stderr.String())
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(output, &response); err != nil {
		return fmt.Errorf("%s answers with what is no response: %w", plugin, err)
	}
	if response.Error != nil {
		return fmt.Errorf("%s failed: %s", plugin, response.GetError())
	}
	for _, file := range response.File {
		files[file.GetName()] = file.GetContent()
	}
	return nil
}
