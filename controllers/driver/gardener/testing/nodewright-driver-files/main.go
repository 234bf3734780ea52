// Command nodewright-driver-files serves a provider for tests, whose VMs are files, over the drivers' protocol. The folder is in the
// variable NODEWRIGHT_FILES.
package main

import (
	"fmt"
	"os"

	"nodewright.dev/controllers/driver/gardener/server"
	"nodewright.dev/controllers/driver/gardener/testing/files"
)

func main() {
	folder := os.Getenv("NODEWRIGHT_FILES")
	if folder == "" {
		fmt.Fprintln(os.Stderr, "error: NODEWRIGHT_FILES has to name a folder")
		os.Exit(2)
	}
	os.Exit(server.Main(files.Provider(folder)))
}
