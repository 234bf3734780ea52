# shellcheck shell=bash
# Sourced by mcm.sh and mcm-crds.sh after lib-go.sh. Finds the sources of machine-controller-manager.
# Defines: $mcm_module, $mcm_source (empty: the pinned release).

# The path of its Go module.
# shellcheck disable=SC2034 # Used by the scripts that source this.
mcm_module=github.com/gardener/machine-controller-manager

mcm_source=${NODEWRIGHT_MCM_SOURCE:-}

# Ends the script unless $mcm_source has what the tests use of machine-controller-manager.
check_mcm_source() {
	local wanted found
	wanted="NODEWRIGHT_MCM_SOURCE names a source tree of machine-controller-manager by its absolute path"
	case $mcm_source in
	/*) ;;
	*) die "NODEWRIGHT_MCM_SOURCE=$mcm_source is no absolute path: $wanted" ;;
	esac
	[ -d "$mcm_source" ] || die "NODEWRIGHT_MCM_SOURCE=$mcm_source is no directory: $wanted"
	found=$(sed -n 's/^module //p' "$mcm_source/go.mod" 2>/dev/null || true)
	[ "$found" = "$mcm_module" ] ||
		die "NODEWRIGHT_MCM_SOURCE=$mcm_source has no go.mod of module $mcm_module${found:+, but of $found}: $wanted"
	for found in kubernetes/crds pkg/test/integration/common; do
		[ -d "$mcm_source/$found" ] || die "NODEWRIGHT_MCM_SOURCE=$mcm_source has no directory $found: $wanted"
	done
}

[ -z "$mcm_source" ] || check_mcm_source
