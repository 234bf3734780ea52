#!/usr/bin/env bash
# Prints the directory of machine-controller-manager's CRDs, in the version that hack/tools/machine-controller-manager
# pins. The directory is in Go's module cache; it is downloaded if it is missing.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

takes_no_arguments "$@"

find_go
module=github.com/gardener/machine-controller-manager
tool_go machine-controller-manager mod download "$module" >&2 ||
	die "failed to download $module: check the network and 'go env GOPROXY'"
crds=$(tool_go machine-controller-manager list -m -f '{{.Dir}}' "$module")/kubernetes/crds
[ -d "$crds" ] || die "failed to find CRDs in $crds: has the module moved them?"
printf '%s\n' "$crds"
