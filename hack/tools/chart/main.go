// Makes and tests the Helm chart. The first argument says what to do:
//
//	generate KUBECTL CONFIG TEMPLATES   write the templates of the chart from the kustomize folders of CONFIG
//	compare WANT GOT                    print how the objects of two files differ, and fail if they do
//	schemas SWAGGER|CRDS INTO           write JSON schemas for kubeconform
package main

import (
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	switch {
	case len(arguments) == 4 && arguments[0] == "generate":
		return generate(kustomize{kubectl: arguments[1], config: arguments[2]}, arguments[3])
	case len(arguments) == 3 && arguments[0] == "compare":
		return compareFiles(arguments[1], arguments[2])
	case len(arguments) == 3 && arguments[0] == "schemas":
		return writeSchemas(arguments[1], arguments[2])
	}
	return fmt.Errorf("want generate KUBECTL CONFIG TEMPLATES, compare WANT GOT, or schemas SWAGGER|CRDS INTO; got %q", arguments)
}
