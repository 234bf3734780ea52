# shellcheck shell=bash
# Sourced by mcm.sh and mcm-crds.sh after lib-go.sh. Finds the sources of machine-controller-manager.
# Defines: $mcm_module, $mcm_source (empty: the pinned release).

# The path of its Go module.
# shellcheck disable=SC2034 # Used by the scripts that source this.
mcm_module=github.com/gardener/machine-controller-manager

mcm_source=${NODEWRIGHT_MCM_SOURCE:-}

[ -z "$mcm_source" ] ||
	check_source NODEWRIGHT_MCM_SOURCE "$mcm_source" "$mcm_module" kubernetes/crds pkg/test/integration/common
