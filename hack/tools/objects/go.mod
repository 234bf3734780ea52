// What hack/test-upgrade.sh compares objects with.
module nodewright.dev/hack/tools/objects

go 1.26.0
