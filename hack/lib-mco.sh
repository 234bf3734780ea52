# shellcheck shell=bash
# Sourced by mco.sh and mcd.sh after lib-go.sh. Which sources of machine-config-operator they build.
# Defines: $mco_source (empty: the pinned commit), $mco_commit, $mco_repository, $mco_tags, check_mco_source, fetch_mco.
# shellcheck disable=SC2034 # The scripts that source this use them.

mco_source=${NODEWRIGHT_MCO_SOURCE:-}
mco_commit=7ff337a4ffac8e7562692181178ede61e4b2eec5
mco_repository=${NODEWRIGHT_MCO_REPOSITORY:-https://github.com/openshift/machine-config-operator}
# The build tags of its own Makefile: they keep libraries of C out of the programs.
mco_tags="containers_image_openpgp exclude_graphdriver_btrfs exclude_graphdriver_devicemapper"

# Ends the script unless $mco_source has these directories.
check_mco_source() {
	check_source NODEWRIGHT_MCO_SOURCE "$mco_source" github.com/openshift/machine-config-operator vendor "$@"
}

# Fetches the pinned commit into directory $1. Git must not ask for a password.
fetch_mco() {
	say "fetching $mco_commit from $mco_repository"
	{
		git init --quiet "$1" &&
			GIT_TERMINAL_PROMPT=0 git -C "$1" fetch --quiet --depth 1 "$mco_repository" "$mco_commit" &&
			git -C "$1" -c advice.detachedHead=false checkout --quiet FETCH_HEAD
	} >&2
}
