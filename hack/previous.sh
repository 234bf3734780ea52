#!/usr/bin/env bash
# Builds the previous version of Nodewright, which the file hack/previous-version pins by a tag or a commit, and prints the directory that
# holds:
#   nodewright, nodewright-driver-simulated   its manager and the driver of the fake cloud, in the profile dev without debug information
#   config                                    its manifests
#
# The directory is kept outside the checkout, in ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}/previous-<commit>; nothing
# is built if it exists. The first build takes about ten minutes on two cores. Progress goes to stderr. Two runs at once are safe: one
# builds, the other waits. The sources come from the history of this checkout, which has to have the commit.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

takes_no_arguments "$@"

checkout=$(cd "$tools/../.." && pwd)
version=$(grep -v '^#' "$checkout/hack/previous-version")
commit=$(git -C "$checkout" rev-parse --verify --quiet "$version^{commit}") ||
	die "the history of this checkout has no $version, which hack/previous-version names: fetch it, by 'git fetch --unshallow --tags' in a shallow clone"

# Compiles the sources of the commit in directory $1, and leaves only what is needed there. Nothing but Cargo's own settings may change the
# result: neither those of this checkout, nor its toolchain.
build() {
	local into=$1 sources=$1/.sources
	mkdir "$sources" && git -C "$checkout" archive "$commit" | tar -x -C "$sources" &&
		(cd "$sources" && env -u RUSTUP_TOOLCHAIN CARGO_TARGET_DIR="$sources/target" CARGO_PROFILE_DEV_DEBUG=false CARGO_INCREMENTAL=0 \
			nice -n 19 cargo build --locked --package nodewright --package nodewright-driver-simulated >&2) &&
		mv "$sources"/target/debug/nodewright{,-driver-simulated} "$sources/config" "$into/" &&
		rm -rf "$sources"
}

build_once "$cache" "previous-$commit" cargo
