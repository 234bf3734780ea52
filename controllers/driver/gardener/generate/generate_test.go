package generate

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

const (
	protos     = "../../protocol/proto"
	generated  = "../protocol"
	importPath = "nodewright.dev/controllers/driver/gardener/protocol"
)

func TestTheCodeIsWhatTheProtocolGenerates(t *testing.T) {
	files, err := Code(t.Context(), protos, "driver.proto", importPath)
	if err != nil {
		t.Fatal(err)
	}
	if names := slices.Sorted(maps.Keys(files)); !slices.Equal(names, []string{"driver.pb.go", "driver_grpc.pb.go"}) {
		t.Fatalf("the plugins generate %v", names)
	}
	for name, text := range files {
		path := filepath.Join(generated, name)
		if os.Getenv("UPDATE_GENERATED") != "" {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if checkedIn, err := os.ReadFile(path); err != nil || string(checkedIn) != text {
			t.Errorf("%s differs from what driver.proto generates: make driver-protocol (%v)", path, err)
		}
	}
}
