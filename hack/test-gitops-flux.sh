#!/usr/bin/env bash
# Tests Nodewright with Flux's source-controller and kustomize-controller: see hack/test-gitops.sh.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

takes_no_arguments "$@"

# shellcheck source-path=SCRIPTDIR source=lib-gitops.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-gitops.sh"
# shellcheck source-path=SCRIPTDIR source=lib-gitops-scenarios.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-gitops-scenarios.sh"

# shellcheck disable=SC2034 # Used by what is sourced.
tool=flux agent=kustomize-controller own=/kustomizations/ healthy=True progressing=Unknown

flux() { kube --namespace flux-system "$@"; }
show_tool() { flux get gitrepositories,kustomizations --output yaml; }
revision() { printf 'main@sha1:%s' "$1"; }

# Prints the field $2 of the condition Ready of the Kustomization $1.
condition() { flux get kustomization "$1" --output "jsonpath={.status.conditions[?(@.type==\"Ready\")].$2}"; }
message() { condition "$1" message; }

is_ready() {
	[ "$(condition "$1" status)" = True ] &&
		[ "$(flux get kustomization "$1" --output 'jsonpath={.status.lastAppliedRevision}')" = "$(revision "$commit")" ]
}
is_refused() { [ "$(condition "$1" status)" = False ] && grep -qF -- "$2" <<<"$(message "$1")"; }
has_failed() {
	is_refused fleet "MachineDeployment/$namespace/$pool status: 'Failed'" || return 1
	saw=$(excerpt fleet MachineDeployment)
}

# Whether Flux has compared the pool with git $2 times after line $1 of the audit log: it does so by dry runs.
has_compared() { [ "$(comparisons_since "$1" "$agent" "machinedeployments/$pool")" -ge "$2" ]; }
reconciles() { eventually has_compared "$(audit_mark)" "$1"; }

start_flux() {
	local ports
	mapfile -t ports < <(ports 3)
	kube apply --server-side --filename "$binaries/flux.yaml" >/dev/null
	kube create namespace flux-system >/dev/null
	eventually flux get kustomizations,gitrepositories >/dev/null 2>&1
	export RUNTIME_NAMESPACE=flux-system
	start source-controller "$binaries/source-controller" --enable-leader-election=false --metrics-addr=0 \
		"--health-addr=127.0.0.1:${ports[0]}" "--storage-path=$scratch/artifacts" "--storage-addr=127.0.0.1:${ports[1]}" \
		"--storage-adv-addr=127.0.0.1:${ports[1]}"
	start kustomize-controller "$binaries/kustomize-controller" --enable-leader-election=false --metrics-addr=0 \
		"--health-addr=127.0.0.1:${ports[2]}" --requeue-dependency=2s
	kube apply --filename - >/dev/null <<-END
		apiVersion: source.toolkit.fluxcd.io/v1
		kind: GitRepository
		metadata: {name: fleet, namespace: flux-system}
		spec: {interval: 2s, url: $repository, ref: {branch: main}}
	END
}

# The Kustomization of config/flux, in seconds instead of minutes.
fleet_kustomization() {
	sed 's/^  interval: .*/  interval: 3s/; s/retryInterval: .*/retryInterval: 2s/; s/timeout: .*/timeout: 1m/' "$root/config/flux/fleet.yaml"
}

# The same for cluster/, where Flux knows the health of all kinds.
cluster_kustomization() { fleet_kustomization | sed '/^  ignore:/,$d; s/^  name: fleet/  name: cluster/; s|path: .*|path: ./cluster|'; }

patch_fleet() { flux patch kustomization fleet "$@" >/dev/null; }

# Applies the Kustomization of the fleet, with wrong health where PLANT wants it.
apply_fleet() {
	fleet_kustomization | kube apply --filename - >/dev/null
	if planted health; then patch_fleet --type=json --patch '[{op: remove, path: /spec/healthCheckExprs}]'; fi
	if planted early; then
		patch_fleet --type=json --patch '[{op: replace, path: /spec/healthCheckExprs/0/inProgress, value: "false"},
			{op: replace, path: /spec/healthCheckExprs/0/current, value: "true"}]'
	fi
}

size_from_git() {
	case $1 in
	yes) patch_fleet --type=merge --patch '{"spec":{"ignore":null}}' ;;
	no) apply_fleet ;;
	esac
}
stop_pruning() { patch_fleet --type=merge --patch '{"spec":{"prune":false}}'; }
suspend() { patch_fleet --type=merge --patch '{"spec":{"suspend":true}}'; }
delete_application() { flux delete kustomization fleet --wait=false >/dev/null; }

watches() {
	local ready='{.object.status.conditions[?(@.type=="Ready")]'
	printf '%s|' kustomizations flux-system tool '{.object.metadata.name}' "$ready.status}" '{.object.status.lastAppliedRevision}' \
		'{.object.status.lastAttemptedRevision}'
	printf '%s\n' "$ready.reason}"
}

is_progressing() { [ "$(condition fleet status)" = Unknown ]; }

# The Kustomization of the fleet is there before the CRDs, which are there before the manager.
late_crds() {
	apply_fleet
	eventually is_refused fleet 'no matches for kind "MachineClass"'
	cluster_kustomization | kube apply --filename - >/dev/null
	eventually is_ready cluster
	eventually has_pool
	eventually is_progressing
	never 5 is_ready fleet
	equals "$(vms)" 0 "the number of VMs"
	saw="refused without CRDs, not ready without a manager"
}

# A fleet whose size leaves git keeps it if another field manager owns the field before.
replicas_leave_git() {
	local uids
	uids=$(machines "$pool")
	size_from_git yes
	if ! planted handover; then
		in_fleet apply --server-side --field-manager=handover --force-conflicts --filename - >/dev/null <<-END
			{apiVersion: machine.sapcloud.io/v1alpha1, kind: MachineDeployment, metadata: {name: $pool}, spec: {replicas: 3}}
		END
	fi
	edit fleet/machine_deployment.yaml '/^  replicas: 3$/d'
	commit "Leave the size to the autoscaler"
	eventually is_ready fleet
	reconciles 2
	equals "$(field mcd "$pool" '{.spec.replicas}')" 3 replicas
	equals "$(machines "$pool")" "$uids" "the list of machines"
	saw="3 replicas and the same machines after the commit"
	revert
	size_from_git no
	eventually is_ready fleet
}

start_plane
start_git
start_flux
run_scenarios
scenario replicas_leave_git "replicas leave git, and the pool keeps its size"
scenario deleted "a deleted Kustomization takes its machines along"
