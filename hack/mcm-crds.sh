#!/usr/bin/env bash
# Prints the directory of machine-controller-manager's CRDs, in the version that hack/tools/machine-controller-manager
# pins. The directory is in Go's module cache; it is downloaded if it is missing. NODEWRIGHT_MCM_SOURCE=DIR prints that of
# another version, as with mcm.sh.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

takes_no_arguments "$@"

# shellcheck source-path=SCRIPTDIR source=lib-mcm.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-mcm.sh"

if [ -n "$mcm_source" ]; then
	printf '%s\n' "$mcm_source/kubernetes/crds"
	exit
fi

find_go
crds=$(module_directory machine-controller-manager "$mcm_module")/kubernetes/crds
[ -d "$crds" ] || die "failed to find CRDs in $crds: has the module moved them?"
printf '%s\n' "$crds"
