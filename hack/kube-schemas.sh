#!/usr/bin/env bash
# Makes JSON schemas for kubeconform, and prints the directory that holds them:
#   v1.34.4, …          the kinds of a release of Kubernetes, from its swagger.json
#   cert-manager        the kinds of cert-manager, from its CRDs
#   cert-manager-crds   these CRDs
# Fields that a schema does not name are refused.
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

# Increase this when the build changes, so that older schemas are not used.
recipe=1

# What the content of the directory depends on: versions, the program that makes them, and recipe.
pins() {
	printf '%s\n' "$releases" "$cert_manager" "$recipe"
	cat "$tools/chart/schemas.go"
}

# Prints the directory of module $1, which is downloaded if it is missing.
module_directory() {
	local found
	found=$(cd "$tools/chart" && GOFLAGS=-mod=mod GOTOOLCHAIN=local GOWORK=off "$go" mod download -json "$1") ||
		die "failed to download $1: check the network and 'go env GOPROXY'"
	sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$/\1/p' <<<"$found"
}

# Makes all schemas in directory $1.
build() {
	local release crds
	for release in $releases; do
		tool_go chart run . schemas "$(module_directory "k8s.io/kubernetes@$release")/api/openapi-spec/swagger.json" "$1/$release"
	done
	crds=$(module_directory "github.com/cert-manager/cert-manager@$cert_manager")/deploy/crds
	tool_go chart run . schemas "$crds" "$1/cert-manager"
	mkdir "$1/cert-manager-crds"
	cp "$crds"/*.yaml "$1/cert-manager-crds"
}

build_once "$cache/kube-schemas" "$(pins | checksum)"
