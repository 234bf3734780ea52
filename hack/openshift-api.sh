#!/usr/bin/env bash
# Prints the directory of openshift/api, in the version that hack/tools/openshift-api pins: payload-manifests/crds has
# OpenShift's CRDs, machineconfiguration/v1/tests the suites for those of node configuration. The directory is in Go's module
# cache; it is downloaded if it is missing.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

takes_no_arguments "$@"

find_go
module=github.com/openshift/api
api=$(module_directory openshift-api "$module")
[ -d "$api/machineconfiguration/v1/tests" ] || die "failed to find suites in $api: has the module moved them?"
printf '%s\n' "$api"
